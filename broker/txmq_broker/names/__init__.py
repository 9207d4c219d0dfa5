"""The name server: the live brokers, their topics, and operators' key-value texts.

It runs alone or inside a broker's process. :mod:`routes` is pure. :mod:`key_values` holds the texts
and writes them, :mod:`handlers` maps requests to both, and :mod:`server` adds the listener, the
clock and the disk. Name servers do not know each other: brokers register with all of them.
"""
