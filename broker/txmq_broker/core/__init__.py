"""The broker's decisions: plain objects and functions that take `now` and values and return values.

Nothing here waits, opens a socket or reads a clock. A connection is only a key in these tables.
"""
