"""The entries of records that are staged in a row, in several queues."""

from __future__ import annotations

from collections import defaultdict

from txmq_broker.store.queue_store import ConsumeQueue, QueueStore

__all__ = ["EntryGroup"]


class EntryGroup:
    """Collects the entries of records, and stages those of a queue at once.

    Attributes:
        packed: The entries of each queue.
        key_hashes: The hashes of the keys of all these records, in their order.
        key_positions: For each of these hashes, the position of the record.
    """

    __slots__ = ("key_hashes", "key_positions", "packed")

    def __init__(self) -> None:
        self.packed: defaultdict[ConsumeQueue, list[bytes]] = defaultdict(list)
        self.key_hashes: list[int] = []
        self.key_positions: list[int] = []

    def stage(self, queues: QueueStore, first: int) -> None:
        """Stage the entries; ``first`` is the position of the first record."""
        hashes, positions = self.key_hashes, self.key_positions
        for queue, packed in self.packed.items():
            if not packed:
                continue
            queues.staged.append((queue, first, b"".join(packed), hashes, positions))
            queues.staged_in_batches += len(packed) - 1
            hashes, positions = [], []  # They are in the order of the log, not of the queues.
