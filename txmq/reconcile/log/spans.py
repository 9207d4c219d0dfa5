"""The spans of a log, in order and without gaps.

Recovery may cut a torn tail; a reader must not guess. An incomplete span ends the log only if
nothing follows it: it is a write in progress, or the tail of a killed broker. If a complete span
follows, the log is damaged and is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from txmq.errors import CorruptRecord, ReconcileRefused
from txmq.protocol.checksum import crc32
from txmq.protocol.span import (
    HEAD_BYTES,
    Found,
    SpanHead,
    ends_in,
    found_in,
    heads_in,
    read_head,
)
from txmq.reconcile.log.files import LogFile, OpenFile

__all__ = ["STRETCH_BYTES", "LogStretch", "records_from", "stretches"]

STRETCH_BYTES: Final = 32 * 1024 * 1024
"""The size of a stretch, which is read in one go; the cuts do not depend on the reader."""

_READ_BYTES: Final = 4 * 1024 * 1024


class LogStretch(NamedTuple):
    """A part of a file, from the start of a span to the end of one."""

    file: LogFile
    start: int
    end: int


def stretches(log: OpenFile, size: int) -> Iterator[LogStretch]:
    """Cut a file into parts of about this size, which can be read separately.

    Their reader checks the spans. If a head is broken, the rest of the file is the last part.
    """
    start = at = log.file.start
    while at < log.file.end:
        before = at
        for end in ends_in(log.read(at, _READ_BYTES), at):
            if end - start >= size:
                yield LogStretch(log.file, start, end)
                start = end
            at = end
        if at == before:
            break
    if start < log.file.end:
        yield LogStretch(log.file, start, log.file.end)


def records_from(log: OpenFile, start: int, end: int) -> Iterator[tuple[Found, int, bytes]]:
    """The records of a part of a file, which begins with a span, with their positions and bytes.

    They are those of all spans that begin before ``end``.

    Raises:
        ReconcileRefused: A span is damaged.
    """
    for position, payload in _spans(log, start, end):
        try:
            yield from found_in(payload, position + HEAD_BYTES)
        except CorruptRecord as error:
            raise _damage(log, error.position, error.reason) from error


def _spans(log: OpenFile, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The positions and payloads of the spans that begin in a part of a file."""
    at, size, behind = start, _READ_BYTES, None
    while at < end:
        data, here = log.read(at, size), 0
        while (head := read_head(data, here, at + here)) is not None and at + here < end:
            if head.log != log.file.log:
                raise _damage(log, at + here, "the log of another broker continues there")
            payload = data[here + HEAD_BYTES : here + head.size]
            if here + head.size > len(data) or crc32(payload) != head.checksum:
                break
            yield at + here, payload
            here += head.size
        if here:
            at, size, behind = at + here, _READ_BYTES, None
        elif head is not None and size < head.size <= log.file.end - at:
            size = head.size
        elif not log.file.is_last:
            reason = f"a span is incomplete there, and the log continues at {log.file.end}"
            raise _damage(log, at, reason)
        elif behind is not None:
            raise _damage(
                log,
                at,
                f"a span is incomplete there, and another one begins at {behind}; after a crash, "
                "start the broker once: it cuts the log there if later records were never "
                "acknowledged",
            )
        else:
            behind = _next_head(log, at, head)
            if behind is None:
                return
            # The broker writes one span after the other, so this one may be complete by now.


def _next_head(log: OpenFile, bad: int, head: SpanHead | None) -> int | None:
    # A body may contain what looks like a head: if the span's own head is complete, skip its size.
    first = bad + (1 if head is None else head.size)
    for at in range(first, log.file.end, _READ_BYTES):
        for found in heads_in(log.read(at, _READ_BYTES + HEAD_BYTES), at):
            return found.position
    return None


def _damage(log: OpenFile, position: int, reason: str) -> ReconcileRefused:
    return ReconcileRefused(f"{log.file.path} is damaged at position {position}: {reason}")
