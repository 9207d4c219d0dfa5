"""Selects the messages for a pull: from an offset of a queue on, by filter, within limits."""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum
from itertools import accumulate, pairwise
from struct import Struct
from typing import Final, NamedTuple

from txmq.errors import CorruptRecord
from txmq.limits import (
    FILTER_SCAN_BYTES_MAX,
    FILTER_WORK_MAX,
    PULL_BYTES_MAX,
    PULL_MESSAGES_MAX,
    PULL_SCAN_MAX,
)
from txmq.protocol import properties
from txmq.protocol import record as records
from txmq.protocol.checksum import crc32
from txmq_broker.core.filter.condition import Condition
from txmq_broker.core.filter.filters import Filter, TagFilter
from txmq_broker.store.equal_records import checksums_of
from txmq_broker.store.message_store import MessageStore
from txmq_broker.store.queue_store import (
    ENTRY,
    Columns,
    ConsumeQueue,
    Entry,
    checksums_in,
    columns_of,
)

__all__ = ["FetchOutcome", "FetchResult", "fetch"]

_PLACE: Final = Struct(">qi")
"""The position and the size in a packed entry."""
_LOW: Final = 0xFFFFFFFF
_OPERAND_CHARS: Final = 1_024
"""One operand costs as much time as a scan of this many characters."""
_READ_TOGETHER: Final = 4
"""Records are read in one go if they span no more than four times their total size."""


class FetchOutcome(Enum):
    """The result of a pull, with RocketMQ's names."""

    FOUND = "FOUND"
    NO_MATCH = "NO_MATCHED_MESSAGE"
    AT_END = "OFFSET_OVERFLOW_ONE"
    PAST_END = "OFFSET_OVERFLOW_BADLY"
    TOO_SMALL = "OFFSET_TOO_SMALL"
    EMPTY = "NO_MESSAGE_IN_QUEUE"
    DAMAGED = "MESSAGE_DAMAGED"
    """RocketMQ has no such result: it delivers whatever it reads."""


_FOUND: Final = FetchOutcome.FOUND
"""A name for the hot path, because looking up an enum member is slow."""


class FetchResult(NamedTuple):
    """The messages for a pull, and the next offset."""

    outcome: FetchOutcome
    next_offset: int
    records: list[bytes]
    """The bytes of the records in pieces; adjacent records may share a piece."""
    messages: int = 0
    """The number of records."""
    damage: CorruptRecord | None = None
    """What is wrong with the message at the next offset, if the pull begins with it."""


def fetch(
    store: MessageStore,
    queue: ConsumeQueue,
    offset: int,
    count_max: int,
    bytes_max: int = PULL_BYTES_MAX,
    wanted: Filter | None = None,
) -> FetchResult:
    """Read a queue from an offset on, up to the first damaged message.

    Every record is compared with the checksum in its queue entry, which covers all of its bytes.

    Raises:
        CorruptRecord: The queue's index is damaged at this offset.
    """
    low, high = queue.min_offset, queue.max_offset
    if high in (0, low):
        if offset == high:
            return FetchResult(FetchOutcome.AT_END if high else FetchOutcome.EMPTY, offset, [])
        return FetchResult(
            FetchOutcome.PAST_END if offset > high else FetchOutcome.TOO_SMALL, high, []
        )
    if offset < low:
        return FetchResult(FetchOutcome.TOO_SMALL, low, [])
    if offset >= high:
        at_end = offset == high
        return FetchResult(FetchOutcome.AT_END if at_end else FetchOutcome.PAST_END, high, [])
    count_max = max(1, min(count_max, PULL_MESSAGES_MAX))
    bytes_max = max(1, min(bytes_max, PULL_BYTES_MAX))
    if wanted is None:
        found = _take_all(store, queue, offset, count_max, bytes_max)
    elif isinstance(wanted, Condition):
        found = _sift(store, queue, offset, count_max, bytes_max, wanted)
    else:
        found = _collect(store, queue, offset, count_max, bytes_max, wanted)
    return found


