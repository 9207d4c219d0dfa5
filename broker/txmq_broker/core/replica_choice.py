"""Which replica a consumer pulls from next: the leader, or a follower if it is far behind."""

from __future__ import annotations

from collections.abc import Callable

from txmq.errors import CorruptRecord
from txmq_broker.store.message_store import MessageStore
from txmq_broker.store.queue_store import ConsumeQueue

__all__ = ["ReplicaChoice"]


class ReplicaChoice:
    """Sends consumers that read old messages to a follower.

    Old messages come from the disk. Read at the leader, they would take the disk and the memory
    that its new messages need.

    Args:
        store: The log.
        far_behind: How many bytes behind the end of the log a consumer is far behind.
        reader: Returns the id of the follower to read from, or 0 without one.
    """

    def __init__(self, store: MessageStore, far_behind: int, reader: Callable[[], int]) -> None:
        self._store = store
        self._far_behind = far_behind
        self._reader = reader

    def replica_for(self, queue: ConsumeQueue, offset: int) -> int:
        """The replica for a consumer whose next message has this offset."""
        reader = self._reader()
        if not reader:
            return 0
        try:
            entries = queue.read(queue.next_kept(offset), 1)
        except CorruptRecord:
            return 0  # The next pull reports it; this one has its messages.
        is_far = bool(entries) and self._store.log.end - entries[0][0] > self._far_behind
        return reader if is_far else 0
