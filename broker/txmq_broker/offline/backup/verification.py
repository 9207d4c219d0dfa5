"""The verification of a backup.

The inspection of a broker's directory reads the backup in place, as if it were one. It finds damage
of the log and the tables. Then each copied file is compared with the checksum in the manifest.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence

from txmq.runtime.disk import Disk, File, Lock, Space
from txmq_broker.offline.backup.manifest import (
    BackupManifest,
    BackupRefused,
    CopiedFile,
    ManifestFile,
    read_whole,
    save_beginning,
    save_tables,
)
from txmq_broker.offline.inspection.directory_inspection import Inspection
from txmq_broker.offline.inspection.findings import Finding, InspectionSummary, Severity
from txmq_broker.store.index_file import FOLDER as INDEX_FOLDER

__all__ = ["Verification"]


class Verification:
    """One verification of a backup; it changes nothing.

    Args:
        folder: The backup's folder, locked by the caller.
        progress: Called with the number of bytes that were read.

    Attributes:
        manifest: The manifest of the backup.
        summary: The totals, once all findings were read.
        bytes_to_read: The number of bytes that the progress adds up to.
        damaged: The paths, in the broker's directory, of the files with damage or loss.
    """

    def __init__(self, folder: Disk, progress: Callable[[int], None] = lambda _: None) -> None:
        self._folder = folder
        self._progress = progress
        self._file = ManifestFile(folder)
        self.manifest = self._load()
        self.summary = InspectionSummary()
        self.damaged: set[str] = set()
        self.bytes_to_read = sum(file.size for file in self.manifest.files) + (
            self.manifest.end - self.manifest.start
        )

    def _load(self) -> BackupManifest:
        manifest = self._file.load()
        if manifest is None:
            raise BackupRefused(f"the folder has no backup: it has no {self._file.paths[0]}")
        if not manifest.taken_ms:
            raise BackupRefused(
                "the first backup into this folder was interrupted; create it again: "
                "txmq backup create"
            )
        return manifest

    def findings(self) -> Iterator[Finding]:
        """All findings: about the log and the tables first, then about the copies.

        Raises:
            OSError: The folder cannot be read.
        """
        inspection = Inspection(BackupContents(self._folder, self.manifest), self._progress)
        self.summary = inspection.summary
        for finding in inspection.findings():
            if finding.severity is not Severity.NOTE:
                self.damaged.add(finding.file)
            yield finding
        for finding in self._copies():
            self.summary.damages += finding.severity is Severity.DAMAGE
            self.summary.losses += finding.severity is Severity.LOSS
            yield finding

    @property
    def is_restorable(self) -> bool:
        """True if nothing is lost. A broker rebuilds an index, and the manifest has two copies."""
        return all(path.startswith(f"{INDEX_FOLDER}/") for path in self.damaged)

    def _copies(self) -> Iterator[Finding]:
        for path, fault in self._file.find_faults(self.manifest):
            yield Finding(
                kind="manifest-damaged",
                severity=Severity.DAMAGE if fault else Severity.NOTE,
                file=path,
                text=f"{fault or 'it differs from the other copy'}; the other copy is used, and "
                "the next txmq backup create writes both",
            )
        for file in self.manifest.files:
            # For a damaged file, the inspection has named the place and the messages.
            if file.path not in self.damaged and (finding := self._copy(file)) is not None:
                self.damaged.add(file.path)
                yield finding

    def _copy(self, file: CopiedFile) -> Finding | None:
        try:
            size, checksum = self._read(file)
        except FileNotFoundError:
            return Finding(
                kind="file-missing",
                severity=_severity(file),
                file=file.place,
                text="the manifest names this file, and it does not exist",
            )
        except OSError as error:
            return Finding(
                kind="copy-unreadable",
                severity=Severity.DAMAGE,
                file=file.place,
                text=f"the disk cannot read the file: {error.strerror or error}",
            )
        if size < file.size:
            return Finding(
                kind="file-cut",
                severity=_severity(file),
                file=file.place,
                offset=size,
                size=file.size - size,
                text=f"{file.size - size} bytes of the {file.size} that were copied are missing",
            )
        if checksum != file.checksum:
            return Finding(
                kind="copy-differs",
                severity=Severity.DAMAGE,
                file=file.place,
                text="the bytes differ from those that were copied: their checksum is "
                f"{checksum:08x}, and the manifest says {file.checksum:08x}",
            )
        return None

    def _read(self, file: CopiedFile) -> tuple[int, int]:
        """The number of bytes of a copied file that exist, and their checksum."""
        opened = self._folder.open(file.place)
        try:
            return read_whole(opened, file.size, lambda _, data: self._progress(len(data)))
        finally:
            opened.close()


def _severity(file: CopiedFile) -> Severity:
    """The severity of missing bytes."""
    return Severity.DAMAGE if file.path.startswith(f"{INDEX_FOLDER}/") else Severity.LOSS


class BackupContents:
    """Presents a backup as a broker's directory, so that an inspection can read it in place.

    Small files, and all changes to them, stay in memory.
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
