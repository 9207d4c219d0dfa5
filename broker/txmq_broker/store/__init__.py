"""The log and its indexes: synchronous, over the Disk port.

No function here waits or reads a clock; the caller passes in the time and receives the results.
One append-only log holds every topic (:mod:`~txmq_broker.store.log`). Queues, the key index, half
messages and delayed messages only point into it (:mod:`queue_store`, :mod:`half_store`,
:mod:`delay_store`). Their index files can be deleted: a start rebuilds them from the log
(:mod:`checkpoints`, :mod:`start`).
"""
