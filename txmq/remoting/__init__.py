"""Concurrent requests in both directions over one byte stream.

:mod:`connection` implements both ends of a stream: a client and a server use the same class.
:mod:`dispatch` is a server's table of handlers. :mod:`pool` holds the connections of a client,
:mod:`listener` those of a server. With TLS, :mod:`handshake` detects whether a peer speaks TLS, and
:mod:`tls_stream` sits between the transport and the connection.
"""
