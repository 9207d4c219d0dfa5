"""The log of all topics, and its high-water mark.

Records are staged during a turn, then written together as one span. The mark says how far the log
was durable; it is written to a separate file after every sync. A log whose newest file was cut
looks like a shorter log, and only the mark shows the difference. The mark is written without a
sync: it survives the death of the process, but after a power cut it may be older than the log. It
never claims more than was durable. A clean stop syncs it.

The mark's file has two slots that are written in turn, so that a torn write leaves the other one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from txmq.errors import ForeignFile, RemoteProtocolError
from txmq.limits import FRAME_BYTES_MAX
from txmq.protocol import record as records
from txmq.protocol.checksum import crc32
from txmq.protocol.span import (
    CHECKSUM_AT,
    HEAD_BYTES,
    SpanHead,
    head,
    head_of,
    moment_of,
)
from txmq.runtime.disk import Disk, File
from txmq_broker.store.log.segments import Segments

__all__ = ["PATH", "CommitLog", "HighWater", "Mark", "SyncPoint", "log_of"]

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
    """The mark of one log. A failed write is only logged, once, as the log itself is unharmed."""

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
        """Record a durable state; the mark itself need not be durable."""
        if self.mark is not None and self.mark.accepted:
            mark = mark._replace(accepted=self.mark.accepted)
        self.mark = mark
        try:
            self._write(mark)
        except OSError as error:
            self._report(error)
        else:
            self._is_failing = False

    def settle(self, mark: Mark) -> None:
        """Replace all recorded states with this one, durably.

        Raises:
            OSError: A disk operation failed.
        """
        self.mark = mark
        self._write(mark)
        self._write(mark)
        assert self._file is not None
        self._file.sync()

    def forget(self) -> None:
        """Remove the mark.

        Raises:
            OSError: A disk operation failed.
        """
        if self._file is not None:
            self.close()
            self._disk.remove(PATH)
        self.mark = None

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


_NO_HEAD: Final = bytes(HEAD_BYTES)
_LARGE_PIECE_BYTES: Final = 8 * 1024
"""From this mean size on, pieces are written as they are; joining smaller ones is faster."""

_SIZE_MAGIC: Final = Struct(">II")
_READ_AT_ONCE: Final = 2048
"""Most records are smaller, so one read is enough; it costs half as much as two."""


class SyncPoint(NamedTuple):
    """What one sync makes durable: the log's end when it began, and the span that ends there."""

    files: list[File]
    """The files with writes that may not be durable yet, oldest first."""
    start: int
    end: int
    head: bytes
    """The last span's head; empty if none was written since the start."""


