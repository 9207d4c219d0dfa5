"""The log and what is derived from it: synchronous, over the Disk port.

Nothing here waits, reads a clock or writes to a logger; times are parameters and findings are
return values. One append-only log holds every topic (:mod:`segment`, :mod:`commit_log`); consume
queues and the key index only point into it and can be thrown away (:mod:`checkpoint`,
:mod:`recovery`).
"""
