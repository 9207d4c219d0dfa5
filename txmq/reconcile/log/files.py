"""The files of a broker's log, open for reading only.

A running broker appends to the newest file and deletes the oldest. An open file stays readable,
and the end of the log is fixed when the files are listed.

Spans are read in order and without gaps. Recovery may cut a torn tail; a reader must not guess. An
incomplete span ends the log only if nothing follows it: it is a write in progress, or the tail of a
killed broker. If a complete span follows, the log is damaged and is refused.
"""

from __future__ import annotations

import os
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from txmq.errors import CorruptRecord, ReconcileRefused, RemoteProtocolError
from txmq.limits import FRAME_BYTES_MAX
from txmq.ops.directories import hint_of_brokers
from txmq.protocol import span
from txmq.protocol.checksum import crc32
from txmq.protocol.record import SMALLEST, Record, unpack

__all__ = ["STRETCH_BYTES", "LogFile", "LogFiles", "LogStretch", "OpenFile", "open_log"]

_ATTEMPTS: Final = 5
"""A broker deletes files only a few times an hour, so more attempts would fail as well."""

STRETCH_BYTES: Final = 32 * 1024 * 1024
"""The size of a stretch. The order of rows depends on it, and not on the machine that reads."""

_READ_BYTES: Final = 4 * 1024 * 1024


class LogFile(NamedTuple):
    """A file of the log, and the positions it covers."""

    path: Path
    start: int
    end: int
    is_last: bool
    log: int | None
    """The id of the log in its spans; ``None`` before the first span."""
    first_ms: int
    """The time at which its first record was stored; ``sys.maxsize`` before there is one."""

    @contextmanager
    def open(self) -> Iterator[OpenFile]:
        """Open the file.

        Raises:
            FileNotFoundError: The broker has deleted it.
            ReconcileRefused: Bytes are missing, as in an older copy on a worker, which ends before
                the log does.
        """
        with self.path.open("rb", buffering=0) as handle:
            if os.fstat(handle.fileno()).st_size < self.end - self.start:
                why = f"{self.path} is shorter than it was when the log was listed"
                remedy = "read the log again, from a directory that all machines share"
                raise ReconcileRefused(f"{why}: {remedy}")
            yield OpenFile(self, handle.fileno())


class LogStretch(NamedTuple):
    """A part of a file, from the start of a span to the end of one."""

    file: LogFile
    start: int
    end: int

    def records(self) -> Iterator[tuple[span.Found, int, bytes]]:
        """Its records, as :meth:`OpenFile.records` yields them.

        Raises:
            ReconcileRefused: The file is damaged, or the broker has deleted it.
        """
        try:
            with self.file.open() as opened:
                yield from opened.records(self.start, self.end)
        except FileNotFoundError:
            why = "was deleted by the broker before it was read; read the log again"
            raise ReconcileRefused(f"{self.file.path} {why}") from None


