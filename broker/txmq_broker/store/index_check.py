"""Compares index files with the log while the log is read.

The check collects the entries of the part of the log that a chunk covers, compares them with the
chunk, and drops them. So memory holds the entries of only one chunk, however long the log is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from txmq.errors import CorruptRecord
from txmq.protocol.checksum import crc32
from txmq.protocol.record import PREPARED, TYPE_BITS, Record
from txmq.protocol.span import AcceptedLoss, Decision, DecisionKind, Found
from txmq.protocol.topics import HALF_TOPIC, OP_TOPIC, PARKED_TOPIC, WAITING_TOPICS
from txmq_broker.store.index_file import Chunk, IndexFile
from txmq_broker.store.log.reader import LogReader
from txmq_broker.store.pending_transactions import PendingTransactions
from txmq_broker.store.queue_store import (
    ENTRY,
    HASH_BYTES,
    HIDDEN,
    POSITION_BYTES,
    Entry,
    key_hashes_in,
    tags_code_in,
    topic_seed,
)

__all__ = ["Compared", "HalfFinder", "Indexed", "QueueKey", "RangeEntries", "indexed"]

_POSITION_BITS = 64

QueueKey: TypeAlias = tuple[str, int]
"""A topic and the number of one of its queues."""


class Indexed(NamedTuple):
    """One entry that the index holds for a record of the log."""

    queue: QueueKey
    offset: int
    entry: Entry
    keys: tuple[int, ...]
    """The hashes of the keys by which the record can be found."""
    must_have_keys: bool
    """True if the index always has these keys; it may lack the keys of the broker's own records."""


class Compared(NamedTuple):
    """The differences between a chunk and the log."""

    differences: list[str]
    lost: list[tuple[QueueKey, int, int]]
    """Entries of the chunk for records that the log has lost: queue, offset, position."""


HalfFinder: TypeAlias = Callable[[int], tuple[Record, bytes] | None]
"""Returns the half message at a position, or ``None`` if it cannot be read."""


def indexed(find_half: HalfFinder, found: Found, position: int, data: bytes) -> Iterator[Indexed]:
    """The entries that the index holds for one record, as recovery makes them."""
    if isinstance(found, AcceptedLoss):
        return
    if isinstance(found, Decision):
        hidden = crc32(data) ^ HIDDEN
        entry = (position, len(data), found.half_offset, hidden)
        yield Indexed((OP_TOPIC, 0), found.offset, entry, (), must_have_keys=True)
        half = find_half(found.half_position) if found.queue_offset >= 0 else None
        if half is not None:
            record, half_data = half
            entry = (
                position,
                len(half_data),
                tags_code_in(record.properties),
                crc32(half_data) ^ HIDDEN,
            )
            queue = (record.topic, record.queue_id)
            yield Indexed(queue, found.queue_offset, entry, _keys(record), must_have_keys=True)
        return
    if found.sys_flag & TYPE_BITS == PREPARED:
        entry = (position, len(data), tags_code_in(found.properties), crc32(data) ^ HIDDEN)
        yield Indexed((HALF_TOPIC, 0), found.queue_offset, entry, (), must_have_keys=True)
        return
    is_waiting = found.topic in WAITING_TOPICS
    code = found.prepared_position if is_waiting else tags_code_in(found.properties)
    yield Indexed(
        (found.topic, found.queue_id),
        found.queue_offset,
        (position, len(data), code, crc32(data)),
        _keys(found),
        must_have_keys=not is_waiting and found.topic != PARKED_TOPIC,
    )


def _keys(record: Record) -> tuple[int, ...]:
    return key_hashes_in(topic_seed(record.topic), record.properties)


