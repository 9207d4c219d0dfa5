"""The files of the log: each named by the position of its first byte, ending where the next begins.

A file's end may not be durable yet when the next one begins, and a write may fail between two
files. :meth:`Segments.open` handles the states that a crash then leaves.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple

from txmq.errors import CorruptRecord, DiskFull, ForeignFile, WriteFailed
from txmq.protocol.span import FOLDER, HEAD_BYTES, SUFFIX, name_of, read_head, start_in
from txmq.runtime.disk import NO_ROOM, Disk, File

__all__ = ["Extent", "Segments", "path_of"]

CUT_FOLDER: Final = "cut"
"""The folder in a broker's directory for the parts cut from its log."""

_HARDENED_AT_ONCE: Final = 4 * 1024 * 1024
_KEPT_AT_ONCE: Final = 64 * 1024


def path_of(start: int) -> str:
    """The file of the log that begins at a position."""
    return f"{FOLDER}/{name_of(start)}{SUFFIX}"


class Extent(NamedTuple):
    """The start and the end of one file of the log."""

    start: int
    end: int


def cut_folder(position: int, now_ms: int) -> str:
    """Return the folder for the bytes cut at a position; the commands for logs read it there."""
    moment = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S%fZ")
    return f"{CUT_FOLDER}/{position}-{moment}"


def keep_aside(disk: Disk, extent: Extent, start: int, folder: str, end: int | None = None) -> None:
    """Copy a file of the log durably into a separate folder; unreadable bytes stay blank.

    Args:
        disk: The directory.
        extent: The file.
        start: The position of the first byte to copy.
        folder: The folder.
        end: The position after the last byte to copy; by default the end of the file.

    Raises:
        OSError: A disk operation failed.
    """
    source = disk.open(path_of(extent.start))
    try:
        kept = disk.open(f"{folder}/{path_of(start)}", create=True)
        try:
            first, size = start - extent.start, source.size()
            if end is not None:
                size = min(size, end - extent.start)
            for place in range(first, size, _KEPT_AT_ONCE):
                try:
                    data = source.read(place, min(_KEPT_AT_ONCE, size - place))
                except OSError:
                    continue
                kept.write(place - first, data)
            kept.sync()
        finally:
            kept.close()
    finally:
        source.close()


