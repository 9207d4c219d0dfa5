"""The spans of the log's files: the intact, the torn and the damaged ones.

A start loads the indexed part of each segment from its chunks and scans the rest. After a crash it
scans at most the part since the last checkpoint, so the cost of a restart depends on that distance
and not on the size of the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from txmq.errors import CorruptRecord, RemoteProtocolError
from txmq.protocol.checksum import crc32
from txmq.protocol.span import HEAD_BYTES, Found, SpanHead, found_in, heads_in, read_head
from txmq.runtime.disk import File
from txmq_broker.store.log.segments import Extent, Segments

__all__ = [
    "REPAIR_COMMAND",
    "Scan",
    "check_spans",
    "durable_behind",
    "heads_of",
    "last_head",
    "scan",
    "span_at",
    "whole_behind",
    "whole_spans",
]

REPAIR_COMMAND: Final = "txmq log verify --repair --data DIR"
"""The repair command in error texts."""

_WINDOW: Final = 4 * 1024 * 1024


class Scan(NamedTuple):
    """The result of a scan of one segment."""

    records: int
    end: int
    is_torn: bool
    last: tuple[int, int] | None
    """The position of the last intact span, and its checksum."""


def scan(
    segments: Segments,
    extent: Extent,
    start: int,
    found: Callable[[Found, int, bytes], None],
    proven: int | None = None,
) -> Scan:
    """Read the spans of one segment from a position on.

    Args:
        segments: The log.
        extent: The segment.
        start: The position of the first span that no index covers.
        found: Called with each record: decoded, its position, and its bytes.
        proven: Where the claims of heads end: what they call durable from this position on may
            not be. The heads of a copy were written by a leader, and tell what was durable there.

    Raises:
        CorruptRecord: A durable span is damaged, or holds an invalid record.
    """
    at, count, last = start, 0, None
    while at < extent.end:
        span = span_at(segments, at, extent.end)
        if span is None:
            if proven is None or at < proven:
                _refuse_damage(segments, at)
            return Scan(count, at, is_torn=True, last=last)
        head, payload = span
        for record, where, data in found_in(payload, at + HEAD_BYTES):
            found(record, where, data)
            count += 1
        last = (at, head.checksum)
        at += HEAD_BYTES + len(payload)
    return Scan(count, at, is_torn=False, last=last)


def span_at(segments: Segments, at: int, end: int) -> tuple[SpanHead, bytes] | None:
    """The head and the payload of the intact span from a position to ``end`` at most, or ``None``.

    Raises:
        CorruptRecord: The disk cannot read it, or another broker wrote it.
    """
    head = read_head(segments.read(at, HEAD_BYTES), 0, at)
    if head is None or at + head.size > end:
        return None
    if head.log != segments.log_id:
        raise CorruptRecord(
            at,
            f"the log {head.log:016x} of another broker goes on there, and this directory holds "
            f"the log {segments.log_id:016x}; put the right file back, or restore the directory "
            "from a backup",
        )
    payload = segments.read(at + HEAD_BYTES, head.size - HEAD_BYTES)
    if len(payload) != head.size - HEAD_BYTES or crc32(payload) != head.checksum:
        return None
    return head, payload


def check_spans(
    data: bytes, position: int, log_id: int, oldest: int, newest: int
) -> list[SpanHead]:
    """The heads of whole spans that came from another copy of the log.

    Args:
        data: The spans.
        position: Where the first one begins.
        log_id: The log they belong to.
        oldest: The epoch of the span before them.
        newest: The epoch of the leader that sent them.

    Raises:
        RemoteProtocolError: They are not an unbroken sequence of intact spans of this log, or their
            epochs go back.
    """
    heads: list[SpanHead] = []
    whole = memoryview(data)
    at = 0
    while at < len(data):
        head = read_head(data, at, position + at)
        if head is None or head.log != log_id or at + head.size > len(data):
            raise RemoteProtocolError(f"no span of this log begins at {position + at}")
        if not oldest <= head.epoch <= newest:
            raise RemoteProtocolError(
                f"the span at {head.position} has the epoch {head.epoch}, the one before it "
                f"{oldest}, and its sender {newest}"
            )
        if crc32(whole[at + HEAD_BYTES : at + head.size]) != head.checksum:
            raise RemoteProtocolError(f"the span at {head.position} differs from its checksum")
        heads.append(head)
        oldest = head.epoch
        at += head.size
    return heads


def heads_of(segments: Segments, extent: Extent, start: int | None = None) -> Iterator[SpanHead]:
    """The heads of the spans of an intact file, in order, from the one at ``start`` on.

    Raises:
        CorruptRecord: No span begins where the one before it ends.
    """
    at = extent.start if start is None else start
    while at < extent.end:
        first, window = at, segments.read(at, _WINDOW)
        while at < extent.end and (head := read_head(window, at - first, at)) is not None:
            yield head
            at += head.size
        if at == first:
            raise CorruptRecord(at, "no span begins there")


def last_head(segments: Segments, known: int) -> SpanHead | None:
    """The head of the last span of an intact log; ``None`` if it has none.

    Args:
        segments: The log.
        known: The start of a span near its end; a wrong position only costs time.
    """
    for extent in reversed(segments.extents()):
        start = None
        if extent.start < known < extent.end:
            near = read_head(segments.read(known, HEAD_BYTES), 0, known)
            start = known if near is not None and near.log == segments.log_id else None
        newest = deque(heads_of(segments, extent, start), maxlen=1)
        if newest:
            return newest[0]
    return None


def whole_spans(
    file: File, extent: Extent, start: int, log_id: int, window: int | None = None
) -> Iterator[tuple[bytes, SpanHead]]:
    """The bytes of one file from a position on, up to the first span that is not intact.

    They come in large pieces, or in pieces of a given size, each with the head of its last span.
    The file may grow during the read; the pieces end before a span that is still being written.
    """
    window = window or _WINDOW
    at, size = start, window
    while at < extent.end:
        data = file.read(at - extent.start, min(size, extent.end - at))
        view, here, last = memoryview(data), 0, None
        while (head := read_head(data, here, at + here)) is not None:
            after = here + head.size
            if after > len(data) or head.log != log_id:
                break
            if crc32(view[here + HEAD_BYTES : after]) != head.checksum:
                break
            here, last = after, head
        if last is not None:
            yield data[:here], last
            at, size = at + here, window
        elif head is not None and size < head.size <= extent.end - at:
            size = head.size
        else:
            return


def durable_behind(segments: Segments, bad: int) -> int | None:
    """Return the position of a later span that declares the bytes at ``bad`` durable, or ``None``
    if no span does: then a crash may have torn them.

    Raises:
        CorruptRecord: The disk cannot read the following bytes.
    """
    for extent in segments.extents():
        for head in _heads(segments, bad + 1, extent):
            if head.durable > bad:
                return head.position
    return None


def whole_behind(segments: Segments, bad: int, extent: Extent) -> int:
    """Return the position of the next intact span after a bad one, or the end of the file.

    Raises:
        CorruptRecord: The disk cannot read the following bytes.
    """
    head = read_head(segments.read(bad, HEAD_BYTES), 0, bad)
    if head is not None:
        # A body may contain bytes that look like a span; the bad span's own head leads past its
        # bodies.
        behind = bad + head.size
        return behind if behind <= segments.reach(extent) else extent.end
    for found in _heads(segments, bad + 1, extent):
        if span_at(segments, found.position, extent.end) is not None:
            return found.position
    return extent.end


def _heads(segments: Segments, start: int, extent: Extent) -> Iterator[SpanHead]:
    """The span heads of this log in a file, from a position on."""
    at = max(start, extent.start)
    while at < extent.end:
        window = segments.read(at, _WINDOW + HEAD_BYTES)
        for head in heads_in(window, at):
            if head.log == segments.log_id:
                yield head
        at += _WINDOW


def _refuse_damage(segments: Segments, bad: int) -> None:
    """Search after a bad span for one that declares it durable."""
    proof = durable_behind(segments, bad)
    if proof is None:
        return
    goes_on_at = segments.goes_on_at(bad)
    reason = (
        f"a later write, at {proof}, found it whole on the disk; restore the file from a backup, "
        f"or cut the log there to lose what follows: {REPAIR_COMMAND}"
        if goes_on_at is None
        else f"the log goes on at {goes_on_at}: a file between is missing or was cut; put it back, "
        "or restore the directory from a backup, or cut the log there to lose what follows: "
        f"{REPAIR_COMMAND}"
    )
    raise CorruptRecord(bad, reason)