class OpenFile(NamedTuple):
    """An open file of the log; it stays readable after the broker deletes it."""

    file: LogFile
    handle: int

    def read(self, position: int, size: int) -> bytes:
        """Bytes from a position of the log on; fewer at the end of the file.

        Raises:
            ReconcileRefused: The disk cannot read them.
        """
        start, end = self.file.start, self.file.end
        try:
            return os.pread(self.handle, max(0, min(size, end - position)), position - start)
        except OSError as error:
            where = f"{self.file.path} at position {position}"
            raise ReconcileRefused(f"the disk cannot read {where}: {error}") from error

    def records(self, start: int, end: int) -> Iterator[tuple[span.Found, int, bytes]]:
        """The records of a part of the file, with their positions and bytes.

        A span begins at ``start``. Spans that begin at ``end`` or later are left out.

        Raises:
            ReconcileRefused: A span is damaged.
        """
        for position, payload in self._spans(start, end):
            try:
                yield from span.found_in(payload, position + span.HEAD_BYTES)
            except CorruptRecord as error:
                raise self._damage(error.position, error.reason) from error

    def _spans(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """The positions and payloads of the spans that begin in a part of the file."""
        at, size, behind = start, _READ_BYTES, None
        while at < end:
            data, here = self.read(at, size), 0
            while (head := span.read_head(data, here, at + here)) is not None and at + here < end:
                if head.log != self.file.log:
                    raise self._damage(at + here, "the log of another broker continues there")
                payload, after = data[here + span.HEAD_BYTES : here + head.size], here + head.size
                if after > len(data) or crc32(payload) != head.checksum:
                    break
                yield at + here, payload
                here = after
            if here:
                at, size, behind = at + here, _READ_BYTES, None
            elif head is not None and size < head.size <= self.file.end - at:
                size = head.size
            elif not self.file.is_last:
                reason = f"a span is incomplete there, and the log continues at {self.file.end}"
                raise self._damage(at, reason)
            elif behind is not None:
                reason = f"a span is incomplete there, and another one begins at {behind}"
                remedy = "after a crash, start the broker once: it cuts the log there if later"
                raise self._damage(at, f"{reason}; {remedy} records were never acknowledged")
            else:
                behind = self._next_head(at, head)
                if behind is None:
                    return
                # The broker writes one span after the other, so this one may be complete by now.

    def _next_head(self, bad: int, head: span.SpanHead | None) -> int | None:
        # A body may contain what looks like a head, so skip the span if its own head is complete.
        first = bad + (1 if head is None else head.size)
        for at in range(first, self.file.end, _READ_BYTES):
            for found in span.heads_in(self.read(at, _READ_BYTES + span.HEAD_BYTES), at):
                return found.position
        return None

    def _damage(self, position: int, reason: str) -> ReconcileRefused:
        return ReconcileRefused(f"{self.file.path} is damaged at position {position}: {reason}")


@contextmanager
def open_log(directory: Path, since_ms: int | None = None) -> Iterator[LogFiles]:
    """Open the files of a log as they are now.

    Files whose records are all from before ``since_ms`` are not opened; by default, all files are.

    Raises:
        ReconcileRefused: The log is missing or incomplete, a file belongs to another broker, or
            records since that moment were deleted already.
    """
    with ExitStack() as stack:
        for _ in range(_ATTEMPTS):
            try:
                files = _files_in(directory)
                wanted = files if since_ms is None else _since(files, since_ms)
                opened = tuple([stack.enter_context(file.open()) for file in wanted])
                break
            except FileNotFoundError:
                continue  # The broker has just deleted the oldest file.
            except OSError as error:
                raise ReconcileRefused(f"the log cannot be read: {error}") from error
        else:
            raise ReconcileRefused(f"the log in {directory} changes faster than it can be listed")
        yield LogFiles(files, opened)


class LogFiles(NamedTuple):
    """The files of a log, oldest first."""

    known: tuple[LogFile, ...]
    opened: tuple[OpenFile, ...]

    def records(self) -> Iterator[tuple[span.Found, int, bytes]]:
        """The records of the open files, as :meth:`OpenFile.records` yields them."""
        for opened in self.opened:
            yield from opened.records(opened.file.start, opened.file.end)

    def stretches(self, size: int) -> Iterator[LogStretch]:
        """Cut the open files into parts of about this size, which can be read separately.

        Spans are checked only when a part is read. If a head is broken, the rest of its file is one
        part.
        """
        for opened in self.opened:
            file = opened.file
            start = at = file.start
            while at < file.end:
                before = at
                for end in span.ends_in(opened.read(at, _READ_BYTES), at):
                    if end - start >= size:
                        yield LogStretch(file, start, end)
                        start = end
                    at = end
                if at == before:
                    break
            if start < file.end:
                yield LogStretch(file, start, file.end)

    def half_of(self, decision: span.Decision) -> Record | None:
        """The half message of a decision, also in an older file; ``None`` if that was deleted.

        Raises:
            ReconcileRefused: The file cannot be read, or has no half message there.
        """
        position = decision.half_position
        at = bisect_right(self.known, position, key=lambda file: file.start) - 1
        if at < 0:
            return None
        file = self.known[at]
        try:
            with file.open() as log:
                size = int.from_bytes(log.read(position, 4), "big")
                record, _ = unpack(log.read(position, min(size, FRAME_BYTES_MAX)))
        except FileNotFoundError:
            return None
        except (OSError, RemoteProtocolError) as error:
            where = f"position {position}, which has a half message"
            raise ReconcileRefused(f"{file.path} cannot be read at {where}: {error}") from error
        if record.position != position:
            raise ReconcileRefused(f"position {position} of the log has no half message")
        return record


def _since(files: tuple[LogFile, ...], since_ms: int) -> tuple[LogFile, ...]:
    """The files that may have records of this time or later.

    Time stamps in a log never go back, so a whole file is older than the next file's first record.
    """
    old = bisect_left(files, since_ms, key=lambda file: file.first_ms)
    if old == 0 and files and files[0].start > 0:
        directory, start = files[0].path.parent.parent, files[0].start
        why = f"records of the day before position {start} were deleted"
        remedy = "let the broker keep its log for longer (retention.keep)"
        raise ReconcileRefused(f"the log in {directory} begins too late: {why}; {remedy}")
    return files[max(old - 1, 0) :]


def _files_in(directory: Path) -> tuple[LogFile, ...]:
    """The files of the log in a broker's directory, oldest first."""
    try:
        found_paths = list((directory / span.FOLDER).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        why = f"it has no folder {span.FOLDER}{hint_of_brokers(directory)}"
        raise ReconcileRefused(f"{directory} is not a broker's directory: {why}") from None
    paths = {start: path for path in found_paths if (start := span.start_in(path.name)) is not None}
    sizes = {start: path.stat().st_size for start, path in paths.items()}
    starts = sorted(paths)
    if len(starts) > 1 and not sizes[starts[-1]] and starts[-1] < starts[-2] + sizes[starts[-2]]:
        # A write failed there, and went into the previous file instead.
        starts.pop()
    found: list[LogFile] = []
    for start, after in zip_longest(starts, starts[1:]):
        path, end = paths[start], start + sizes[start]
        if after is not None and end < after:
            gap = f"{path} ends at position {end} and the log continues at {after}"
            remedy = "put it back, or restore the directory from a backup"
            raise ReconcileRefused(f"{gap}: a file between them is missing or truncated; {remedy}")
        log, first_ms = _log_and_moment(path, start)
        if found and None not in (log, found[0].log) and log != found[0].log:
            why = f"{path} belongs to the log {log:016x} of another broker, and {found[0].path} to"
            remedy = "put the right file back, or restore the directory from a backup"
            raise ReconcileRefused(f"{why} {found[0].log:016x}; {remedy}")
        is_last = after is None
        found.append(LogFile(path, start, end if is_last else after, is_last, log, first_ms))
    return tuple(found)


def _log_and_moment(path: Path, start: int) -> tuple[int | None, int]:
    """The id of the log in a file, and the time of its first record, as in :class:`LogFile`."""
    with path.open("rb") as opened:
        head = span.read_head(opened.read(span.HEAD_BYTES), 0, start)
        first = opened.read(max(span.MARKER_BYTES, SMALLEST))
        if first[4:8] == span.LOSS:
            size = int.from_bytes(first[:4], "big")
            first = (first + opened.read(max(0, size - len(first))))[:size]
    if head is None:
        return None, sys.maxsize
    found_ms = span.moment_of(first)
    if first[4:8] == span.LOSS:
        with suppress(CorruptRecord):  # The broker is still writing it.
            found_ms = span.AcceptedLoss.unpack(first, start).accepted_ms
    return head.log, sys.maxsize if found_ms is None else found_ms
