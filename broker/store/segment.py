"""The files of the log: each named by the position of its first byte, ending where the next begins.

A file's end may not be durable yet when the next one begins, and a write may fail between two
files: what a crash can make of that is sorted out in :meth:`Segments.open`.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from contextlib import suppress
from typing import Final, NamedTuple

from txmq.errors import CorruptRecord, DiskFull, WriteFailed
from txmq.protocol.span import FOLDER, SUFFIX, name_of, start_in
from txmq.runtime.disk import Disk, File

__all__ = ["Extent", "Segments"]

_HARDENED_AT_ONCE: Final = 4 * 1024 * 1024


class Extent(NamedTuple):
    """Where one file of the log starts and ends."""

    start: int
    end: int


class Segments:
    """The log's files as one run of bytes."""

    def __init__(self, disk: Disk, size: int) -> None:
        self._disk = disk
        self._size = size
        self._starts: list[int] = []
        self._files: list[File] = []
        self._is_tidy = True
        self._leftover: str | None = None
        self.end = 0

    def open(self) -> None:
        """Open what is there; other names than ours are let be.

        A crash may have taken the end of a file and left the next one, so a file that ends before
        the next begins is no damage yet: that is for recovery to judge (:meth:`goes_on_at`).
        """
        for name in self._disk.names(FOLDER):
            if (start := start_in(name)) is None:
                continue
            path = f"{FOLDER}/{name}"
            file = self._disk.open(path)
            size = file.size()
            if self._starts and start < self.end:
                # A write failed at `start`. It went elsewhere: into the new file, or where that is
                # empty, after all into the old one.
                if size == 0:
                    file.close()
                    self._disk.remove(path)
                    continue
                self._files[-1].truncate(start - self._starts[-1])
            self._starts.append(start)
            self._files.append(file)
            self.end = start + size

    @property
    def start(self) -> int:
        """The position of the oldest byte that is kept."""
        return self._starts[0] if self._starts else 0

    @property
    def tail_start(self) -> int:
        """Where the file that is being written begins."""
        return self._starts[-1] if self._starts else 0

    def extent_at(self, position: int) -> Extent:
        """The file that holds a position, or will hold it."""
        at = max(bisect_right(self._starts, position) - 1, 0)
        end = self._starts[at + 1] if at + 1 < len(self._starts) else self.end
        return Extent(self._starts[at], end)

    def extents(self) -> list[Extent]:
        """Every file, oldest first."""
        if not self._starts:
            return []
        ends = [*self._starts[1:], self.end]
        return [Extent(start, end) for start, end in zip(self._starts, ends, strict=True)]

    def reach(self, extent: Extent) -> int:
        """How far an extent's file really goes; short of its end only after a crash or damage."""
        file = self._files[self._starts.index(extent.start)]
        return min(extent.end, extent.start + file.size())

    def goes_on_at(self, position: int) -> int | None:
        """Where the next file begins, if the one that holds a position ends before that."""
        extent = self.extent_at(position)
        return extent.end if self.reach(extent) < extent.end else None

    def harden(self, start: int, end: int) -> None:
        """Make bytes of one file durable that were found there, perhaps only in the cache.

        They are written once more: after a sync that failed, the system may take them for clean
        though the disk never had them, and another sync alone does nothing for them.
        """
        at = bisect_right(self._starts, start) - 1
        file, first = self._files[at], self._starts[at]
        for position in range(start - first, end - first, _HARDENED_AT_ONCE):
            size = min(_HARDENED_AT_ONCE, end - first - position)
            file.write(position, file.read(position, size))
        file.sync()

    @property
    def tail(self) -> File | None:
        """The file that is being written."""
        return self._files[-1] if self._files else None

    def read(self, position: int, size: int) -> bytes:
        """Bytes of one file from a position on; fewer where the file ends, none where it is gone.

        Raises:
            CorruptRecord: The disk cannot read them.
        """
        at = bisect_right(self._starts, position) - 1
        if at < 0:
            return b""
        try:
            return self._files[at].read(position - self._starts[at], size)
        except OSError as problem:
            raise CorruptRecord(position, f"the disk cannot read it: {problem}") from problem

    def append(self, data: bytes, *, stay: bool = False) -> None:
        """Write at the end, in a new file where the current one is full and nothing has to stay.

        Raises:
            DiskFull: There is no room. The log ends where it did.
            WriteFailed: The disk refused. The log ends where it did.
        """
        try:
            if not self._is_tidy:
                self._tidy()
            inside = self.end - self._starts[-1] if self._starts else 0
            is_full = inside and inside + len(data) > self._size and not stay
            if not self._starts or is_full:
                self._begin_file()
                inside = 0
            self._files[-1].write(inside, data)
        except OSError as problem:
            self._is_tidy = False
            with suppress(OSError):
                self._tidy()
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"the disk is full: {problem}") from problem
            raise WriteFailed(f"the disk refused a write: {problem}") from problem
        self.end += len(data)

    def _begin_file(self) -> None:
        path = f"{FOLDER}/{name_of(self.end)}{SUFFIX}"
        self._leftover = path
        fresh = self._disk.open(path, create=True)
        self._leftover = None
        self._starts.append(self.end)
        self._files.append(fresh)

    def _tidy(self) -> None:
        # Nothing is written before this has succeeded. Bytes behind the end would lie across the
        # next file's name, and a file that could not be begun has a name that may not be durable.
        if self._leftover is not None:
            self._disk.remove(self._leftover)
            self._leftover = None
        if self._files:
            self._files[-1].truncate(self.end - self._starts[-1])
        self._is_tidy = True

    def cut(self, position: int) -> None:
        """End the log at a position."""
        at = bisect_right(self._starts, position) - 1
        inside = position - self._starts[at]
        for extra in range(len(self._files) - 1, at, -1):
            self._files[extra].close()
            self._disk.remove(f"{FOLDER}/{name_of(self._starts[extra])}{SUFFIX}")
            del self._files[extra], self._starts[extra]
        self._files[at].truncate(inside)
        self._files[at].sync()
        self.end = position

    def drop_first(self) -> int:
        """Delete the oldest file and return the position at which the log begins now."""
        assert len(self._files) > 1, "the file being written is never deleted"
        self._disk.remove(f"{FOLDER}/{name_of(self._starts[0])}{SUFFIX}")
        self._files.pop(0).close()
        del self._starts[0]
        return self.start

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files:
            file.close()