class RangeEntries:
    """The entries and changes of the part of the log that one chunk covers."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._entries: dict[QueueKey, dict[int, bytes]] = {}
        self._keys: set[int] = set()
        """The hash and the position of each key as one number, which takes less memory than two."""
        self._optional_keys: set[int] = set()
        self._changes = PendingTransactions()

    def add(self, entry: Indexed) -> None:
        """Add an entry."""
        self._entries.setdefault(entry.queue, {})[entry.offset] = ENTRY.pack(*entry.entry)
        keys = self._keys if entry.must_have_keys else self._optional_keys
        for hashed in entry.keys:
            keys.add(hashed << _POSITION_BITS | entry.entry[0])

    def note(self, found: Found, position: int) -> None:
        """Add a record's change to the open transactions."""
        if isinstance(found, Decision):
            if found.kind is DecisionKind.PARKED:
                self._changes.note_parked(position, found.half_position)
            else:
                self._changes.note_closed(position, found.half_position)
        elif isinstance(found, Record) and found.sys_flag & TYPE_BITS == PREPARED:
            self._changes.opened.append(position)

    def compare(
        self,
        index: IndexFile,
        chunk: Chunk,
        gaps: list[tuple[int, int]],
        floors: Mapping[str, Mapping[int, int]],
    ) -> Compared:
        """Compare everything with a chunk.

        Args:
            index: The file of the chunk.
            chunk: The chunk; its body is intact.
            gaps: Parts of the log that could not be read, by start and end.
            floors: Offsets below which entries may have been left out, by topic and queue.

        Raises:
            CorruptRecord: The index file cannot be read.
        """
        result = Compared([], [])
        for run, block in index.blocks(chunk):
            data = block.file.read(block.at, block.entries * ENTRY.size)
            queue = (run.topic, run.number)
            mine = self._entries.pop(queue, {})
            floor = floors.get(run.topic, {}).get(run.number, 0)
            self._compare_queue(queue, mine, run.first, data, gaps, floor, result)
        for (topic, number), left in self._entries.items():
            floor = floors.get(topic, {}).get(number, 0)
            result.differences.extend(
                f"it lacks offset {offset} of {topic}/{number}"
                for offset in left
                if offset >= floor
            )
        if not gaps:
            self._compare_keys(index, chunk, result)
            self._compare_changes(index, chunk, result)
        return result

    def _compare_queue(
        self,
        queue: QueueKey,
        mine: dict[int, bytes],
        first: int,
        data: bytes,
        gaps: list[tuple[int, int]],
        floor: int,
        result: Compared,
    ) -> None:
        topic, number = queue
        for offset, at in enumerate(range(0, len(data), ENTRY.size), first):
            theirs = data[at : at + ENTRY.size]
            expected = mine.pop(offset, None)
            if expected == theirs:
                continue
            entry = ENTRY.unpack(theirs)
            position = entry[0]
            if expected is None and any(start <= position < end for start, end in gaps):
                if not self._is_intact(entry):
                    result.lost.append((queue, offset, position))
            elif expected is None and not gaps:
                result.differences.append(
                    f"it names offset {offset} of {topic}/{number} at position {position}, "
                    "where the log has no such message"
                )
            elif expected is None:
                # A commit without a copy: the marker exists, and its half message is lost.
                result.lost.append((queue, offset, position))
            else:
                result.differences.append(
                    f"its entry for offset {offset} of {topic}/{number} is another than the log's"
                )
        result.differences.extend(
            f"it lacks offset {offset} of {topic}/{number}" for offset in mine if offset >= floor
        )

    def _is_intact(self, entry: Entry) -> bool:
        """Return true if a record in a damaged span is intact; the broker serves it."""
        position, size, _, checksum = entry
        try:
            found = crc32(self._log.read(position, size))
        except CorruptRecord:
            return False
        return found in (checksum, checksum ^ HIDDEN)

    def _compare_keys(self, index: IndexFile, chunk: Chunk, result: Compared) -> None:
        run = index.key_run(chunk)
        hashes = run.file.read(run.at, run.entries * HASH_BYTES)
        places = run.file.read(run.at + len(hashes), run.entries * POSITION_BYTES)
        pairs = zip(
            struct.unpack(f">{run.entries}I", hashes),
            struct.unpack(f">{run.entries}Q", places),
            strict=True,
        )
        theirs = {hashed << _POSITION_BITS | position for hashed, position in pairs}
        missing = self._keys - theirs
        foreign = theirs - self._keys - self._optional_keys
        if missing:
            result.differences.append(f"it lacks {len(missing)} keys of messages")
        if foreign:
            result.differences.append(f"it has {len(foreign)} keys that no message has")

    def _compare_changes(self, index: IndexFile, chunk: Chunk, result: Compared) -> None:
        mine = self._changes.changes_before(chunk.part.end)
        theirs = index.changes(chunk)
        if [sorted(part) for part in mine] != [sorted(part) for part in theirs]:
            result.differences.append("it names other open transactions than the log")
