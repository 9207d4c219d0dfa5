"""Many requests in both directions over one byte stream.

:mod:`connection` moves bytes between a table of unanswered requests, a transport and the table of
handlers. :mod:`listener` holds the connections of a server, :mod:`pool` those of a client. Both
ends of a connection are the same class.
"""
