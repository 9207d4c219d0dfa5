"""The files of the log: each named by the log position of its first byte, each ending where the next begins."""

from __future__ import annotations

import errno
from bisect import bisect_right
from typing import Final, NamedTuple

from txmq.errors import CorruptRecord, DiskFull, WriteFailed
from txmq.runtime.disk import Disk, File

__all__ = ["Extent", "Segments", "name_of"]

FOLDER: Final = "log"
SUFFIX: Final = ".log"


class Extent(NamedTuple):
    """Where one file of the log starts and ends."""

    start: int
    end: int


def name_of(start: int) -> str:
    """A segment's name without folder and suffix: twenty digits, so that names sort as positions do."""
    return f"{start:020d}"


class Segments:
    """The log's files as one run of bytes."""

    def __init__(self, disk: Disk, size: int) -> None:
        self._disk = disk
        self._size = size
        self._starts: list[int] = []
        self._files: list[File] = []
        self.end = 0

    def open(self) -> None:
        """Open what is there.

        Raises:
            CorruptRecord: A file is missing between two others, or is not named as ours are.
        """
        for name in self._disk.names(FOLDER):
            digits = name.removesuffix(SUFFIX)
            if not name.endswith(SUFFIX) or not digits.isdecimal():
                continue
            start = int(digits)
            if self._starts and start != self.end:
                raise CorruptRecord(
                    self.end,
                    f"the log goes on at {start}: a file between is missing or was cut; "
                    "put it back, or restore the directory from a backup",
                )
            self._starts.append(start)
            self._files.append(self._disk.open(f"{FOLDER}/{name}"))
            self.end = start + self._files[-1].size()

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

    @property
    def tail(self) -> File | None:
        """The file that is being written."""
        return self._files[-1] if self._files else None

    def read(self, position: int, size: int) -> bytes:
        """Bytes of one file from a position on; fewer where the file ends, none where it is gone."""
        at = bisect_right(self._starts, position) - 1
        if at < 0:
            return b""
        return self._files[at].read(position - self._starts[at], size)

    def append(self, data: bytes) -> File | None:
        """Write at the end, in a new file where the current one is full.

        Returns:
            The file that was completed by this, which still has to be synced, if any.

        Raises:
            DiskFull: There is no room. The log ends where it did.
            WriteFailed: The disk refused. The log ends where it did.
        """
        completed: File | None = None
        try:
            if not self._files or self.end - self._starts[-1] + len(data) > self._size:
                completed = self.tail
                fresh = self._disk.open(f"{FOLDER}/{name_of(self.end)}{SUFFIX}", create=True)
                self._starts.append(self.end)
                self._files.append(fresh)
            self._files[-1].write(self.end - self._starts[-1], data)
        except OSError as problem:
            self._cut_back()
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"the disk is full: {problem}") from problem
            raise WriteFailed(f"the disk refused a write: {problem}") from problem
        self.end += len(data)
        return completed

    def _cut_back(self) -> None:
        # What was half written is not part of the log: it lies behind the end, where the next write
        # goes and where recovery finds no whole span. Cutting it only keeps the file tidy.
        if self._files:
            try:
                self._files[-1].truncate(self.end - self._starts[-1])
            except OSError:
                return

    def cut(self, position: int) -> bytes:
        """End the log at a position and return what was behind it in that file."""
        at = bisect_right(self._starts, position) - 1
        inside = position - self._starts[at]
        removed = self._files[at].read(inside, self._files[at].size() - inside)
        for extra in range(len(self._files) - 1, at, -1):
            self._files[extra].close()
            self._disk.remove(f"{FOLDER}/{name_of(self._starts[extra])}{SUFFIX}")
            del self._files[extra], self._starts[extra]
        self._files[at].truncate(inside)
        self._files[at].sync()
        self.end = position
        return removed

    def drop_first(self) -> int:
        """Delete the oldest file and return the position at which the log begins now."""
        assert len(self._files) > 1, "the file being written is never deleted"
        self._files.pop(0).close()
        self._disk.remove(f"{FOLDER}/{name_of(self._starts.pop(0))}{SUFFIX}")
        return self.start

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files:
            file.close()
