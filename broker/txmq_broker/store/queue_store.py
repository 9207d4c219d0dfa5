"""The consume queues of all topics and the key index, and the adding of records to both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from txmq.protocol import record as records
from txmq.protocol.checksum import crc32
from txmq.protocol.record import Postmark
from txmq_broker.store.consume_queue import ENTRY, ConsumeQueue
from txmq_broker.store.key_index import KeyIndex
from txmq_broker.store.log.commit_log import CommitLog

__all__ = ["QueueStore", "Staged"]

Staged: TypeAlias = tuple[ConsumeQueue, int, int, int, int, tuple[int, ...]]
"""A record that is not durable yet: its queue; the position, size, tag's hash and checksum of its
entry there; and the hashes of its keys.
"""


class QueueStore:
    """All queues, and the keys of their messages.

    Attributes:
        floors: Offsets below which a queue's messages were deleted, by topic and queue.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._queues: dict[str, dict[int, ConsumeQueue]] = {}
        self.floors: Mapping[str, Mapping[int, int]] = {}
        self.keys = KeyIndex()
        self.staged: list[Staged] = []

    # Queues

    def queue(self, topic: str, number: int) -> ConsumeQueue:
        """A queue, created on first use."""
        numbers = self._queues.get(topic)
        if numbers is None:
            numbers = self._queues[topic] = {}
        found = numbers.get(number)
        if found is None:
            floor = self.floors.get(topic, {}).get(number, 0)
            found = numbers[number] = ConsumeQueue(topic, number, floor)
        return found

    def find_queue(self, topic: str, number: int) -> ConsumeQueue | None:
        """A queue that exists already."""
        return self._queues.get(topic, {}).get(number)

    def end_of(self, topic: str, number: int) -> int | None:
        """The offset after a queue's newest message; ``None`` if the queue does not exist."""
        found = self.find_queue(topic, number)
        return None if found is None else found.max_offset

    def queues_of(self, topic: str) -> list[ConsumeQueue]:
        """A topic's existing queues."""
        return list(self._queues.get(topic, {}).values())

    def all_queues(self) -> Iterator[ConsumeQueue]:
        """All existing queues."""
        for numbers in self._queues.values():
            yield from numbers.values()

    def name_queues(
        self, floors: Mapping[str, Mapping[int, int]], topics: Mapping[str, int]
    ) -> None:
        """Create the queues of the saved tables: those with floors, and each topic's number of
        queues.
        """
        self.floors = floors
        for topic, numbers in floors.items():
            for number in numbers:
                self.queue(topic, number)
        for topic, count in topics.items():
            for number in range(count):
                self.queue(topic, number)

    # Appending

    def append(
        self,
        queue: ConsumeQueue,
        postmark: Postmark,
        flag: int,
        body: bytes,
        tail: bytes,
        tags_code: int,
        key_hashes: tuple[int, ...],
    ) -> tuple[int, int]:
        """Stage one record and return its queue offset and its log position.

        ``tail`` is topic and properties as :func:`txmq.protocol.record.tail_of` writes them.
        This runs once for every message, so the arguments are positional and there is no object
        for the record.
        """
        log = self._log
        position = log.next_position
        offset = queue.next_offset
        head, size = records.head_of(
            queue.number, flag, offset, position, postmark, body, len(tail)
        )
        # Assigned last: a record that cannot be packed must not leave a gap.
        queue.next_offset = offset + 1
        log.last_ms = postmark[3]
        log.stage((head, body, tail), size)
        checksum = crc32(tail, crc32(body, crc32(head)))
        self.staged.append((queue, position, size, tags_code, checksum, key_hashes))
        return offset, position

    def stage(
        self,
        queue: ConsumeQueue,
        pieces: tuple[bytes, ...],
        size: int,
        tags_code: int,
        checksum: int,
        key_hashes: tuple[int, ...],
    ) -> None:
        """Stage bytes that name their own position, and an entry for them."""
        position = self._log.next_position
        self._log.stage(pieces, size)
        queue.next_offset += 1
        self.staged.append((queue, position, size, tags_code, checksum, key_hashes))

    def take_back(self, staged: list[Staged]) -> None:
        """Free the offsets again, because the write failed."""
        for entry in staged:
            entry[0].next_offset -= 1

    def publish(self, staged: list[Staged]) -> None:
        """Make entries visible to readers."""
        keys: list[int] = []
        positions: list[int] = []
        pack = ENTRY.pack
        for queue, position, size, tags_code, checksum, key_hashes in staged:
            queue.publish(pack(position, size, tags_code, checksum))
            for hashed in key_hashes:
                keys.append(hashed)
                positions.append(position)
        self.keys.extend(keys, positions)

    def restore_keys(self, hashes: Sequence[int], position: int) -> None:
        """Add the keys of a record found at a position of the log."""
        self.keys.extend(hashes, [position] * len(hashes))

    # Retention

    def floors_from(self, segment: int) -> dict[str, dict[int, int]]:
        """Each queue's oldest offset after the deletion of the segments before this one."""
        floors: dict[str, dict[int, int]] = {}
        for queue in self.all_queues():
            if queue.max_offset:  # A queue that never held a message also starts at 0.
                floors.setdefault(queue.topic, {})[queue.number] = queue.min_offset_from(segment)
        return floors

    def drop_before_segment(self, segment: int) -> None:
        """Drop the entries and keys of deleted segments."""
        self.keys.drop_before_segment(segment)
        for queue in self.all_queues():
            queue.drop_before_segment(segment)
            queue.raise_floor(queue.min_offset)

    def forget_topic(self, topic: str) -> dict[int, int]:
        """Hide a topic's messages for good; returns the floors that hide them after a restart."""
        floors: dict[int, int] = {}
        for queue in self.queues_of(topic):
            # Messages that are not durable yet count as sent afterwards. If their write fails,
            # their offsets are assigned again, and a floor above them would hide the new messages.
            queue.raise_floor(queue.max_offset)
            floors[queue.number] = queue.floor
        return floors