class Segments:
    """The log's files as one run of bytes.

    Attributes:
        starts: The positions of the files' first bytes, oldest first.
        files: The open files; only the last one is written to.
        end: The position at which the next span will start.
    """

    def __init__(self, disk: Disk, size: int) -> None:
        self._disk = disk
        self._size = size
        self.log_id = 0
        """The log that these files belong to; every span names it."""
        self.starts: list[int] = []
        self.files: list[File] = []
        self._is_tidy = True
        self._unhardened: list[tuple[int, int]] = []
        self._leftover: str | None = None
        self.end = 0

    def open(self, *, tidy: bool = True) -> None:
        """Open the files of the log; files with other names are ignored.

        A crash may remove the end of a file and keep the next file. So a file that ends before the
        next one begins does not count as damage here; recovery judges it (:meth:`goes_on_at`).

        Args:
            tidy: Remove what a failed write left behind, and refuse another log's files. Readers
                leave it false, which ignores both.

        Raises:
            ForeignFile: A file was written for another log.
        """
        for name in self._disk.names(FOLDER):
            if (start := start_in(name)) is None:
                continue
            path = f"{FOLDER}/{name}"
            file = self._disk.open(path)
            size = file.size()
            head = read_head(file.read(0, HEAD_BYTES), 0, start)
            if tidy and head is not None and head.log != self.log_id:
                file.close()
                raise ForeignFile(path, head.log, self.log_id)
            if self.starts and start < self.end:
                # A write failed at `start` and was repeated elsewhere: in the new file, or if that
                # is empty, in the old one.
                if size == 0:
                    file.close()
                    if tidy:
                        self._disk.remove(path)
                    continue
                if tidy:
                    self.files[-1].truncate(start - self.starts[-1])
            self.starts.append(start)
            self.files.append(file)
            self.end = start + size

    @property
    def start(self) -> int:
        """The position of the oldest kept byte."""
        return self.starts[0] if self.starts else 0

    def extent_at(self, position: int) -> Extent:
        """The file that holds or will hold a position."""
        at = max(bisect_right(self.starts, position) - 1, 0)
        end = self.starts[at + 1] if at + 1 < len(self.starts) else self.end
        return Extent(self.starts[at], end)

    def extents(self) -> list[Extent]:
        """Every file, oldest first."""
        if not self.starts:
            return []
        ends = [*self.starts[1:], self.end]
        return [Extent(start, end) for start, end in zip(self.starts, ends, strict=True)]

    def reach(self, extent: Extent) -> int:
        """Return where an extent's bytes end; a file is too short only after a crash or damage."""
        file = self.files[self.starts.index(extent.start)]
        return min(extent.end, extent.start + file.size())

    def goes_on_at(self, position: int) -> int | None:
        """Return the next file's start, if the file that holds a position ends before it."""
        extent = self.extent_at(position)
        return extent.end if self.reach(extent) < extent.end else None

    def harden(self, start: int, end: int) -> None:
        """Make the bytes found in a file durable, because they may be only in the page cache.

        Another sync is not enough. After a failed one, the system may count the bytes as written
        although the disk does not have them, and skip them. So they are written again.

        On a full disk even that may fail. The bytes are readable at once, and become durable before
        the next write.
        """
        try:
            self._write_again(start, end)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._unhardened.append((start, end))
            self._is_tidy = False

    @property
    def is_hardened(self) -> bool:
        """True if all bytes found at the opening are durable."""
        return not self._unhardened

    def harden_rest(self) -> None:
        """Make the bytes durable that :meth:`harden` could not, because the disk was full.

        Raises:
            OSError: That failed again.
        """
        while self._unhardened:
            self._write_again(*self._unhardened[0])
            del self._unhardened[0]

    def _write_again(self, start: int, end: int) -> None:
        at = bisect_right(self.starts, start) - 1
        file, first = self.files[at], self.starts[at]
        for position in range(start - first, end - first, _HARDENED_AT_ONCE):
            size = min(_HARDENED_AT_ONCE, end - first - position)
            file.write(position, file.read(position, size))
        file.sync()

    def read(self, position: int, size: int) -> bytes:
        """Bytes of one file from a position on; fewer at the file's end, none if it was deleted.

        Raises:
            CorruptRecord: The disk cannot read them.
        """
        at = bisect_right(self.starts, position) - 1
        if at < 0:
            return b""
        try:
            return self.files[at].read(position - self.starts[at], size)
        except OSError as error:
            raise CorruptRecord(position, f"the disk cannot read it: {error}") from error

    def replace(self, position: int, data: bytes) -> File:
        """Overwrite some bytes of one file; returns the file, which is not synced.

        Raises:
            OSError: A disk operation failed.
        """
        extent = self.extent_at(position)
        assert self.start <= position, "it was deleted"
        assert position + len(data) <= extent.end, "a file ends where the next one begins"
        file = self.files[self.starts.index(extent.start)]
        file.write(position - extent.start, data)
        return file

    def append(self, *pieces: bytes | bytearray, stay: bool = False, begin: bool = False) -> None:
        """Write pieces at the end; begin a new file if the current one is full and ``stay`` is
        false, or if ``begin`` is true.

        Raises:
            DiskFull: The disk is full. The end of the log is unchanged.
            WriteFailed: The write failed. The end of the log is unchanged.
        """
        size = sum(map(len, pieces))
        try:
            if not self._is_tidy:
                self._tidy()
            inside = self.end - self.starts[-1] if self.starts else 0
            is_full = inside and inside + size > self._size and not stay
            if not self.starts or is_full or (begin and inside):
                self._begin_file()
                inside = 0
            self.files[-1].write(inside, *pieces)
        except OSError as error:
            self._is_tidy = False
            with suppress(OSError):
                self._tidy()
            if error.errno in NO_ROOM:
                raise DiskFull(f"the disk is full: {error}") from error
            raise WriteFailed(f"the disk refused a write: {error}") from error
        self.end += size

    def begin_at(self, position: int) -> None:
        """Begin the first file, at a position.

        Raises:
            OSError: A disk operation failed.
        """
        assert not self.starts, "only an empty log begins anywhere"
        self.end = position
        self._begin_file()

    def _begin_file(self) -> None:
        path = path_of(self.end)
        self._leftover = path
        fresh = self._disk.open(path, create=True)
        self._leftover = None
        self.starts.append(self.end)
        self.files.append(fresh)

    def _tidy(self) -> None:
        # Nothing is written before this has succeeded. Bytes after the end would overlap the next
        # file's positions, and the name of a file whose creation failed may not be durable.
        self.harden_rest()
        if self._leftover is not None:
            self._disk.remove(self._leftover)
            self._leftover = None
        if self.files:
            self.files[-1].truncate(self.end - self.starts[-1])
        self._is_tidy = True

    def cut(self, position: int, *, is_last: bool = False) -> None:
        """End the log at a position.

        Args:
            position: The end.
            is_last: True if nothing will be written here afterwards. Otherwise a cut that fails on
                a full disk is made before the next write.

        Raises:
            OSError: A disk operation failed.
        """
        at = bisect_right(self.starts, position) - 1
        inside = position - self.starts[at]
        for extra in range(len(self.files) - 1, at, -1):
            self.files[extra].close()
            self._disk.remove(path_of(self.starts[extra]))
            del self.files[extra], self.starts[extra]
        self.end = position
        try:
            self.files[at].truncate(inside)
            self.files[at].sync()
        except OSError as error:
            if is_last or error.errno not in NO_ROOM:
                raise
            self._is_tidy = False

    def drop_empty(self) -> None:
        """Delete the newest file, which is empty; the log continues in the previous one.

        Raises:
            OSError: A disk operation failed.
        """
        assert len(self.files) > 1, "the first file is never deleted"
        assert self.starts[-1] == self.end, "the newest file has bytes"
        self._disk.remove(path_of(self.end))
        self.files.pop().close()
        self.starts.pop()
        self._is_tidy = False

    def drop_first(self) -> int:
        """Delete the oldest file and return the position at which the log begins now."""
        assert len(self.files) > 1, "the file being written is never deleted"
        self._disk.remove(path_of(self.starts[0]))
        self.files.pop(0).close()
        del self.starts[0]
        return self.start

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.close()
