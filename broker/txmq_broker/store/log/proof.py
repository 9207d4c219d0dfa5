"""What the files of a stopped broker prove about the end of its log, without changing them.

A member of a broker set looks here before it leads. Without these proofs, a directory that lost a
part of its log or was restored to an earlier state looks like one that is only behind.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from txmq.errors import CorruptRecord
from txmq.protocol.span import SpanHead
from txmq.runtime.coordinator import LogEnd
from txmq.runtime.disk import Disk
from txmq_broker.store.log.commit_log import PATH as HIGH_WATER
from txmq_broker.store.log.commit_log import HighWater, Mark
from txmq_broker.store.log.identity import known_log
from txmq_broker.store.log.segments import Segments
from txmq_broker.store.log.spans import span_at

__all__ = ["NO_MARK", "Proof", "proof_of"]

NO_MARK: Final = f"{HIGH_WATER} is missing or damaged"
"""A doubt that a power cut may leave, because the mark has no sync of its own."""


class Proof(NamedTuple):
    """What a directory proves."""

    end: LogEnd
    """The end of the log, without a torn tail."""
    doubt: str
    """Why the log may have lost something; empty if there is no sign of that."""
    had: int = 0
    """The end of the log according to a mark that the log contradicts; otherwise 0."""


def proof_of(disk: Disk) -> Proof:
    """Look at the high-water mark and at the end of the log.

    Raises:
        ForeignFile: A file belongs to another log.
        OSError: The disk failed.
    """
    log_id, _ = known_log(disk)
    if log_id is None:
        return Proof(LogEnd(0, 0), "")
    segments, high_water = Segments(disk, 0), HighWater(disk, log_id)
    segments.log_id = log_id
    try:
        high_water.load()
        segments.open(tidy=False)
        mark = high_water.mark
        doubt = _doubt(segments, mark)
        had = mark.end if doubt and mark is not None else 0
        last = None if doubt or mark is None else _last_whole(segments, mark.start)
        last = last or _newest(segments)
    finally:
        segments.close()
        high_water.close()
    if last is None:
        return Proof(LogEnd(0, segments.start), doubt, had)
    return Proof(LogEnd(last.epoch, last.position + last.size), doubt, had)


def _doubt(segments: Segments, mark: Mark | None) -> str:
    if mark is None:
        is_empty = segments.end == segments.start
        return "" if is_empty else NO_MARK
    if mark.end > segments.end:
        return f"{HIGH_WATER} knows that the log was durable at {mark.end}, not {segments.end}"
    if mark.oldest < segments.start:
        return f"{HIGH_WATER} knows the log from {mark.oldest} on, not {segments.start}"
    if mark.checksum and mark.start >= segments.start:
        try:
            span = span_at(segments, mark.start, mark.end)
        except CorruptRecord as error:
            return str(error)
        if span is None or not mark.is_of(span[0]):
            return f"{HIGH_WATER} knows another last write than the one at {mark.start}"
    return ""


def _newest(segments: Segments) -> SpanHead | None:
    """The last whole span, found by reading the newest files from their beginning."""
    for extent in reversed(segments.extents()):
        if (last := _last_whole(segments, extent.start)) is not None:
            return last
    return None


def _last_whole(segments: Segments, start: int) -> SpanHead | None:
    """The last intact span in the unbroken sequence that starts at a position."""
    last, at = None, start
    while segments.start <= at < segments.end:
        try:
            span = span_at(segments, at, segments.extent_at(at).end)
        except CorruptRecord:
            break
        if span is None:
            break
        last, _ = span
        at += last.size
    return last
