"""The manifest of a backup: the list of its files, and the contents of the broker's small tables.

A new backup becomes valid when this one file is replaced. Until then, every file that the old
manifest names keeps its bytes. A file may be longer than the manifest says if a later ``create``
did not finish; the surplus does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from txmq.errors import DamagedFile, StoreError
from txmq.protocol.checksum import crc32
from txmq.runtime.disk import Disk, File
from txmq_broker.offline.directory import BrokerDirectory
from txmq_broker.store.checked_file import CheckedFile
from txmq_broker.store.log.commit_log import Mark
from txmq_broker.store.log.identity import write_identity

__all__ = [
    "BackupManifest",
    "BackupRefused",
    "CopiedFile",
    "ManifestFile",
    "read_whole",
    "save_beginning",
    "save_tables",
]

PATH: Final = "manifest.json"
LINKED_FOLDER: Final = "linked"
"""Hard links are kept apart from copies, so nothing is ever appended to a file of the broker."""

_READ_AT_ONCE: Final = 4 * 1024 * 1024

_VERSION: Final = 1


class BackupRefused(StoreError):
    """A backup cannot be created here, or the folder holds no backup; nothing was changed."""


class CopiedFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of the backup."""

    path: str
    """Its path in the broker's directory."""
    size: int
    checksum: int
    """The CRC-32 of these bytes."""
    is_linked: bool = False
    """True if it is a hard link to the broker's own file."""

    @property
    def place(self) -> str:
        """Its path in the backup's folder."""
        return f"{LINKED_FOLDER}/{self.path}" if self.is_linked else self.path


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of one backup."""

    version: int = _VERSION
    log: str
    """The identity of the log, in hexadecimal."""
    source: str
    """The machine and the directory that it was copied from."""
    taken_ms: int = 0
    """Everything acknowledged before this moment is in the backup; 0 until the first backup is
    complete."""
    start: int = 0
    """The position of the log's first byte."""
    end: int = 0
    """The position after its last span."""
    last_span: int = 0
    """The position of its last span."""
    last_checksum: int = 0
    """The checksum in the head of its last span."""
    accepted: int = 0
    """See :attr:`Mark.accepted`."""
    is_async: bool = False
    """See :attr:`Mark.is_async`."""
    files: list[CopiedFile] = []
    tables: dict[str, str] = {}
    """The texts of the small tables, by their paths in the broker's directory."""

    @property
    def log_id(self) -> int:
        """The identity of the log, as a number."""
        return int(self.log, 16)

    @property
    def mark(self) -> Mark | None:
        """The high-water mark of the copied log; ``None`` if the log is empty."""
        if self.end == self.start:
            return None
        return Mark(
            self.start, self.last_span, self.end, self.last_checksum, self.accepted, self.is_async
        )


class ManifestFile:
    """The manifest in a folder, and its second copy."""

    def __init__(self, folder: Disk) -> None:
        self._file = CheckedFile(folder, PATH, is_doubled=True)
        self.paths = (self._file.path, self._file.predecessor)

    def load(self) -> BackupManifest | None:
        """The manifest, or ``None`` if the folder has none.

        Raises:
            DamagedFile: Both copies are damaged.
            BackupRefused: A newer version of txmq wrote it.
            OSError: The folder cannot be read.
        """
        data = self._file.load("")
        if data is None:
            return None
        try:
            found = msgspec.json.decode(data, type=BackupManifest)
        except msgspec.MsgspecError as error:
            raise DamagedFile(PATH, f"it is whole, but is not a manifest: {error}") from error
        if found.version > _VERSION:
            raise BackupRefused(
                f"a newer version of txmq wrote {PATH} (format {found.version}, and this version "
                f"reads formats up to {_VERSION}); use that version"
            )
        return found

    def save(self, manifest: BackupManifest) -> None:
        """Replace the manifest durably; after a crash it is the old or the new one.

        Raises:
            OSError: The disk refuses.
        """
        self._file.save(manifest.log, msgspec.json.format(msgspec.json.encode(manifest), indent=1))

    def find_faults(self, manifest: BackupManifest) -> list[tuple[str, str]]:
        """The faults of the two copies, each with its path."""
        return self._file.find_faults(manifest.log)


def read_whole(file: File, size: int, take: Callable[[int, bytes], None]) -> tuple[int, int]:
    """Read the first bytes of a file; return their number and their checksum.

    Args:
        file: The file.
        size: How many bytes to read.
        take: Called with each piece and its place in the file.
    """
    done, checksum = 0, 0
    while data := file.read(done, min(_READ_AT_ONCE, size - done)):
        take(done, data)
        done, checksum = done + len(data), crc32(data, checksum)
    return done, checksum


def save_beginning(disk: Disk, manifest: BackupManifest) -> None:
    """Write the floors, the identity and the high-water mark of the copied log.

    A broker that finds these files requires the log and the other tables as well. So it does not
    start in a directory whose restoration was interrupted.

    Raises:
        OSError: The disk refuses.
    """
    directory = BrokerDirectory(disk, manifest.log_id)
    _save(manifest, directory.tables[-1:])
    write_identity(disk, manifest.log_id)
    if manifest.mark is not None:
        with directory.high_water() as high_water:
            high_water.settle(manifest.mark)


def save_tables(disk: Disk, manifest: BackupManifest) -> None:
    """Write the other small tables, which complete the directory.

    Raises:
        OSError: The disk refuses.
    """
    directory = BrokerDirectory(disk, manifest.log_id)
    _save(manifest, (*directory.optional_tables, *directory.tables[:-1]))


def _save(manifest: BackupManifest, files: tuple[CheckedFile, ...]) -> None:
    for file in files:
        if file.path in manifest.tables:
            file.save(manifest.log, manifest.tables[file.path].encode())
