"""The manifest of a backup: which files it consists of, and the broker's small tables themselves.

Replacing this one file makes a new backup valid. So every file that it names stays as it was until
the next manifest is durable. A file of the log may be longer than the manifest says: then a later
``create`` did not finish, and the rest does not count.
"""

from __future__ import annotations

from typing import Final

import msgspec

from txmq.errors import DamagedFile, StoreError
from txmq.runtime.disk import Disk
from txmq_broker.names.server import FILES as NAMES_FILES
from txmq_broker.services.keeper import Keeper
from txmq_broker.store.checked_file import CheckedFile
from txmq_broker.store.log.commit_log import HighWater, Mark
from txmq_broker.store.log.identity import write_identity

__all__ = [
    "BackupManifest",
    "BackupRefused",
    "CopiedFile",
    "ManifestFile",
    "save_beginning",
    "save_tables",
    "table_files",
]

PATH: Final = "manifest.json"
LINKED_FOLDER: Final = "linked"
"""Hard links are apart from copies, so no copy is ever appended to a file of the broker."""

_VERSION: Final = 1


class BackupRefused(StoreError):
    """A backup cannot be created here, or the folder holds no backup; nothing was changed."""


class CopiedFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of the backup."""

    path: str
    """Its path in the broker's directory."""
    size: int
    checksum: int
    """The CRC-32 of so many bytes."""
    is_linked: bool = False
    """True if it is a hard link to the broker's own file."""

    @property
    def place(self) -> str:
        """Its path in the backup's folder."""
        return f"{LINKED_FOLDER}/{self.path}" if self.is_linked else self.path


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What one backup holds."""

    version: int = _VERSION
    log: str
    """The identity of the log, in hexadecimal."""
    source: str
    """The machine and the directory that it was copied from, for people."""
    taken_ms: int = 0
    """The moment that it shows: everything acknowledged before is in it. 0 before the first backup
    is complete."""
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
        """The high-water mark of the copied log; ``None`` if that is empty."""
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


def table_files(disk: Disk) -> tuple[tuple[CheckedFile, ...], tuple[CheckedFile, ...]]:
    """The files of small tables: those that every broker has, the floors last, and others, with
    those of its name server.
    """
    of_names = [CheckedFile(disk, path, is_doubled=True) for path in NAMES_FILES]
    keeper = Keeper(disk)
    return keeper.files, (*keeper.other_files, *of_names)


def save_beginning(disk: Disk, manifest: BackupManifest) -> None:
    """Write the floors, the identity and the high-water mark of the copied log.

    Of a directory with these files a start wants the log and the other tables, too. So it refuses
    one that a restore has not completed.

    Raises:
        OSError: The disk refuses.
    """
    always, _ = table_files(disk)
    _save(manifest, always[-1:])
    write_identity(disk, manifest.log_id)
    if manifest.mark is not None:
        high_water = HighWater(disk, manifest.log_id)
        try:
            high_water.settle(manifest.mark)
        finally:
            high_water.close()


def save_tables(disk: Disk, manifest: BackupManifest) -> None:
    """Write the other small tables; the directory is complete with the last of them.

    Raises:
        OSError: The disk refuses.
    """
    always, others = table_files(disk)
    _save(manifest, (*others, *always[:-1]))


def _save(manifest: BackupManifest, files: tuple[CheckedFile, ...]) -> None:
    for file in files:
        if file.path in manifest.tables:
            file.save(manifest.log, manifest.tables[file.path].encode())
