"""The files of a broker's log, open for reading only.

A running broker appends to the newest file and deletes the oldest. An open file stays readable,
and the end of the log is fixed when the files are listed.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from contextlib import ExitStack, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple, Self

from txmq.errors import ReconcileRefused
from txmq.limits import FRAME_BYTES_MAX
from txmq.protocol import record as records
from txmq.protocol.span import (
    FOLDER,
    HEAD_BYTES,
    MARKER,
    MARKER_BYTES,
    decided_ms_of,
    read_head,
    start_in,
)

__all__ = ["LogFile", "LogFiles", "OpenFile", "files_of"]

_ATTEMPTS: Final = 5
"""A broker deletes files only a few times an hour, so more attempts would fail as well."""

_READ_AT_ONCE: Final = 2048


class LogFile(NamedTuple):
    """A file of the log, and the positions it covers."""

    path: Path
    start: int
    end: int
    is_last: bool
    log: int | None
    """The id of the log in its spans; ``None`` before the first span."""


def files_of(directory: Path) -> tuple[LogFile, ...]:
    """The files of the log in a broker's directory, oldest first, as they are now.

    Raises:
        ReconcileRefused: The log is missing or incomplete, or a file belongs to another broker.
    """
    for _ in range(_ATTEMPTS):
        # A file deleted between the two steps was the oldest.
        with suppress(FileNotFoundError):
            return _measure(directory / FOLDER, _starts_in(directory))
    raise ReconcileRefused(f"the log in {directory} changes faster than it can be listed")


def _starts_in(directory: Path) -> dict[int, str]:
    try:
        names = [path.name for path in (directory / FOLDER).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        raise ReconcileRefused(
            f"{directory} is not a broker's directory: it has no folder {FOLDER}"
        ) from None
    except OSError as error:
        raise ReconcileRefused(f"the log cannot be read: {error}") from error
    starts = {start: name for name in names if (start := start_in(name)) is not None}
    return {start: starts[start] for start in sorted(starts)}


def _measure(folder: Path, names: dict[int, str]) -> tuple[LogFile, ...]:
    sizes = {start: (folder / name).stat().st_size for start, name in names.items()}
    starts = list(names)
    if len(starts) > 1 and not sizes[starts[-1]] and starts[-1] < starts[-2] + sizes[starts[-2]]:
        # A write failed there, and went into the previous file instead.
        starts.pop()
    found: list[LogFile] = []
    for start, after in zip_longest(starts, starts[1:]):
        path, end = folder / names[start], start + sizes[start]
        if after is not None and end < after:
            raise ReconcileRefused(
                f"{path} ends at position {end} and the log continues at {after}: a file between "
                "them is missing or truncated; put it back, or restore the directory from a backup"
            )
        log = _log_of(path, start)
        if found and None not in (log, found[0].log) and log != found[0].log:
            raise ReconcileRefused(
                f"{path} belongs to the log {log:016x} of another broker, and {found[0].path} to "
                f"{found[0].log:016x}; put the right file back, or restore the directory from a "
                "backup"
            )
        found.append(LogFile(path, start, end if after is None else after, after is None, log))
    return tuple(found)


def _log_of(path: Path, start: int) -> int | None:
    with path.open("rb", buffering=0) as opened:
        head = read_head(opened.read(HEAD_BYTES), 0, start)
    return None if head is None else head.log


class OpenFile:
    """An open file of the log; it stays readable after the broker deletes it."""

    def __init__(self, file: LogFile) -> None:
        self.file = file
        self._handle = -1

    def __enter__(self) -> Self:
        """Open the file.

        Raises:
            FileNotFoundError: The broker has deleted it.
        """
        self._handle = os.open(self.file.path, os.O_RDONLY)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    @property
    def is_short(self) -> bool:
        """True if bytes are missing, as in a worker's older copy: its end is not the log's end."""
        return os.fstat(self._handle).st_size < self.file.end - self.file.start

    def read(self, position: int, size: int) -> bytes:
        """Bytes from a position of the log on; fewer where the file ends.

        Raises:
            ReconcileRefused: The disk cannot read them.
        """
        start, end = self.file.start, self.file.end
        try:
            return os.pread(self._handle, max(0, min(size, end - position)), position - start)
        except OSError as error:
            raise ReconcileRefused(
                f"the disk cannot read {self.file.path} at position {position}: {error}"
            ) from error


class LogFiles:
    """The files of a log from a moment on, open for reading.

    Args:
        directory: The broker's directory.
        since_ms: Files with only older records are not opened.
    """

    def __init__(self, directory: Path, since_ms: int) -> None:
        self.files: tuple[OpenFile, ...] = ()
        """The open files, oldest first."""
        self._directory = directory
        self._since_ms = since_ms
        self._all: tuple[LogFile, ...] = ()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Find the files and open them.

        Raises:
            ReconcileRefused: The log is missing or incomplete, or records since that moment were
                deleted already.
        """
        for _ in range(_ATTEMPTS):
            self._all = files_of(self._directory)
            with suppress(FileNotFoundError), ExitStack() as stack:
                wanted = self._all[self._first() :]
                self.files = tuple([stack.enter_context(OpenFile(file)) for file in wanted])
                self._stack = stack.pop_all()
                return self
        raise ReconcileRefused(f"the log in {self._directory} changes faster than it can be listed")

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def record_at(self, position: int) -> bytes | None:
        """The record at a position, also in an older file; ``None`` if that was deleted.

        Raises:
            ReconcileRefused: The file cannot be read.
        """
        at = bisect_right(self._all, position, key=lambda file: file.start) - 1
        if at < 0:
            return None
        file = self._all[at]
        try:
            with file.path.open("rb", buffering=0) as opened:
                opened.seek(position - file.start)
                data = opened.read(_READ_AT_ONCE)
                size = min(int.from_bytes(data[:4], "big"), FRAME_BYTES_MAX)
                return (data + opened.read(max(0, size - len(data))))[:size]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ReconcileRefused(
                f"{file.path} cannot be read at position {position}: {error}"
            ) from error

    def _first(self) -> int:
        """The index of the first file to open.

        Time stamps in a log never go back, so a whole file is older than the next file's first
        record.
        """
        # Count the files that begin with old records; all but the last of these stay closed.
        low, high = 0, len(self._all)
        while low < high:
            middle = (low + high) // 2
            moment = _first_ms(self._all[middle])
            if moment is not None and moment < self._since_ms:
                low = middle + 1
            else:
                high = middle
        if low == 0 and self._all and self._all[0].start > 0:
            raise ReconcileRefused(
                f"the log in {self._directory} begins too late: records of the day before position "
                f"{self._all[0].start} were deleted; let the broker keep its log for longer "
                "(retention.keep)"
            )
        return max(low - 1, 0)


def _first_ms(file: LogFile) -> int | None:
    """The time at which the first record of a file was stored; ``None`` without records."""
    with file.path.open("rb", buffering=0) as opened:
        data = opened.read(HEAD_BYTES + max(MARKER_BYTES, records.SMALLEST))
    if read_head(data, 0, file.start) is None or len(data) < HEAD_BYTES + MARKER_BYTES:
        return None
    first = data[HEAD_BYTES:]
    if first[4:8] == MARKER:
        return decided_ms_of(first)
    return records.stored_ms_of(first) if len(first) >= records.SMALLEST else None