def _take_all(
    store: MessageStore, queue: ConsumeQueue, offset: int, count_max: int, bytes_max: int
) -> FetchResult:
    """Take the next messages, without a filter."""
    found: list[bytes] = []
    count, at = 0, offset
    while count < count_max and bytes_max > 0:
        entries = _entries_at(queue, at, count_max - count, offset)
        if not entries:
            at = queue.next_kept(at)
            break
        data = _read_equal(store, entries, bytes_max)
        if data is not None:
            found.append(data)
            many = len(entries) // ENTRY.size
            count += many
            at += many
            bytes_max -= len(data)
            continue
        columns = columns_of(entries)
        sizes = columns[1]
        total = sum(sizes)
        if total > bytes_max:
            # The first message of an answer may have any size; the others must fit the limit.
            fitting = bisect_right(list(accumulate(sizes)), bytes_max) or int(not found)
            if not fitting:
                break
            positions, sizes, codes, checksums = columns
            columns = positions[:fitting], sizes[:fitting], codes[:fitting], checksums[:fitting]
        pieces, many, damage = _read_together(store, queue, columns)
        found += pieces
        count += many
        at += many
        bytes_max -= total
        if damage is not None:
            return _up_to_damage(offset, at, found, count, damage)
    return FetchResult(_FOUND if found else FetchOutcome.NO_MATCH, at, found, count)


def _collect(
    store: MessageStore,
    queue: ConsumeQueue,
    offset: int,
    count_max: int,
    bytes_max: int,
    wanted: TagFilter,
) -> FetchResult:
    """Collect by tags; their hashes tell which messages to read."""
    found: list[bytes] = []
    at, end = offset, offset + PULL_SCAN_MAX
    while at < end:
        entries = list(ENTRY.iter_unpack(_entries_at(queue, at, end - at, offset)))
        if not entries:
            at = queue.next_kept(at)
            break
        room = count_max - len(found)
        # The first message of an answer may have any size; the others must fit the limit.
        taken, looked_at, size = _take(entries, room, bytes_max, wanted, is_first=not found)
        is_full = looked_at < len(entries) and len(taken) < room
        read, damage = _read(store, queue, taken, size)
        bytes_max -= size
        found += [record for record in read if _is_tagged(record, wanted)]
        if damage is not None:
            at += entries.index(taken[len(read)])
            return _up_to_damage(offset, at, found, len(found), damage)
        at += looked_at
        if is_full or len(found) >= count_max or (found and bytes_max <= 0):
            break
    outcome = FetchOutcome.FOUND if found else FetchOutcome.NO_MATCH
    return FetchResult(outcome, at, found, len(found))


def _sift(
    store: MessageStore,
    queue: ConsumeQueue,
    offset: int,
    count_max: int,
    bytes_max: int,
    wanted: Condition,
) -> FetchResult:
    """Collect by a condition, which means to read every message."""
    found: list[bytes] = []
    at, end = offset, offset + PULL_SCAN_MAX
    unread, work = FILTER_SCAN_BYTES_MAX, FILTER_WORK_MAX
    while at < end and unread > 0:
        packed = _entries_at(queue, at, min(end - at, PULL_MESSAGES_MAX), offset)
        entries = list(ENTRY.iter_unpack(packed))
        if not entries:
            at = queue.next_kept(at)
            break
        some, _, total = _take(entries, len(entries), PULL_BYTES_MAX, None, is_first=True)
        read, damage = _read(store, queue, some, total)
        for record in read:
            text = records.property_text_of(record)
            size = len(record)
            unread -= size
            work -= (_OPERAND_CHARS + len(text)) * wanted.operands
            if wanted.admits(text):
                if found and size > bytes_max:
                    return FetchResult(FetchOutcome.FOUND, at, found, len(found))
                found.append(record)
                bytes_max -= size
            at += 1
            if len(found) == count_max or work <= 0 or (found and bytes_max <= 0):
                outcome = FetchOutcome.FOUND if found else FetchOutcome.NO_MATCH
                return FetchResult(outcome, at, found, len(found))
        if damage is not None:
            return _up_to_damage(offset, at, found, len(found), damage)
    outcome = FetchOutcome.FOUND if found else FetchOutcome.NO_MATCH
    return FetchResult(outcome, at, found, len(found))


def _entries_at(queue: ConsumeQueue, at: int, count: int, start: int) -> bytes:
    """Packed entries; none where the index is damaged, unless the pull begins there.

    Raises:
        CorruptRecord: The index is damaged where the pull begins.
    """
    try:
        return queue.packed(at, count)
    except CorruptRecord:
        if at == start:
            raise
        return b""  # The next pull begins here.


def _up_to_damage(
    start: int, at: int, found: list[bytes], count: int, damage: CorruptRecord
) -> FetchResult:
    """The result of a pull that met a damaged message: the next pull begins with it."""
    if at > start:
        return FetchResult(_FOUND if found else FetchOutcome.NO_MATCH, at, found, count)
    return FetchResult(FetchOutcome.DAMAGED, at, [], 0, damage)


