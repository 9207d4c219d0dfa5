"""The verification of a backup: its manifest, its checksums, and an inspection of its contents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from txmq.protocol.checksum import crc32
from txmq.runtime.disk import Disk
from txmq_broker.offline.backup.contents import BackupContents
from txmq_broker.offline.backup.manifest import (
    BackupManifest,
    BackupRefused,
    CopiedFile,
    ManifestFile,
)
from txmq_broker.offline.inspection.directory_inspection import Inspection
from txmq_broker.offline.inspection.findings import Finding, InspectionSummary, Severity
from txmq_broker.store.index_file import FOLDER as INDEX_FOLDER

__all__ = ["Verification"]

_READ_AT_ONCE: Final = 4 * 1024 * 1024


class Verification:
    """One verification of a backup; it changes nothing.

    Args:
        folder: The backup's folder, locked by the caller.
        progress: Called with the number of bytes that were read.

    Attributes:
        manifest: The manifest of the backup.
        summary: The totals, once all findings were read.
        bytes_to_read: The number of bytes that the progress adds up to.
        damaged: The files with damage or loss, by their paths in the broker's directory.
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
        """True if nothing is lost: a broker builds an index again, and the manifest has two
        copies.
        """
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
            # The inspection of a damaged file names the place, and the messages.
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
        """The number of bytes that exist of a copied file, and their checksum."""
        opened = self._folder.open(file.place)
        try:
            done, checksum = 0, 0
            while done < file.size:
                data = opened.read(done, min(_READ_AT_ONCE, file.size - done))
                if not data:
                    break
                done, checksum = done + len(data), crc32(data, checksum)
                self._progress(len(data))
        finally:
            opened.close()
        return done, checksum


def _severity(file: CopiedFile) -> Severity:
    """How bad it is that bytes of a file are missing."""
    return Severity.DAMAGE if file.path.startswith(f"{INDEX_FOLDER}/") else Severity.LOSS
