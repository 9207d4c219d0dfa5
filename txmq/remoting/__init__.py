"""Many requests in both directions over one byte stream.

:mod:`exchange` is the table of unanswered requests. :mod:`connection` moves bytes between it, a
transport and the table of handlers. :mod:`pool` has the connections of a client, :mod:`listener`
those of a server; both ends of a connection are the same class. With TLS, :mod:`arrival` sees what
a peer speaks, and :mod:`tls_stream` stands between the transport and the connection.
"""
