"""The log of all topics: records are staged during a turn, then written together as one span."""

from __future__ import annotations

from collections import deque

from txmq.protocol.span import HEAD_BYTES, checksum_in, head
from txmq.runtime.disk import File
from txmq_broker.store.high_water import HighWater, Mark
from txmq_broker.store.segment import Segments

__all__ = ["CommitLog"]


class CommitLog:
    """Appends spans, knows how much of them is durable, and notes that in the high-water mark."""

    def __init__(
        self, segments: Segments, high_water: HighWater, *, is_async: bool = False
    ) -> None:
        self._segments = segments
        self._high_water = high_water
        self._is_async = is_async
        self._unmarked: deque[tuple[int, int, int]] = deque()
        self._staged: list[bytes] = []
        self._records = 0
        self.durable = segments.end
        self.next_position = segments.end + HEAD_BYTES
        self.unsynced: list[File] = []

    @property
    def end(self) -> int:
        """Where the next span will start."""
        return self._segments.end

    @property
    def staged_bytes(self) -> int:
        """How much waits to be written."""
        return self.next_position - self._segments.end - HEAD_BYTES

    @property
    def has_staged(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._staged)

    def stage(self, pieces: tuple[bytes, ...], size: int) -> None:
        """Take a record whose bytes say that it lies at :attr:`next_position`."""
        self._staged += pieces
        self._records += 1
        self.next_position += size

    def write(self, *, stay: bool = False) -> int:
        """Write what is staged as one span and return where it ends.

        Args:
            stay: Whether it has to lie in the file that is being written, however large that grows.

        Raises:
            DiskFull: There is no room. Nothing of the span is part of the log.
            WriteFailed: The disk refused. Nothing of the span is part of the log.
        """
        payload = b"".join(self._staged)
        records, self._records = self._records, 0
        self._staged.clear()
        start, tail = self._segments.end, self._segments.tail
        try:
            span_head = head(self._segments.log_id, start, self.durable, payload, records)
            self._segments.append(span_head + payload, stay=stay)
        finally:
            self.next_position = self._segments.end + HEAD_BYTES
            # Also where the write failed: the new file stays, and the one before it is complete.
            if tail is not None and tail is not self._segments.tail and self.durable < start:
                self.unsynced.append(tail)
        self._unmarked.append((start, self._segments.end, checksum_in(span_head)))
        return self._segments.end

    def files_to_sync(self) -> list[File]:
        """The files that hold writes not known to be durable, oldest first."""
        tail = self._segments.tail
        return [*self.unsynced, *([tail] if tail is not None else [])]

    def synced(self, files: list[File], end: int) -> None:
        """Note that these files were synced when the log ended at ``end``."""
        # The last of them was being written: if it is complete by now, it has grown since.
        completed = files[:-1]
        self.unsynced = [file for file in self.unsynced if file not in completed]
        self.durable = max(self.durable, end)
        last = None
        while self._unmarked and self._unmarked[0][1] <= end:
            last = self._unmarked.popleft()
        if last is not None:
            self._high_water.advance(Mark(self._segments.start, *last, is_async=self._is_async))
