"""Bring the indexes up to the log's end, cut what a crash tore, and refuse what is damaged.

Each segment is indexed as far as its chunks reach; the rest is scanned. A crash leaves at most the
stretch since the last checkpoint to scan, so the cost of a restart follows that distance and not
the size of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from broker.store.decision import MARKER, Decision
from broker.store.segment import Extent, Segments
from broker.store.span import HEAD_BYTES, MAGIC, read_head
from txmq.errors import CorruptRecord, RemoteProtocolError
from txmq.protocol import record as records
from txmq.protocol.checksum import crc32
from txmq.protocol.record import Record

__all__ = ["Found", "Scan", "scan"]

_MAGIC_BYTES: Final = Struct(">I").pack(MAGIC)
_WINDOW: Final = 4 * 1024 * 1024

Found: TypeAlias = Record | Decision


class Scan(NamedTuple):
    """What a scan of one segment found."""

    records: int
    end: int
    is_torn: bool


def scan(
    segments: Segments, extent: Extent, start: int, found: Callable[[Found, int, bytes], None]
) -> Scan:
    """Read the spans of one segment from a position on.

    Args:
        segments: The log.
        extent: The segment.
        start: Where a span begins, from which on nothing is indexed.
        found: Takes each record: read, its position, and as it lies in the log.

    Raises:
        CorruptRecord: A span is damaged that was durable, or holds what is no record.
    """
    at, count = start, 0
    while at < extent.end:
        payload = _payload(segments, at, extent.end)
        if payload is None:
            _refuse_damage(segments, at)
            return Scan(count, at, is_torn=True)
        for record, where, data in _records(payload, at):
            found(record, where, data)
            count += 1
        at += HEAD_BYTES + len(payload)
    return Scan(count, at, is_torn=False)


def _payload(segments: Segments, at: int, end: int) -> bytes | None:
    head = read_head(segments.read(at, HEAD_BYTES), 0, at)
    if head is None or at + head.size > end:
        return None
    payload = segments.read(at + HEAD_BYTES, head.size - HEAD_BYTES)
    if len(payload) != head.size - HEAD_BYTES or crc32(payload) != head.checksum:
        return None
    return payload


def _records(payload: bytes, span_at: int) -> Iterator[tuple[Found, int, bytes]]:
    at = 0
    while at < len(payload):
        where = span_at + HEAD_BYTES + at
        if payload[at + 4 : at + 8] == MARKER:
            size = int.from_bytes(payload[at : at + 4], "big")
            data = payload[at : at + size]
            yield Decision.unpack(data, where), where, data
            at += size
            continue
        try:
            record, after = records.unpack(payload, at)
        except RemoteProtocolError as problem:
            # The checksum holds, so these are the bytes that were written: a fault of the writer.
            raise CorruptRecord(where, str(problem)) from problem
        if record.position != where:
            raise CorruptRecord(where, f"a record says it lies at {record.position}")
        yield record, where, payload[at:after]
        at = after


def _refuse_damage(segments: Segments, bad: int) -> None:
    """Look behind a bad span for one that declares it durable."""
    goes_on_at = segments.goes_on_at(bad)
    for extent in segments.extents():
        at = max(bad + 1, extent.start)
        while at < extent.end:
            window = segments.read(at, _WINDOW + HEAD_BYTES)
            here = window.find(_MAGIC_BYTES)
            while here >= 0:
                # The magic number stands behind the head's first word.
                head = read_head(window, here - 4, at + here - 4) if here >= 4 else None
                if head is not None and head.durable > bad:
                    reason = (
                        f"a later write, at {head.position}, found it whole on the disk; restore "
                        "the file from a backup, or cut the log there by hand to lose what follows"
                        if goes_on_at is None
                        else f"the log goes on at {goes_on_at}: a file between is missing or was "
                        "cut; put it back, or restore the directory from a backup"
                    )
                    raise CorruptRecord(bad, reason)
                here = window.find(_MAGIC_BYTES, here + 1)
            at += _WINDOW
