"""RocketMQ's remoting protocol as pure functions between bytes and values.

Nothing here waits, opens files, reads a clock or uses randomness, so tests can call every function
with literals. Reading order: :mod:`command` cuts a stream into frames and reads their headers,
:mod:`headers` and :mod:`bodies` define the fields of requests, :mod:`record` is the stored message.
"""
