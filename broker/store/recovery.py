"""Bring the indexes up to the log's end, cut what a crash tore, and refuse what is damaged.

Each segment is indexed as far as its chunks reach; the rest is scanned. A crash leaves at most the
stretch since the last checkpoint to scan, so the cost of a restart follows that distance and not
the size of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from broker.store.segment import Extent, Segments
from txmq.errors import CorruptRecord
from txmq.protocol.checksum import crc32
from txmq.protocol.span import HEAD_BYTES, Found, found_in, heads_in, read_head

__all__ = ["Scan", "scan"]

_WINDOW: Final = 4 * 1024 * 1024


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
        for record, where, data in found_in(payload, at + HEAD_BYTES):
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


def _refuse_damage(segments: Segments, bad: int) -> None:
    """Look behind a bad span for one that declares it durable."""
    goes_on_at = segments.goes_on_at(bad)
    for extent in segments.extents():
        at = max(bad + 1, extent.start)
        while at < extent.end:
            window = segments.read(at, _WINDOW + HEAD_BYTES)
            for head in heads_in(window, at):
                if head.durable > bad:
                    reason = (
                        f"a later write, at {head.position}, found it whole on the disk; restore "
                        "the file from a backup, or cut the log there by hand to lose what follows"
                        if goes_on_at is None
                        else f"the log goes on at {goes_on_at}: a file between is missing or was "
                        "cut; put it back, or restore the directory from a backup"
                    )
                    raise CorruptRecord(bad, reason)
            at += _WINDOW
