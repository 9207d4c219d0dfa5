"""The start of a store: it brings the indexes up to the end of the log and cuts a torn tail.

It refuses a log that is shorter than other files prove, unless the loss is accepted. If it is, no
queue assigns an offset again that a lost message may have had.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from txmq.errors import CorruptRecord, DiskFull, LogTooShort
from txmq.protocol.checksum import crc32
from txmq.protocol.record import PREPARED, TYPE_BITS
from txmq.protocol.span import HEAD_BYTES, AcceptedLoss, Decision, Found, read_head
from txmq.protocol.topics import WAITING_TOPICS
from txmq.runtime.disk import NO_ROOM
from txmq_broker.store.checkpoints import Checkpoints, StoreParts
from txmq_broker.store.evidence import Evidence, Missing, QueueOffsets, compare, new_offsets
from txmq_broker.store.index_file import Chunk, IndexFile, indexed_segments, newest_indexed, path_of
from txmq_broker.store.log.commit_log import Mark
from txmq_broker.store.log.identity import write_identity
from txmq_broker.store.log.segments import Extent, cut_folder, keep_aside
from txmq_broker.store.log.segments import path_of as log_path_of
from txmq_broker.store.log.spans import REPAIR_COMMAND, Scan, scan
from txmq_broker.store.queue_store import key_hashes_in, tags_code_in, topic_seed

__all__ = ["RecordRestorer", "Recovery", "Start"]

log = logging.getLogger(__name__)


class RecordRestorer:
    """Restores the records of one store, in the order of the log."""

    def __init__(self, parts: StoreParts, checkpoints: Checkpoints) -> None:
        _, self._log, self._queues, self._halves, self._delays = parts
        self._checkpoints = checkpoints

    def restore(self, record: Found, position: int, data: bytes) -> None:
        """Restore one record.

        Raises:
            CorruptRecord: It does not follow the last one.
            OSError: An accepted loss needs an index, which cannot be written.
        """
        if isinstance(record, AcceptedLoss):
            self._restore_loss(record, position - HEAD_BYTES)
            return
        if isinstance(record, Decision):
            self._log.last_ms = max(self._log.last_ms, record.decided_ms)
            if not self._halves.found_decision(record, position, data):
                raise CorruptRecord(position, "a decision does not follow the last one")
            return
        self._log.last_ms = max(self._log.last_ms, record.stored_ms)
        if record.sys_flag & TYPE_BITS == PREPARED:
            if not self._halves.found_half(record, data):
                raise CorruptRecord(position, "a half message does not follow the last one")
            return
        queue = self._queues.queue(record.topic, record.queue_id)
        if record.topic in WAITING_TOPICS:
            tags_code = record.prepared_position
        else:
            tags_code = tags_code_in(record.properties)
        entry = (record.position, len(data), tags_code, crc32(data))
        if not queue.restore(record.queue_offset, entry):
            raise CorruptRecord(
                record.position,
                f"{record.topic}/{record.queue_id} goes on at {record.queue_offset} "
                f"behind {queue.max_offset}",
            )
        hashes = key_hashes_in(topic_seed(record.topic), record.properties)
        self._queues.restore_keys(hashes, position)
        if record.prepared_position:
            self._delays.found(record)

    def _restore_loss(self, loss: AcceptedLoss, position: int) -> None:
        extent = self._log.segments.extent_at(position)
        if position > self._checkpoints.checkpointed:
            self._log.segments.harden(self._checkpoints.checkpointed, position)
            self.index_to(position, extent)
        self._log.last_ms = max(self._log.last_ms, loss.accepted_ms)
        self.jump(loss.offsets)

    def jump(self, offsets: QueueOffsets) -> None:
        """Make queues continue at these offsets, unless they are already further."""
        for topic, numbers in offsets.items():
            for number, offset in numbers.items():
                queue = self._queues.queue(topic, number)
                if offset > queue.next_offset:
                    queue.jump(offset)

    def index_to(self, end: int, extent: Extent) -> None:
        """Write the index of a file up to a position, before the queues jump.

        Raises:
            DiskFull: An earlier file has no complete index.
            OSError: The index file cannot be written.
        """
        if self._checkpoints.checkpointed < extent.start:
            raise DiskFull(
                "the disk is full, and this log cannot be read across an accepted loss before its "
                "indexes are written; make room and start again"
            )
        self._checkpoints.save_to(end, extent)


class Recovery(NamedTuple):
    """What a start read, cut and lost."""

    scanned_bytes: int
    records: int
    cut_bytes: int
    end: int = 0
    """The end of the log before the start, without a torn tail."""
    lost: str = ""
    """The accepted loss, as text; empty if nothing is missing."""


class Start:
    """One start of a store whose directory is locked."""

    def __init__(
        self,
        parts: StoreParts,
        checkpoints: Checkpoints,
        restorer: RecordRestorer,
        *,
        is_async: bool,
        is_copy: bool,
        is_doubtful: bool,
    ) -> None:
        self._disk, self._log, self._queues, self._halves, self._delays = parts
        self._segments = parts.log.segments
        self._high_water = parts.log.high_water
        self._checkpoints = checkpoints
        self._restorer = restorer
        self._is_async = is_async
        mark = self._high_water.mark
        self._is_doubtful = is_doubtful
        self._proven: int | None = None
        if is_copy or is_doubtful:
            # In a copy only the mark says what was durable here; in a doubtful log nothing does.
            self._proven = 0 if mark is None or is_doubtful else mark.end
        self._strays: list[IndexFile] = []
        self._accepted = 0
        """The end of the log according to the evidence, once the loss is accepted."""

    def run(self, known: Evidence, accept_loss: str | None, now_ms: int) -> Recovery:
        """See :meth:`MessageStore.open`."""
        try:
            return self._run(known, accept_loss, now_ms)
        except OSError as error:
            if not self._accepted or error.errno not in NO_ROOM:
                raise
            raise DiskFull(
                f"the disk is full ({error}), and going on without what is missing has to be "
                "recorded; make room and start again"
            ) from error
        finally:
            for index in self._strays:
                index.file.close()

    def _run(self, known: Evidence, accept_loss: str | None, now_ms: int) -> Recovery:
        self._halves.begin()
        self._segments.open()
        self._checkpoints.checkpointed = self._segments.start
        recovery, torn_at, last = self._recover()
        evidence = known._replace(
            chunks=self._unused_chunks(), queues=list(self._queues.all_queues())
        )
        missing = self._missing(evidence, recovery.end)
        if missing is not None:
            recovery = recovery._replace(lost=self._judge(missing, recovery.end, accept_loss))
            # Deleting the indexes removes the evidence; this keeps it if a crash comes before the
            # record is durable.
            oldest = self._segments.start if missing.front is None else missing.front[0]
            self._accepted = missing.end
            self._high_water.settle(
                Mark(oldest, recovery.end, missing.end, 0, accepted=self._accepted)
            )
        for index in self._checkpoints.indexes.values():
            index.trim()
        # Indexes first: one that outlives its part of the log would hide the loss.
        for stray in self._strays:
            stray.file.close()
            self._disk.remove(path_of(stray.segment))
        self._strays.clear()
        if torn_at is not None:
            if missing is not None or self._is_doubtful:
                kept = self._keep_aside(torn_at, now_ms)
                recovery = recovery._replace(lost=f"{recovery.lost}; {kept} keeps what is cut")
            self._segments.cut(torn_at)
        is_front_lost = missing is not None and missing.front is not None
        since = self._segments.start if is_front_lost else 0
        self._halves.recovered(since, self._segments.end)
        self._delays.recovered()
        self._log.resume()
        self._checkpoints.published = self._segments.end
        if missing is not None:
            self._log.last_ms = max(self._log.last_ms, now_ms)
            self._accept(missing, new_offsets(missing, evidence, recovery.end), accept_loss)
        elif self._is_doubtful:
            self._high_water.settle(self._mark_at_end(last))
        elif self._high_water.mark is None and self._segments.is_hardened:
            self._high_water.advance(self._mark_at_end(last))
        return recovery

    def _mark_at_end(self, last: tuple[int, int] | None) -> Mark:
        start, checksum = last or (self._segments.end, 0)
        return Mark(self._segments.start, start, self._segments.end, checksum)

    def _recover(self) -> tuple[Recovery, int | None, tuple[int, int] | None]:
        scanned = found = cut = 0
        last: tuple[int, int] | None = None
        extents = self._segments.extents()
        self._refuse_stray_indexes(extents)
        newest = newest_indexed(self._disk)
        for extent in extents:
            self._load_index(extent, is_newest=extent.start == newest)
            start = max(self._checkpoints.checkpointed, extent.start)
            result = self._scan(extent)
            last = result.last or last
            self._checkpoints.file_ms[extent.start] = self._log.last_ms
            scanned += result.end - start
            found += result.records
            start = max(self._checkpoints.checkpointed, extent.start)
            if result.end > start:
                # After a kill or a failed sync these bytes may be only in the page cache; from now
                # on readers see them.
                self._segments.harden(start, result.end)
            if result.is_torn:
                cut = self._segments.end - result.end
                for later in extents:
                    if later.start > result.end:
                        self._load_stray(later.start)
                return Recovery(scanned, found, cut, result.end), result.end, last
            if (
                extent is not extents[-1]
                and extent.start <= self._checkpoints.checkpointed < extent.end
            ):
                self._complete_index(extent)
        return Recovery(scanned, found, cut, self._segments.end), None, last

    def _scan(self, extent: Extent) -> Scan:
        start = max(self._checkpoints.checkpointed, extent.start)
        return scan(self._segments, extent, start, self._restorer.restore, self._proven)

    def _complete_index(self, extent: Extent) -> None:
        try:
            self._checkpoints.save_to(extent.end, extent)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            log.warning("an index could not be saved: %s; this start reads more of the log", error)

    def _keep_aside(self, position: int, now_ms: int) -> str:
        folder = cut_folder(position, now_ms)
        write_identity(self._disk, self._segments.log_id, folder)
        for extent in self._segments.extents():
            if extent.end > position:
                keep_aside(self._disk, extent, max(position, extent.start), folder)
        return folder

    # A log that is shorter than other files prove

    def _unused_chunks(self) -> list[tuple[str, Chunk]]:
        return [
            (path_of(index.segment), chunk)
            for index in (*self._checkpoints.indexes.values(), *self._strays)
            for chunk in index.beyond
        ]

    def _missing(self, evidence: Evidence, end: int) -> Missing | None:
        if self._is_doubtful:
            return None  # The caller copies the missing part again.
        mark, start = evidence.mark, self._segments.start
        is_empty = not self._segments.extents()
        newest = start if is_empty else self._segments.extent_at(max(end - 1, start)).start
        reach = self._segments.end
        missing = compare(evidence, start, end, reach, log_path_of(newest))
        if missing is None and mark is not None and mark.checksum and mark.start >= start:
            head = read_head(self._segments.read(mark.start, HEAD_BYTES), 0, mark.start)
            if not mark.is_of(head):
                raise CorruptRecord(
                    mark.start, "the last write that was durable there was another one"
                )
        return missing

    def _judge(self, missing: Missing, end: int, accept_loss: str | None) -> str:
        what = missing.describe(end)
        mark = self._high_water.mark
        was_async = self._is_async or (mark is not None and mark.is_async)
        if accept_loss is None and (missing.is_of_log or not was_async):
            raise LogTooShort(
                f"the log is shorter than it was: {what}; put the missing file back, or restore "
                "the directory from a backup; to go on without what is missing: "
                "txmq serve --accept-loss REASON"
            )
        return what

    def _accept(
        self, missing: Missing, offsets: dict[str, dict[int, int]], reason: str | None
    ) -> None:
        """Record the loss, and continue every queue after all offsets that it may have assigned."""
        if not self._segments.extents():
            self._segments.end = missing.end
            self._checkpoints.checkpointed = self._checkpoints.published = missing.end
            self._log.resume()
        elif self._checkpoints.checkpointed < self._segments.end:
            self._restorer.index_to(self._segments.end, self._segments.extents()[-1])
        self._restorer.jump(offsets)
        why = reason or 'a crash lost what flush = "async" had not yet made durable'
        record = AcceptedLoss(self._log.last_ms, missing.end, why, offsets).pack()
        self._log.stage((record,), len(record), self._log.last_ms)
        start, end = self._log.end, self._log.write()
        for file in self._log.sync_point().files:
            file.sync()
        head = read_head(self._segments.read(start, HEAD_BYTES), 0, start)
        assert head is not None, "it was just written"
        self._high_water.settle(
            Mark(self._segments.start, start, end, head.checksum, accepted=self._accepted)
        )
        self._log.resume()
        self._checkpoints.published = end

    def _refuse_stray_indexes(self, extents: list[Extent]) -> None:
        # The broker deletes an index before its file of the log, so it did not delete this file. If
        # the newest file is missing, the comparison with the evidence reports it.
        kept = {extent.start for extent in extents}
        for segment in indexed_segments(self._disk):
            if segment in kept:
                continue
            is_between = bool(extents) and segment < extents[-1].start
            index = self._load_stray(segment)
            is_proof = index.file.size() and (is_between or not index.beyond)
            if is_proof and not self._is_doubtful:
                raise CorruptRecord(
                    segment,
                    "a file of the log is missing there; put it back, or delete "
                    f"{path_of(segment)} as well to go on without its messages: {REPAIR_COMMAND}",
                )

    def _load_stray(self, segment: int) -> IndexFile:
        """The index of a missing part of the log; its chunks are only evidence."""
        index = IndexFile(self._disk, segment, self._segments.log_id)
        self._strays.append(index)
        index.load(segment)
        return index

    def _load_index(self, extent: Extent, *, is_newest: bool) -> None:
        is_behind = self._checkpoints.checkpointed < extent.start
        try:
            index = IndexFile(self._disk, extent.start, self._segments.log_id)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            # The file has no index yet; the next checkpoint creates it.
            self._checkpoints.first_ms = (
                self._checkpoints.first_ms if is_behind else self._log.last_ms
            )
            return
        self._checkpoints.indexes[extent.start] = index
        if is_behind:
            # An earlier file has an incomplete index, because the disk was full. Queues load
            # entries in order, so the chunks of this index are only evidence.
            index.load(extent.start)
            return
        chunks = index.load(self._segments.reach(extent))
        if chunks and is_newest:
            # Each earlier chunk was durable before the next one was begun.
            index.harden(chunks[-1])
        for chunk in chunks:
            for run, block in index.blocks(chunk):
                self._queues.queue(run.topic, run.number).add_block(block)
            self._queues.keys.add_run(index.key_run(chunk))
            self._halves.loaded(index.changes(chunk))
            self._delays.loaded(chunk.lines)
            self._log.last_ms = max(self._log.last_ms, chunk.part.last_ms)
            self._checkpoints.checkpointed = chunk.part.end
        self._checkpoints.checkpointed = max(self._checkpoints.checkpointed, extent.start)
        self._checkpoints.first_ms = self._log.last_ms