class CommitLog:
    """Appends spans, reads records, and records the durable end in the high-water mark.

    Attributes:
        last_ms: The time stamp of the newest record; time stamps in a log never go back.
        next_position: The position that the next staged record will have.
        durable: The position before which every byte is durable.
        epoch: The epoch of the leadership that writes; 0 for a broker without copies.
        staged: The pieces of the records that the next span will hold.
    """

    def __init__(self, disk: Disk, segment_size: int, *, is_async: bool = False) -> None:
        self.segments = Segments(disk, segment_size)
        self.segment_size = segment_size
        self.high_water = HighWater(disk, 0)
        self.last_ms = 0
        self.epoch = 0
        self._is_async = is_async
        self._last_span = 0, b""
        """The position and the head of the newest span."""
        self._marked = 0
        self.staged: list[bytes | bytearray] = []
        self.unsynced: list[File] = []
        self.read = self.segments.read
        self.resume()

    def resume(self) -> None:
        """Continue at the end of the files, which are durable up to there."""
        self._last_span = 0, b""
        self.staged.clear()
        self.unsynced = []
        self.durable = self.segments.end
        self.next_position = self.segments.end + HEAD_BYTES

    # Places

    @property
    def start(self) -> int:
        """The position of the oldest kept byte."""
        return self.segments.start

    @property
    def end(self) -> int:
        """The position at which the next span will start."""
        return self.segments.end

    def file_at(self, position: int) -> int:
        """Return the start of the file that holds a position."""
        return self.segments.extent_at(position).start

    # Appending

    @property
    def staged_bytes(self) -> int:
        """The number of staged bytes."""
        return self.next_position - self.segments.end - HEAD_BYTES

    def stage(self, pieces: Sequence[bytes | bytearray], size: int, stored_ms: int) -> None:
        """Stage records of this size together; the first names :attr:`next_position` as its own.

        Args:
            pieces: Their bytes.
            size: How many these are.
            stored_ms: The time stamp of the last one.
        """
        self.staged += pieces
        self.next_position += size
        self.last_ms = stored_ms

    def write(self, *, stay: bool = False) -> int:
        """Write the staged records as one span and return its end.

        Args:
            stay: True if it must go to the current file, even beyond that file's limit.

        Raises:
            DiskFull: The disk is full. The log has no part of the span.
            WriteFailed: The write failed. The log has no part of the span.
        """
        segments, staged = self.segments, self.staged
        log_id, start, tail = segments.log_id, segments.end, segments.files[-1:]
        size = self.staged_bytes
        if size >= _LARGE_PIECE_BYTES * len(staged):
            checksum = 0
            for piece in staged:
                checksum = crc32(piece, checksum)
            span_head = head_of(log_id, start, self.durable, size, checksum, self.epoch)
            pieces = [span_head, *staged]
        else:
            # The head is written into the joined bytes, because prepending it would copy them
            # again.
            span = bytearray().join((_NO_HEAD, *staged))
            with memoryview(span) as view:
                span_head = head(log_id, start, self.durable, view[HEAD_BYTES:], self.epoch)
                view[:HEAD_BYTES] = span_head
            pieces = [span]
        staged.clear()
        try:
            segments.append(*pieces, stay=stay)
        finally:
            self.next_position = segments.end + HEAD_BYTES
            # Even if the write failed: the new file stays, and the one before it is complete.
            if tail != segments.files[-1:] and self.durable < start:
                self.unsynced += tail
        self._last_span = start, span_head
        return segments.end

    def copy(self, data: bytes, last: SpanHead, file_start: int) -> None:
        """Append spans of another copy of this log, byte for byte.

        Args:
            data: Whole spans of one file.
            last: The head of the last one.
            file_start: The start of their file. It is the end of the log if a new file begins.

        Raises:
            RemoteProtocolError: This copy has another file there.
            DiskFull: The disk is full. The log has no part of the spans.
            WriteFailed: The write failed. The log has no part of the spans.
        """
        segments = self.segments
        start, tail = segments.end, segments.files[-1:]
        if file_start != start and file_start != segments.starts[-1]:
            raise RemoteProtocolError(
                f"position {start} lies in the file {file_start}, and here in {segments.starts[-1]}"
            )
        segments.append(data, stay=True, begin=file_start == start)
        if tail != segments.files[-1:] and self.durable < start:
            self.unsynced += tail
        at = last.position - start
        self._last_span = last.position, data[at : at + HEAD_BYTES]
        self.next_position = segments.end + HEAD_BYTES

    def sync_point(self) -> SyncPoint:
        """What a sync that begins now makes durable."""
        files = [*self.unsynced, *self.segments.files[-1:]]
        start, span_head = self._last_span
        return SyncPoint(files, start, self.segments.end, span_head)

    def synced(self, point: SyncPoint) -> None:
        """Record that the files of this point were synced, also in the high-water mark."""
        self.confirm(point)
        self.mark(point)

    def confirm(self, point: SyncPoint) -> None:
        """Record that the files of this point were synced; call :meth:`mark` soon after."""
        # The last of them may have grown since the sync began.
        completed = point.files[:-1]
        self.unsynced = [file for file in self.unsynced if file not in completed]
        self.durable = max(self.durable, point.end)

    def mark(self, point: SyncPoint) -> None:
        """Note a point that was synced in the high-water mark."""
        _, start, end, span_head = point
        # If two syncs overlap, the one that began earlier may end later.
        if span_head and end > self._marked:
            self._marked = end
            checksum = int.from_bytes(span_head[CHECKSUM_AT : CHECKSUM_AT + 4], "big")
            oldest = self.segments.starts[0]
            self.high_water.advance(Mark(oldest, start, end, checksum, is_async=self._is_async))

    # Reading

    def bytes_at(self, position: int) -> bytes | None:
        """The record at a trusted position, as bytes; ``None`` if no record begins there."""
        data = self.read(position, _READ_AT_ONCE) if position >= self.segments.start else b""
        if len(data) < records.SMALLEST:
            return None
        size, magic = _SIZE_MAGIC.unpack_from(data)
        if magic != records.MAGIC or size > FRAME_BYTES_MAX:
            return None
        if size > len(data):
            data = self.read(position, size)
        return data[:size] if len(data) >= size else None

    def stored_ms_at(self, position: int) -> int | None:
        """Return the time at which a record was stored, or decided if it is a marker."""
        return moment_of(self.read(position, records.SMALLEST))

    def close(self) -> None:
        """Close the files; staged records are lost."""
        self.segments.close()
        self.high_water.close()
