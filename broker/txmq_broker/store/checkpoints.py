"""The checkpoints: index files that cover the log up to a position."""

from __future__ import annotations

from typing import NamedTuple

from txmq.runtime.disk import Disk
from txmq_broker.store.delay_store import DelayStore
from txmq_broker.store.half_store import HalfStore
from txmq_broker.store.index_file import Chunk, IndexFile, LogRange, draft, path_of
from txmq_broker.store.log.commit_log import CommitLog
from txmq_broker.store.log.segments import Extent
from txmq_broker.store.queue_store import QueueStore

__all__ = ["Age", "Checkpoint", "Checkpoints", "StoreParts"]


class Age(NamedTuple):
    """A complete file of the log, and the store time of its last message."""

    start: int
    end: int
    last_ms: int


class StoreParts(NamedTuple):
    """The log of a store with its indexes in memory."""

    disk: Disk
    log: CommitLog
    queues: QueueStore
    halves: HalfStore
    delays: DelayStore


class Checkpoint(NamedTuple):
    """A chunk that is written but not synced yet."""

    file: IndexFile
    chunk: Chunk


class Checkpoints:
    """Saves the indexes, one chunk at a time.

    Attributes:
        indexes: The open index files, by the start of their segment.
        checkpointed: The position up to which chunks cover the log.
        published: The position up to which readers see the log.
        first_ms: The time stamp at which the next chunk begins.
        file_ms: The store time of each segment's last message.
    """

    def __init__(self, parts: StoreParts, every: int) -> None:
        self._disk, self._log, self._queues, self._halves, self._delays = parts
        self._every = every
        self.indexes: dict[int, IndexFile] = {}
        self.checkpointed = 0
        self.published = 0
        self.first_ms = 0
        self.file_ms: dict[int, int] = {}

    def is_due(self) -> bool:
        """Return true if a checkpoint is due: enough was published, or a file is complete."""
        starts = self._log.segments.starts
        behind = self.published - self.checkpointed
        return behind >= self._every or (bool(starts) and starts[-1] > self.checkpointed)

    def next_range(self) -> LogRange | None:
        """The part of the log that the next chunk will cover, or ``None`` if all is saved.

        It never crosses the end of a segment, so more may remain. It must be durable before the
        chunk is written: an index that outlives its log would hide a loss.
        """
        if self.published <= self.checkpointed:
            return None
        extent = self._log.segments.extent_at(self.checkpointed)
        return self.range_to(min(extent.end, self.published), extent)

    def range_to(self, end: int, extent: Extent) -> LogRange:
        """The part from the last checkpoint to a position in the same file."""
        last_ms = self.file_ms.get(extent.start, self._log.last_ms)
        return LogRange(self.checkpointed, end, self.first_ms, last_ms)

    def begin(self, part: LogRange) -> Checkpoint:
        """Write the chunk of a durable part; it counts once it is synced and confirmed.

        Raises:
            OSError: The index file cannot be written.
        """
        assert part.end <= self._log.durable, "an index never outlives its log"
        return self.write_chunk(part)

    def write_chunk(self, part: LogRange) -> Checkpoint:
        """Write the next chunk; it counts once it is synced and confirmed.

        Raises:
            OSError: The index file cannot be written.
        """
        assert part.start == self.checkpointed, "one checkpoint at a time"
        segments = self._log.segments
        segments.harden_rest()
        segment = segments.extent_at(part.start).start
        index = self.indexes.get(segment)
        if index is None:
            index = self.indexes[segment] = IndexFile(self._disk, segment, segments.log_id)
        changed = [
            queue for queue in self._queues.all_queues() if queue.tail_count or queue.has_jumped
        ]
        changes = self._halves.pending.changes_before(part.end)
        lines = self._delays.states_before(part.end)
        data, chunk = draft(segments.log_id, part, changed, self._queues.keys, changes, lines)
        return Checkpoint(index, index.append(data, chunk))

    def confirm(self, written: Checkpoint) -> None:
        """Note that a chunk was synced."""
        part = written.chunk.part
        for run, block in written.file.blocks(written.chunk):
            self._queues.queue(run.topic, run.number).saved(block)
        self._queues.keys.saved(written.file.key_run(written.chunk))
        self._halves.pending.saved_before(part.end)
        self.checkpointed = part.end
        self.first_ms = part.last_ms

    def save_to(self, end: int, extent: Extent) -> None:
        """Write, sync and confirm the chunk up to a position, while the store is opened.

        Raises:
            OSError: The index file cannot be written.
        """
        written = self.write_chunk(self.range_to(end, extent))
        written.file.file.sync()
        self.confirm(written)

    # Retention

    def completed_files(self) -> list[Age]:
        """The complete and fully indexed files, oldest first."""
        return [
            Age(extent.start, extent.end, self.file_ms.get(extent.start, self._log.last_ms))
            for extent in self._log.segments.extents()[:-1]
            if extent.end <= self.checkpointed
        ]

    def drop_index(self, segment: int) -> None:
        """Forget the index of a segment whose files were deleted."""
        self.file_ms.pop(segment, None)
        index = self.indexes.pop(segment, None)
        if index is not None:
            index.file.close()

    def remove_index(self, segment: int) -> None:
        """Delete the index file of a segment."""
        self._disk.remove(path_of(segment))

    def close(self) -> None:
        """Close the index files."""
        for index in self.indexes.values():
            index.file.close()
