"""The entries of records that are staged in a row, in several queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from txmq_broker.store.queue_store import ConsumeQueue, QueueStore

__all__ = ["stage_entries"]


def stage_entries(
    queues: QueueStore,
    packed: Mapping[ConsumeQueue, Sequence[bytes]],
    first: int,
    key_hashes: Sequence[int],
    key_positions: Sequence[int],
) -> None:
    """Stage the entries of several records, those of a queue at once.

    Args:
        queues: The queues.
        packed: The entries of each queue.
        first: The position of the first record.
        key_hashes: The hashes of the keys of all these records, in their order.
        key_positions: For each of these hashes, the position of the record.
    """
    for queue, entries in packed.items():
        if entries:
            queues.staged.append((queue, first, b"".join(entries), key_hashes, key_positions))
            queues.staged_in_batches += len(entries) - 1
            key_hashes, key_positions = [], []  # They are in the order of the log.
