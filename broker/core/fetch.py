"""Find the messages of one queue that a pull gets: from an offset on, by tag, within bounds."""

from __future__ import annotations

import zlib
from enum import Enum
from struct import Struct
from typing import Final, NamedTuple

from broker.store.consume_queue import ConsumeQueue, Entry
from broker.store.message_store import MessageStore
from txmq.errors import CorruptRecord
from txmq.limits import PULL_BYTES_MAX, PULL_MESSAGES_MAX, PULL_SCAN_MAX
from txmq.protocol import java, properties
from txmq.protocol import record as records
from txmq.protocol.bodies import Subscription

__all__ = ["Fetched", "Outcome", "TagFilter", "fetch", "tag_filter"]

_LOW: Final = 0xFFFFFFFF
_CHECKED: Final = Struct(">III16xq48xI")
_BODY_AT: Final = 88
_V6_HOSTS: Final = 0x30
_READ_TOGETHER: Final = 4
"""Records spread over at most so many times their size are read in one go and cut apart."""


class Outcome(Enum):
    """What a pull came to."""

    FOUND = "FOUND"
    NO_MATCH = "NO_MATCHED_MESSAGE"
    AT_END = "OFFSET_OVERFLOW_ONE"
    PAST_END = "OFFSET_OVERFLOW_BADLY"
    TOO_SMALL = "OFFSET_TOO_SMALL"
    EMPTY = "NO_MESSAGE_IN_QUEUE"


class Fetched(NamedTuple):
    """Messages, and where to go on."""

    outcome: Outcome
    next_offset: int
    records: list[bytes]


class TagFilter(NamedTuple):
    """Tags somebody wants: hashes to look at first, the words to be sure."""

    hashes: frozenset[int]
    words: frozenset[str]


def tag_filter(subscription: Subscription) -> TagFilter | None:
    """The filter of a subscription by tags, or ``None`` where it wants everything."""
    text = subscription.sub_string.strip()
    if subscription.expression_type not in ("", "TAG") or text in ("", "*"):
        return None
    words = frozenset(word for part in text.split("||") if (word := part.strip()))
    if not words or "*" in words:
        return None
    return TagFilter(frozenset(java.string_hash(word) & _LOW for word in words), words)


def fetch(
    store: MessageStore,
    queue: ConsumeQueue,
    offset: int,
    count_max: int,
    bytes_max: int = PULL_BYTES_MAX,
    wanted: TagFilter | None = None,
) -> Fetched:
    """Read a queue from an offset on.

    Raises:
        CorruptRecord: A record is not what its queue and its checksum say.
    """
    low, high = queue.min_offset, queue.max_offset
    if high in (0, low):
        if offset == high:
            return Fetched(Outcome.AT_END if high else Outcome.EMPTY, offset, [])
        return Fetched(Outcome.PAST_END if offset > high else Outcome.TOO_SMALL, high, [])
    if offset < low:
        return Fetched(Outcome.TOO_SMALL, low, [])
    if offset >= high:
        at_end = offset == high
        return Fetched(Outcome.AT_END if at_end else Outcome.PAST_END, high, [])
    count_max = max(1, min(count_max, PULL_MESSAGES_MAX))
    bytes_max = max(1, min(bytes_max, PULL_BYTES_MAX))
    return _collect(store, queue, offset, count_max, bytes_max, wanted)


def _collect(
    store: MessageStore,
    queue: ConsumeQueue,
    offset: int,
    count_max: int,
    bytes_max: int,
    wanted: TagFilter | None,
) -> Fetched:
    found: list[bytes] = []
    scanned = size = 0
    while scanned < PULL_SCAN_MAX:
        ask = count_max - len(found) if wanted is None else PULL_SCAN_MAX - scanned
        entries = queue.read(offset + scanned, ask)
        if not entries:
            break
        picked: list[Entry] = []
        full = False
        for entry in entries:
            if wanted is None or entry.tags_code & _LOW in wanted.hashes:
                if (found or picked) and size + entry.size > bytes_max:
                    full = True
                    break
                picked.append(entry)
                size += entry.size
            scanned += 1
            if len(found) + len(picked) >= count_max:
                full = True
                break
        datas = _read(store, picked)
        found += datas if wanted is None else [each for each in datas if _is_tagged(each, wanted)]
        if full:
            break
    outcome = Outcome.FOUND if found else Outcome.NO_MATCH
    return Fetched(outcome, offset + scanned, found)


def _is_tagged(data: bytes, wanted: TagFilter) -> bool:
    record, _ = records.unpack(data)
    return properties.find(record.properties, properties.TAGS) in wanted.words


def _read(store: MessageStore, entries: list[Entry]) -> list[bytes]:
    if not entries:
        return []
    start, last = entries[0].position, entries[-1]
    stretch = last.position + last.size - start
    needed = sum([entry.size for entry in entries])
    if stretch <= _READ_TOGETHER * needed:
        data = store.read(start, stretch)
        if len(data) == stretch:
            return [_checked(data[at : at + size], at + start) for at, size in
                    [(entry.position - start, entry.size) for entry in entries]]  # fmt: skip
    # Far apart, or in two files of the log.
    return [_checked(store.read(each.position, each.size), each.position) for each in entries]


def _checked(data: bytes, position: int) -> bytes:
    if len(data) >= records.SMALLEST:
        size, magic, crc, where, body_size = _CHECKED.unpack_from(data)
        if size == len(data) and magic == records.MAGIC and where == position:
            if data[records.SYS_FLAG_AT + 3] & _V6_HOSTS:
                records.unpack(data)
                return data
            if zlib.crc32(data[_BODY_AT : _BODY_AT + body_size]) & 0x7FFFFFFF == crc:
                return data
    raise CorruptRecord(position, "a message differs from what was stored")
