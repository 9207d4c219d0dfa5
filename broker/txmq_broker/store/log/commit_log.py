"""The log of all topics: records are staged during a turn, then written together as one span."""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import Final

from txmq.limits import FRAME_BYTES_MAX
from txmq.protocol import record as records
from txmq.protocol.decision import MARKER, MARKER_BYTES, decided_ms_of
from txmq.protocol.loss import LOSS
from txmq.protocol.span import HEAD_BYTES, checksum_in, head
from txmq.runtime.disk import Disk, File
from txmq_broker.store.log.high_water import HighWater, Mark
from txmq_broker.store.log.segments import Segments

__all__ = ["CommitLog"]

_SIZE_MAGIC: Final = Struct(">II")
_READ_AT_ONCE: Final = 2048
"""Most records are smaller, so one read is enough; it costs half as much as two."""


class CommitLog:
    """Appends spans, reads records, and records the durable end in the high-water mark.

    Attributes:
        last_ms: The time stamp of the newest record; time stamps in a log never go back.
        next_position: The position that the next staged record will have.
        durable: The position before which every byte is durable.
        staged: The pieces of the records that the next span will hold.
    """

    def __init__(self, disk: Disk, segment_size: int, *, is_async: bool = False) -> None:
        self.segments = Segments(disk, segment_size)
        self.segment_size = segment_size
        self.high_water = HighWater(disk, 0)
        self.last_ms = 0
        self._is_async = is_async
        self._unmarked: deque[tuple[int, int, int]] = deque()
        self.staged: list[bytes] = []
        self._records = 0
        self.unsynced: list[File] = []
        self.read = self.segments.read
        self.resume()

    def resume(self) -> None:
        """Continue at the end of the files, which are durable up to there."""
        self._unmarked.clear()
        self.staged.clear()
        self._records = 0
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

    def stage(self, pieces: tuple[bytes, ...], size: int) -> None:
        """Stage a record; its bytes must name :attr:`next_position` as its position."""
        self.staged += pieces
        self._records += 1
        self.next_position += size

    def write(self, *, stay: bool = False) -> int:
        """Write the staged records as one span and return its end.

        Args:
            stay: True if it must lie in the current file, even beyond that file's limit.

        Raises:
            DiskFull: The disk is full. Nothing of the span is part of the log.
            WriteFailed: The disk refused. Nothing of the span is part of the log.
        """
        payload = b"".join(self.staged)
        count, self._records = self._records, 0
        self.staged.clear()
        segments = self.segments
        start, tail = segments.end, segments.files[-1:]
        try:
            span_head = head(segments.log_id, start, self.durable, payload, count)
            segments.append(span_head + payload, stay=stay)
        finally:
            self.next_position = segments.end + HEAD_BYTES
            # Even if the write failed: the new file stays, and the one before it is complete.
            if tail != segments.files[-1:] and self.durable < start:
                self.unsynced += tail
        self._unmarked.append((start, segments.end, checksum_in(span_head)))
        return segments.end

    def files_to_sync(self) -> list[File]:
        """The files with writes that may not be durable yet, oldest first."""
        return [*self.unsynced, *self.segments.files[-1:]]

    def synced(self, files: list[File], end: int) -> None:
        """Record that these files were synced when the log ended at ``end``."""
        # The last of them may have grown since the sync began.
        completed = files[:-1]
        self.unsynced = [file for file in self.unsynced if file not in completed]
        self.durable = max(self.durable, end)
        last = None
        while self._unmarked and self._unmarked[0][1] <= end:
            last = self._unmarked.popleft()
        if last is not None:
            mark = Mark(self.segments.starts[0], *last, is_async=self._is_async)
            self.high_water.advance(mark)

    # Reading

    def bytes_at(self, position: int) -> bytes | None:
        """The bytes of the record at one of our own positions; ``None`` if no record begins."""
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
        data = self.read(position, records.SMALLEST)
        if data[4:8] == MARKER and len(data) >= MARKER_BYTES:
            return decided_ms_of(data)
        if data[4:8] == LOSS:
            return None
        return records.stored_ms_of(data) if len(data) == records.SMALLEST else None

    def close(self) -> None:
        """Close the files; staged records are lost."""
        self.segments.close()
        self.high_water.close()
