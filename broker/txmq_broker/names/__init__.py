"""The name server: the live brokers, their topics, and operators' key-value texts.

It runs alone or inside a broker's process. :mod:`routes`, :mod:`key_values`, :mod:`options` and
:mod:`registration` are pure, :mod:`handlers` maps requests to them, and :mod:`server` adds the
listener, the clock and the disk. Name servers do not know each other: brokers register with all.
"""
