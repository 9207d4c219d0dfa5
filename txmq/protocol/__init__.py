"""RocketMQ's remoting protocol as plain values: bytes in, values out, and back.

Nothing here waits, opens, reads a clock or draws lots; every function can be called from a test
with literals. Reading order: :mod:`frame` cuts a stream, :mod:`command` reads one frame's header,
:mod:`headers` and :mod:`bodies` name what requests carry, :mod:`record` is the message as stored.
"""
