"""The high-water mark: how far the log was durable, noted beside it after every sync.

The log alone does not show that its newest file was cut: it looks like a shorter log. The mark
shows it. It is written without a sync of its own, so it survives the death of the process, and
after a power cut it may be older than the log; it never claims more than what was durable. A clean
stop syncs it.

The file has two slots that are written in turn, so that a torn write leaves the other one.
"""

from __future__ import annotations

import logging
from struct import Struct
from typing import Final, NamedTuple

from txmq.errors import ForeignFile
from txmq.protocol.checksum import crc32
from txmq.protocol.span import SpanHead
from txmq.runtime.disk import Disk, File

__all__ = ["PATH", "HighWater", "Mark", "log_of"]

log = logging.getLogger(__name__)

PATH: Final = "high-water"
_MAGIC: Final = 0x7478_6D68
_FIELDS: Final = Struct(">IQqqqqIqBB")
_CHECK: Final = Struct(">I")
_SLOT_BYTES: Final = 512
"""A sector of its own for each slot: a torn write cannot take both."""


class Mark(NamedTuple):
    """A state of the log that was durable."""

    oldest: int
    """The position at which the log began."""
    start: int
    """The position at which its last span begins."""
    end: int
    """The position at which its last span, and with it the log, ends."""
    checksum: int
    """The last span's, from its head."""
    accepted: int = 0
    """Up to where a loss was accepted: tables that were saved before may name more of the log."""
    is_async: bool = False
    """True if messages were published before they were durable."""
    is_clean: bool = False
    """True if the broker was stopped cleanly there."""

    def is_of(self, head: SpanHead | None) -> bool:
        """Return true if this is the head of the last span that the mark knows."""
        known = (self.end, self.checksum)
        return head is not None and (head.position + head.size, head.checksum) == known


class HighWater:
    """The mark of one log. A write that fails is reported once: the log itself is unharmed."""

    def __init__(self, disk: Disk, log_id: int) -> None:
        self._disk = disk
        self._log_id = log_id
        self._file: File | None = None
        self._sequence = 0
        self._is_failing = False
        self.mark: Mark | None = None

    def load(self) -> None:
        """Read the mark; a file that is missing or damaged in both slots leaves none.

        Raises:
            ForeignFile: It was written for another log.
        """
        try:
            self._file = self._disk.open(PATH)
        except FileNotFoundError:
            return
        for slot in range(2):
            data = self._file.read(slot * _SLOT_BYTES, _FIELDS.size + _CHECK.size)
            found = _read(data)
            if found is None:
                continue
            log_id, sequence, mark = found
            if log_id != self._log_id:
                raise ForeignFile(PATH, log_id, self._log_id)
            if sequence > self._sequence:
                self._sequence, self.mark = sequence, mark

    def damaged_slots(self) -> list[int]:
        """Return the places of the slots that were written and are not whole."""
        if self._file is None:
            return []
        blank = bytes(_SLOT_BYTES)
        size = _FIELDS.size + _CHECK.size
        damaged = []
        for place in range(0, 2 * _SLOT_BYTES, _SLOT_BYTES):
            data = self._file.read(place, _SLOT_BYTES).ljust(_SLOT_BYTES, b"\0")
            if data != blank and (_read(data[:size]) is None or data[size:] != blank[size:]):
                damaged.append(place)
        return damaged

    def advance(self, mark: Mark) -> None:
        """Note a state that is durable; it need not be noted durably itself."""
        if self.mark is not None:
            mark = mark._replace(accepted=self.mark.accepted)
        self.mark = mark
        try:
            self._write(mark)
        except OSError as error:
            self._report(error)
        else:
            self._is_failing = False

    def settle(self, mark: Mark) -> None:
        """Put a state in the place of all that was noted before, durably.

        Raises:
            OSError: The disk refused.
        """
        self.mark = mark
        self._write(mark)
        self._write(mark)
        assert self._file is not None
        self._file.sync()

    def _write(self, mark: Mark) -> None:
        if self._file is None:
            self._file = self._disk.open(PATH, create=True)
        self._sequence += 1
        fields = _FIELDS.pack(_MAGIC, self._log_id, self._sequence, *mark)
        place = (self._sequence % 2) * _SLOT_BYTES
        self._file.write(place, fields + _CHECK.pack(crc32(fields)))

    def _report(self, error: OSError) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.warning(
                "%s could not be written: %s; until it can, a cut of the log may go unnoticed",
                PATH,
                error,
            )

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def log_of(disk: Disk) -> int | None:
    """The log that the file was written for, where it can be read."""
    try:
        file = disk.open(PATH)
    except FileNotFoundError:
        return None
    try:
        slots = [file.read(slot * _SLOT_BYTES, _FIELDS.size + _CHECK.size) for slot in range(2)]
    finally:
        file.close()
    return next((found[0] for slot in slots if (found := _read(slot)) is not None), None)


def _read(data: bytes) -> tuple[int, int, Mark] | None:
    if len(data) < _FIELDS.size + _CHECK.size:
        return None
    (
        magic, log_id, sequence, oldest, start, end, checksum, accepted, is_async, is_clean,
    ) = _FIELDS.unpack_from(data)  # fmt: skip
    if magic != _MAGIC or _CHECK.unpack_from(data, _FIELDS.size)[0] != crc32(data[: _FIELDS.size]):
        return None
    return (
        log_id,
        sequence,
        Mark(oldest, start, end, checksum, accepted, bool(is_async), bool(is_clean)),
    )
