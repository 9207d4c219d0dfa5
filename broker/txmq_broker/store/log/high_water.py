"""The high-water mark: the log's durable end, written beside the log after every sync.

A log whose newest file was cut looks like a shorter log; the mark reveals the cut. The mark is
written without a sync, so it survives the death of the process, and after a power cut it may be
older than the log. It never claims more than was durable. A clean stop syncs it.

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
"""Each slot has its own sector: a torn write cannot destroy both."""


class Mark(NamedTuple):
    """A durable state of the log."""

    oldest: int
    """The position at which the log began."""
    start: int
    """The position at which its last span begins."""
    end: int
    """The position at which its last span, and with it the log, ends."""
    checksum: int
    """The checksum in the last span's head."""
    accepted: int = 0
    """The end of the last accepted loss: tables saved before it may refer to later positions."""
    is_async: bool = False
    """True if messages were published before they were durable."""
    is_clean: bool = False
    """True if the broker stopped cleanly in this state."""

    def is_of(self, head: SpanHead | None) -> bool:
        """Return true if this is the head of the last span in the mark."""
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
        """Read the mark; there is no mark if the file is missing or both slots are damaged.

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
        """Return the places of the damaged slots."""
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
        """Record a durable state; the record itself need not be durable."""
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
        """Replace all recorded states by one, durably.

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
    """The log that the file belongs to, if it can be read."""
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
