"""A part of an index file under one checksum, which is verified at the first read."""

from __future__ import annotations

from txmq.errors import CorruptRecord
from txmq.protocol.checksum import crc32
from txmq.runtime.disk import File

__all__ = ["SealedBytes"]


class SealedBytes:
    """A range of a file's bytes, with their checksum."""

    __slots__ = ("_at", "_checksum", "_file", "_is_whole", "_path", "_size", "_start")

    def __init__(
        self, file: File, path: str, start: int, at: int, size: int, checksum: int
    ) -> None:
        """Describe the bytes at ``at``; error texts name ``start``, the log position they belong
        to.
        """
        self._file = file
        self._path = path
        self._start = start
        self._at = at
        self._size = size
        self._checksum = checksum
        self._is_whole = False

    def is_whole(self) -> bool:
        """Return true if the bytes are as written; a positive result is cached."""
        if not self._is_whole:
            data = self._file.read(self._at, self._size)
            self._is_whole = len(data) == self._size and crc32(data) == self._checksum
        return self._is_whole

    def read(self, position: int, size: int) -> bytes:
        """Bytes at a position of the file.

        Raises:
            CorruptRecord: The bytes differ from the written ones, or cannot be read.
        """
        try:
            if self._is_whole or self.is_whole():
                return self._file.read(position, size)
        except OSError as error:
            raise CorruptRecord(
                self._start, f"the disk cannot read its index {self._path}: {error}"
            ) from error
        raise CorruptRecord(
            self._start,
            f"not the log itself but its index {self._path}; stop the broker and delete that file, "
            "it is made again from the log (txmq log verify --repair --data DIR does so)",
        )
