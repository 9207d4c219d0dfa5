"""Many requests in both directions over one byte stream.

:mod:`exchange` is the pure table of unanswered requests. :mod:`connection` moves bytes between that
table, a transport and the table of handlers. :mod:`listener` holds the connections of a server,
:mod:`pool` those of a client. Both ends of a connection are the same class.
"""
