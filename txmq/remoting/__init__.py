"""One byte stream, many requests in both directions.

:mod:`exchange` is the pure table of what was asked and not yet answered; :mod:`connection` moves
bytes between it, a transport and the table of handlers; :mod:`listener` holds the connections of a
server and :mod:`pool` those of a client. Both ends of a connection are the same class.
"""
