"""Many requests in both directions over one byte stream.

:mod:`connection` moves bytes between a table of unanswered requests, a transport and the table of
handlers, and pools the connections of a client. :mod:`listener` holds those of a server. Both ends
of a connection are the same class.
"""
