"""The contents of a backup as a broker's directory, so that an inspection can read it in place."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Sequence

from txmq.runtime.disk import Disk, File, Lock, Space
from txmq_broker.offline.backup.manifest import (
    BackupManifest,
    CopiedFile,
    save_beginning,
    save_tables,
)

__all__ = ["BackupContents"]


class BackupContents:
    """A :class:`txmq.runtime.Disk` for reading. The small files are in memory, and so is every
    change to them.
    """

    def __init__(self, folder: Disk, manifest: BackupManifest) -> None:
        self._folder = folder
        self._copied = {file.path: file for file in manifest.files if _exists(folder, file)}
        self._small: dict[str, bytearray] = {}
        save_beginning(self, manifest)
        save_tables(self, manifest)

    def open(self, path: str, *, create: bool = False) -> File:
        """See :meth:`txmq.runtime.Disk.open`; a new file is in memory.

        Raises:
            FileNotFoundError: The file does not exist and ``create`` is false.
        """
        copied = self._copied.get(path)
        if copied is not None:
            return _CopiedBytes(self._folder.open(copied.place), copied.size)
        if path not in self._small and not create:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return _SmallFile(self._small.setdefault(path, bytearray()))

    def names(self, folder: str) -> list[str]:
        """See :meth:`txmq.runtime.Disk.names`."""
        start = f"{folder}/" if folder else ""
        inside = [path for path in (*self._copied, *self._small) if path.startswith(start)]
        return sorted({path[len(start) :].split("/")[0] for path in inside})

    def replace(self, path: str, data: bytes, *, keep: str | None = None) -> None:
        """See :meth:`txmq.runtime.Disk.replace`."""
        if keep is not None and path in self._small:
            self._small[keep] = self._small[path]
        self._small[path] = bytearray(data)

    def remove(self, path: str) -> None:
        """See :meth:`txmq.runtime.Disk.remove`; the backup itself keeps the file."""
        self._copied.pop(path, None)
        self._small.pop(path, None)

    def space(self) -> Space:
        """See :meth:`txmq.runtime.Disk.space`."""
        return self._folder.space()

    def lock(self) -> Lock:
        """See :meth:`txmq.runtime.Disk.lock`."""
        return self._folder.lock()

    def sync_soon(self, files: Sequence[File]) -> asyncio.Future[None]:
        """See :meth:`txmq.runtime.Disk.sync_soon`."""
        return self._folder.sync_soon(files)

    def run_soon(self, work: Callable[[], None]) -> Awaitable[None]:
        """See :meth:`txmq.runtime.Disk.run_soon`."""
        return self._folder.run_soon(work)


def _exists(folder: Disk, file: CopiedFile) -> bool:
    inside, _, name = file.place.rpartition("/")
    return name in folder.names(inside)


class _SmallFile:
    def __init__(self, data: bytearray) -> None:
        self._data = data

    def read(self, position: int, size: int) -> bytes:
        return bytes(self._data[position : position + size])

    def write(self, position: int, *pieces: bytes | bytearray) -> None:
        data = b"".join(pieces)
        self._data.extend(bytes(max(0, position - len(self._data))))
        self._data[position : position + len(data)] = data

    def sync(self) -> None:
        """Do nothing: it is in memory."""

    def size(self) -> int:
        return len(self._data)

    def truncate(self, size: int) -> None:
        del self._data[size:]

    def close(self) -> None:
        """Do nothing."""


class _CopiedBytes:
    """A copied file, up to the size in the manifest."""

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self._size = size

    def read(self, position: int, size: int) -> bytes:
        return self._file.read(position, max(0, min(size, self._size - position)))

    def write(self, position: int, *pieces: bytes | bytearray) -> None:  # noqa: ARG002
        raise _refusal()

    def sync(self) -> None:
        """Do nothing: nothing is written."""

    def size(self) -> int:
        return min(self._file.size(), self._size)

    def truncate(self, size: int) -> None:  # noqa: ARG002 - the port's
        raise _refusal()

    def close(self) -> None:
        self._file.close()


def _refusal() -> OSError:
    return OSError(errno.EROFS, os.strerror(errno.EROFS))
