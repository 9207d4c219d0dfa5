"""The name server: which brokers live, which topics they have, and what operators noted by key.

It runs alone or inside a broker's process. :mod:`routes`, :mod:`key_values`, :mod:`options` and
:mod:`registration` are pure; :mod:`handlers` turns requests into calls of them; :mod:`server`
holds the door, the clock and the disk. A name server knows no other name server: brokers tell each.
"""
