"""A small file with a checksum and a predecessor; each save replaces the whole file.

A save keeps the replaced file as the predecessor, such as ``topics.json.old``. For tables that must
not lose a change, the predecessor is a second copy of the current text instead.
"""

from __future__ import annotations

import errno
import logging
from typing import Final

from txmq.errors import DamagedFile, ForeignFile, RemoteProtocolError
from txmq.protocol.checked_body import pack, unpack
from txmq.runtime.disk import Disk

__all__ = ["CheckedFile"]

log = logging.getLogger(__name__)

_SUFFIX: Final = ".old"


class CheckedFile:
    """One file and its predecessor."""

    def __init__(self, disk: Disk, path: str, *, is_doubled: bool = False) -> None:
        """Name the file; nothing is read yet.

        Args:
            disk: The directory that holds it.
            path: Its path; the predecessor's path ends with ``.old``.
            is_doubled: True if the predecessor always has the same text as the file.
        """
        self.path = path
        self.predecessor = path + _SUFFIX
        self._disk = disk
        self._name = path.rpartition("/")[2]
        self._is_doubled = is_doubled
        self._is_whole = False
        self._has_predecessor = False

    @property
    def is_complete(self) -> bool:
        """True if the file and its predecessor were intact at the last read or write."""
        return self._is_whole and self._has_predecessor

    def load(self, owner: str) -> bytes | None:
        """The text that was saved, or ``None`` if neither the file nor its predecessor exists.

        If the file is damaged or missing, its predecessor takes its place, with a warning.

        Args:
            owner: The identity of the directory's log, in hexadecimal; "" accepts the files of any.

        Raises:
            DamagedFile: Neither of the two is intact.
            ForeignFile: The file belongs to another directory.
            OSError: The file cannot be opened.
        """
        self._is_whole = self._has_predecessor = False
        text, fault = self._read(self.path, owner)
        kept, kept_fault = self._read(self.predecessor, owner)
        self._is_whole = text is not None
        # A crash during a save leaves two different copies; the next save repairs that.
        self._has_predecessor = kept is not None and (not self._is_doubled or kept == text)
        if text is not None:
            if kept_fault:
                log.warning(
                    "%s: %s; nothing is lost, as %s is whole and replaces it",
                    self.predecessor, kept_fault, self.path,
                )  # fmt: skip
            return text
        if kept is None:
            if not fault and not kept_fault:
                return None
            raise DamagedFile(self.path, self._both(fault, kept_fault))
        self._has_predecessor = True
        log.warning(
            "%s: %s; its predecessor %s takes its place, and %s",
            self.path, fault or "it was deleted", self.predecessor,
            "nothing is lost" if self._is_doubled else "the last changes to it may be missing",
        )  # fmt: skip
        return kept

    def find_faults(self, owner: str) -> list[tuple[str, str]]:
        """Return the faults of the file and of its predecessor, each with its path.

        A file that was never saved has no fault.
        """
        faults: list[tuple[str, str]] = []
        texts: list[bytes | None] = []
        for path in (self.path, self.predecessor):
            try:
                text, fault = self._read(path, owner)
            except ForeignFile as error:
                text, fault = None, str(error)
            texts.append(text)
            if fault:
                faults.append((path, fault))
            elif text is None:
                faults.append((path, "it was deleted"))
        if len(faults) == len(texts) and all(fault == "it was deleted" for _, fault in faults):
            return []
        if self._is_doubled and not faults and texts[0] != texts[1]:
            return [(self.predecessor, "")]
        return faults

    def _both(self, fault: str, kept_fault: str) -> str:
        return (
            f"{fault or 'it was deleted'}, and its predecessor {self.predecessor} cannot replace "
            f"it: {kept_fault or 'it does not exist'}"
        )

    def _read(self, path: str, owner: str) -> tuple[bytes | None, str]:
        """The text of a file, or its fault; neither if the file does not exist."""
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return None, ""
        try:
            found = unpack(self._name, file.read(0, file.size()))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None, f"the disk cannot read it ({error.strerror})"
        except RemoteProtocolError as error:
            return None, f"it is damaged: {error}"
        finally:
            file.close()
        if owner and found.owner != owner:
            if path == self.path:
                # An operator put it here, so an operator must choose the right file.
                raise ForeignFile(path, int(found.owner or "0", 16), int(owner, 16))
            return None, f"it belongs to the log {found.owner or '0'} of another broker"
        return found.text, ""

    def save(self, owner: str, data: bytes) -> None:
        """Replace the text, durably. A crash leaves the old text or the new one.

        Raises:
            OSError: A write failed. The file holds the old text or the new one.
        """
        packed = pack(self._name, owner, data)
        if self._is_doubled and self._is_whole:
            # The copy comes first: the change counts once the file itself is replaced.
            self._has_predecessor = False
            self._replace(self.predecessor, packed)
            self._has_predecessor = True
            self._replace(self.path, packed)
            return
        # Only an intact file becomes the predecessor.
        self._replace(self.path, packed, keep=self.predecessor if self._is_whole else None)
        self._has_predecessor = self._is_whole or (self._has_predecessor and not self._is_doubled)
        self._is_whole = True
        if not self._has_predecessor:
            self._replace(self.predecessor, packed)
            self._has_predecessor = True

    def _replace(self, path: str, packed: bytes, keep: str | None = None) -> None:
        try:
            self._disk.replace(path, packed, keep=keep)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
