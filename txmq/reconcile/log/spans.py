"""The spans of a log, in order and without gaps.

Recovery may cut a torn tail; a reader must not guess. An incomplete span ends the log only if
nothing follows it: it is a write in progress, or the tail of a killed broker. If a complete span
follows, the log is damaged and is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from txmq.errors import CorruptRecord, ReconcileRefused
from txmq.protocol.checksum import crc32
from txmq.protocol.span import HEAD_BYTES, Found, ends_in, found_in, heads_in, read_head
from txmq.reconcile.log.files import LogFile, OpenFile

__all__ = ["STRETCH_BYTES", "LogStretch", "records_from", "stretches"]

STRETCH_BYTES: Final = 32 * 1024 * 1024
"""The size of a stretch, which is read in one go; the cuts do not depend on the reader."""

_READ_BYTES: Final = 4 * 1024 * 1024

_Located: TypeAlias = tuple[Found, int, bytes]


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


def records_from(log: OpenFile, start: int, end: int) -> Iterator[tuple[int, list[_Located]]]:
    """For each span that begins in a part of a file: its end, and its records with their positions
    and bytes. A span begins at ``start``; those that begin at ``end`` or later are left out.

    Raises:
        ReconcileRefused: A span is damaged.
    """
    for position, payload in _spans(log, start, end):
        first = position + HEAD_BYTES
        try:
            found = list(found_in(payload, first))
        except CorruptRecord as error:
            raise _damage(log, error.position, error.reason) from error
        yield first + len(payload), found


def _spans(log: OpenFile, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The positions and payloads of the spans that begin in a part of a file."""
    at = start
    while at < end:
        data, here = log.read(at, _READ_BYTES), 0
        view = memoryview(data)
        while at + here < end:
            head = read_head(data, here, at + here)
            if head is None or here + head.size > len(data):
                break
            if head.log != log.file.log:
                raise _damage(log, at + here, "the log of another broker continues there")
            payload = view[here + HEAD_BYTES : here + head.size]
            if crc32(payload) != head.checksum:
                break
            yield at + here, bytes(payload)
            here += head.size
        if here == 0:
            # The span is longer than what was read, or incomplete.
            longer = _payload(log, at) or _payload_now(log, at)
            if longer is None:
                return
            yield at, longer
            here = HEAD_BYTES + len(longer)
        at += here


def _payload(log: OpenFile, at: int) -> bytes | None:
    head = read_head(log.read(at, HEAD_BYTES), 0, at)
    if head is None or at + head.size > log.file.end:
        return None
    payload = log.read(at + HEAD_BYTES, head.size - HEAD_BYTES)
    is_whole = len(payload) == head.size - HEAD_BYTES and crc32(payload) == head.checksum
    return payload if is_whole else None


def _payload_now(log: OpenFile, bad: int) -> bytes | None:
    """The payload of a span that was incomplete before; ``None`` if the log ends before it."""
    if not log.file.is_last:
        reason = f"a span is incomplete there, and the log continues at {log.file.end}"
        raise _damage(log, bad, reason)
    behind = _next_head(log, bad)
    # The broker writes one span after the other, so this one may be complete by now.
    payload = None if behind is None else _payload(log, bad)
    if behind is not None and payload is None:
        raise _damage(
            log,
            bad,
            f"a span is incomplete there, and another one begins at {behind}; after a crash, start "
            "the broker once: it cuts the log there if later records were never acknowledged",
        )
    return payload


def _next_head(log: OpenFile, bad: int) -> int | None:
    # A body may contain what looks like a head: if the span's own head is complete, skip its size.
    head = read_head(log.read(bad, HEAD_BYTES), 0, bad)
    first = bad + (1 if head is None else head.size)
    for at in range(first, log.file.end, _READ_BYTES):
        for head in heads_in(log.read(at, _READ_BYTES + HEAD_BYTES), at):
            return head.position
    return None


def _damage(log: OpenFile, position: int, reason: str) -> ReconcileRefused:
    return ReconcileRefused(f"{log.file.path} is damaged at position {position}: {reason}")
