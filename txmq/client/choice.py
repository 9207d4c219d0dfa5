"""Which queue a message goes to by its key: the same key, the same queue. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from txmq.errors import NoPermission
from txmq.message import Queue
from txmq.protocol.java import string_hash

__all__ = ["queue_of_key"]


def queue_of_key(queues: Sequence[Queue], key: str | bytes | int) -> Queue:
    """The queue of a key, as long as the topic keeps its number of queues.

    Text goes where Java's ``SelectMessageQueueByHash`` sends it, a whole number where the remainder
    says, so that producers in either language agree.

    Raises:
        NoPermission: There is no queue.
    """
    if not queues:
        raise NoPermission("the topic has no queue that can be written to")
    if isinstance(key, str):
        number = abs(string_hash(key))
    elif isinstance(key, bytes):
        number = zlib.crc32(key)
    else:
        number = key
    return queues[number % len(queues)]