def _take(
    entries: list[Entry],
    count_max: int,
    bytes_max: int,
    wanted: TagFilter | None,
    *,
    is_first: bool,
) -> tuple[list[Entry], int, int]:
    """The entries to read, the number of entries scanned for them, and the bytes to read."""
    if wanted is None:
        total = sum([entry[1] for entry in entries])
        if total <= bytes_max:
            return entries, len(entries), total
    taken: list[Entry] = []
    room = bytes_max
    for looked_at, entry in enumerate(entries):
        if wanted is not None and entry[2] & _LOW not in wanted.hashes:
            continue
        is_first = is_first and not taken
        if len(taken) == count_max or (entry[1] > bytes_max and not is_first):
            return taken, looked_at, room - bytes_max
        taken.append(entry)
        bytes_max -= entry[1]
    return taken, len(entries), room - bytes_max


def _is_tagged(data: bytes, wanted: TagFilter) -> bool:
    return properties.find(records.property_text_of(data), properties.TAGS) in wanted.words


def _read_equal(store: MessageStore, entries: bytes, bytes_max: int) -> bytes | None:
    """The records of these packed entries in one piece, if they are adjacent and equal in size.

    Only the first and the last entry are decoded; the checksums prove the rest.
    """
    count = len(entries) // ENTRY.size
    start, size = _PLACE.unpack_from(entries)
    last = _PLACE.unpack_from(entries, len(entries) - ENTRY.size)
    if last != (start + (count - 1) * size, size) or not 0 < count * size <= bytes_max:
        return None
    data = _bytes_at(store, start, count * size)
    if len(data) != count * size or checksums_of(data, size, count) != checksums_in(entries):
        return None
    return data


def _read_together(
    store: MessageStore, queue: ConsumeQueue, columns: Columns
) -> tuple[list[bytes], int, CorruptRecord | None]:
    """The records of these entries and their number, and the damage that ended the read.

    The records of a batch come in one piece, because they are adjacent.
    """
    positions, sizes, _, checksums = columns
    start, total = positions[0], sum(sizes)
    if positions[-1] + sizes[-1] - start == total:
        data = _bytes_at(store, start, total)
        if len(data) == total and _checksums_in(data, sizes) == checksums:
            return [data], len(sizes), None
    read, damage = _read(store, queue, list(zip(*columns, strict=True)), total)
    return read, len(read), damage


def _checksums_in(data: bytes, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The checksums of adjacent records with these sizes."""
    ends = accumulate(sizes, initial=0)
    return tuple([crc32(data[start:end]) for start, end in pairwise(ends)])


def _read(
    store: MessageStore, queue: ConsumeQueue, entries: list[Entry], total: int
) -> tuple[list[bytes], CorruptRecord | None]:
    """The records of these entries up to the first damaged one, and its damage."""
    if not entries:
        return [], None
    start = entries[0][0]
    stretch = entries[-1][0] + entries[-1][1] - start
    if stretch <= _READ_TOGETHER * total:
        data = _bytes_at(store, start, stretch)
        if len(data) == stretch:
            return _cut(store, queue, data, start, entries)
    # The records are far apart, in two files of the log, or partly unreadable.
    found: list[bytes] = []
    for entry in entries:
        data = _bytes_at(store, entry[0], entry[1])
        record, damage = _cut(store, queue, data, entry[0], [entry])
        if damage is not None:
            return found, damage
        found += record
    return found, None


def _cut(
    store: MessageStore, queue: ConsumeQueue, data: bytes, start: int, entries: list[Entry]
) -> tuple[list[bytes], CorruptRecord | None]:
    """Cut records from a piece of the log, up to the first damaged one."""
    found: list[bytes] = []
    try:
        for entry in entries:
            position, size, _, checksum = entry
            at = position - start
            record = data[at : at + size]
            if crc32(record) != checksum:
                # A committed half message is assembled from two records; damage raises.
                record = store.halves.shown(queue, entry)
            found.append(record)
    except CorruptRecord as error:
        return found, error
    return found, None


def _bytes_at(store: MessageStore, position: int, size: int) -> bytes:
    """The bytes of several records; empty if the disk cannot read some of them."""
    try:
        return store.read(position, size)
    except CorruptRecord:
        return b""
