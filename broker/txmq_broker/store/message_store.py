"""The log with its indexes: one object that composes them and reads messages back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from struct import Struct
from typing import Final, NamedTuple

from txmq.errors import CorruptRecord, DirectoryInUse, RemoteProtocolError, TxmqError
from txmq.limits import FRAME_BYTES_MAX
from txmq.protocol import record as records
from txmq.protocol.checksum import crc32
from txmq.protocol.span import HEAD_BYTES, SpanHead, found_in
from txmq.runtime.disk import Disk, Lock
from txmq.runtime.entropy import Entropy
from txmq.text import RepeatedLines
from txmq_broker.config import StoreSettings
from txmq_broker.store.checkpoints import Checkpoints, StoreParts
from txmq_broker.store.delay_store import Delayed, DelayStore
from txmq_broker.store.evidence import Evidence, QueueOffsets
from txmq_broker.store.half_store import Closing, HalfStore, NewHalf, Opening
from txmq_broker.store.index_file import indexed_segments
from txmq_broker.store.log.commit_log import CommitLog, HighWater, Mark
from txmq_broker.store.log.identity import log_identity
from txmq_broker.store.log.spans import check_spans, last_head, span_at
from txmq_broker.store.queue_store import (
    ConsumeQueue,
    NewRecord,
    Place,
    QueueStore,
    Staged,
    key_hash,
    topic_seed,
)
from txmq_broker.store.start import RecordRestorer, Recovery, Start

__all__ = ["MessageStore", "MetDamage", "Span"]

log = logging.getLogger(__name__)

_SIZE_MAGIC: Final = Struct(">II")
_POSITION: Final = Struct(">q")
_NEAR: Final = 100
"""The number of unreadable messages to skip in the search for a time."""
_DIFFERS: Final = "a message differs from what was stored"


class Span(NamedTuple):
    """Records that were written together."""

    staged: list[Staged]
    messages: int
    """The number of messages in :attr:`staged`."""
    halves: list[Opening]
    markers: list[Closing]
    delayed: Delayed | None
    end: int
    last_ms: int


class MetDamage:
    """Counts reads that met damage, and reports them.

    Attributes:
        reads: The number of reads that met damage since the start.
        found: Called for each such read with the position of the damage in the log. A member of a
            broker set has another copy to read from; the default does nothing.
    """

    def __init__(self) -> None:
        self.reads = 0
        self.found: Callable[[int], None] = lambda _position: None
        self._lines = RepeatedLines()

    def note(self, error: CorruptRecord) -> None:
        """Note that a read met damage; each place is logged, not each read."""
        self.reads += 1
        if (times := self._lines.note(str(error.position))) is not None:
            log.error("%s%s", error, times)
        self.found(error.position)

    def note_error(self, error: TxmqError) -> None:
        """Note an error that ended a request, if the cause is damage."""
        if isinstance(error, CorruptRecord):
            self.note(error)


class MessageStore:
    """Appends records, publishes them to queues, and reads them back.

    ``read`` and ``queue`` are the parts' own methods: every message needs them, and a method here
    would add a call.

    Attributes:
        damage: Counts the damage that requests meet; code that catches a :class:`CorruptRecord`
            notes it there.
    """

    def __init__(self, disk: Disk, settings: StoreSettings) -> None:
        self._disk = disk
        self._settings = settings
        self._lock: Lock | None = None
        self.damage = MetDamage()
        self.log = CommitLog(disk, settings.segment_size, is_async=settings.flush == "async")
        self.queues = QueueStore(self.log)
        self.halves = HalfStore(self.log, self.queues)
        self.delays = DelayStore(self.log, self.queues)
        self._parts = StoreParts(disk, self.log, self.queues, self.halves, self.delays)
        self.checkpoints = Checkpoints(self._parts, settings.checkpoint_every)
        self._restorer = RecordRestorer(self._parts, self.checkpoints)
        self.stage_equal = self.queues.stage_equal
        self.queue = self.queues.queue
        self.find_queue = self.queues.find_queue
        self.end_of = self.queues.end_of
        self.queues_of = self.queues.queues_of
        self.read = self.log.read

    # Opening and closing

    def lock(self) -> None:
        """Lock the directory for this process; a second call has no effect.

        Raises:
            DirectoryInUse: Another broker has it open.
        """
        if self._lock is not None:
            return
        try:
            self._lock = self._disk.lock()
        except BlockingIOError as error:
            raise DirectoryInUse("another broker has this data directory open") from error

    def take(self, entropy: Entropy, copied: int | None = None) -> int:
        """Lock the directory for this process, and return the identity of its log.

        Args:
            entropy: For the identity of a new log.
            copied: The identity of the log that an empty directory becomes a copy of.

        Raises:
            DirectoryInUse: Another broker has it open.
            ForeignFile: Its files belong to different logs.
            CorruptRecord: Its files do not name the log they belong to.
        """
        self.lock()
        has_indexes = bool(indexed_segments(self._disk))
        log_id = log_identity(self._disk, entropy, has_indexes=has_indexes, copied=copied)
        self.log.segments.log_id = log_id
        self.log.high_water = HighWater(self._disk, log_id)
        self.log.high_water.load()
        return log_id

    def open(
        self,
        floors: QueueOffsets,
        *,
        floors_end: int = 0,
        committed: QueueOffsets | None = None,
        topics: Mapping[str, int] | None = None,
        accept_loss: str | None = None,
        is_copy: bool = False,
        is_doubtful: bool = False,
        now_ms: int = 0,
    ) -> Recovery:
        """Bring the indexes up to the log's end, and cut a torn tail.

        This compares the log with every file that records its length. If the log is shorter, the
        start fails and changes nothing, unless the loss is accepted.

        Args:
            floors: Offsets below which a queue's messages were deleted, by topic and queue.
            floors_end: The log's durable end when the floors were saved.
            committed: The highest committed offset of any group, by topic and queue.
            topics: The known topics, with their numbers of queues.
            accept_loss: The reason to start although a part of the log is missing. It is recorded
                in the log, and every queue continues after all offsets that may have been assigned.
            is_copy: Whether spans of a leader were copied here since the last start. Their heads
                say what was durable at the leader, not what was durable here.
            is_doubtful: Whether to end the log at the first damage and to ignore what other files
                prove. A side folder keeps the bytes that are cut; the caller copies them again.
            now_ms: The wall clock, for the record of a loss and for that folder.

        Raises:
            LogTooShort: A part of the log is missing, and ``accept_loss`` is not given.
            CorruptRecord: The log is damaged before its torn tail.
            ForeignFile: A file belongs to another log.
        """
        assert self._lock is not None, "the directory has to be taken first"
        evidence = Evidence(self.log.high_water.mark, [], floors_end, committed or {}, [])
        self.queues.name_queues(floors, topics or {})
        start = Start(
            self._parts,
            self.checkpoints,
            self._restorer,
            is_async=self._settings.flush == "async",
            is_copy=is_copy,
            is_doubtful=is_doubtful,
        )
        recovery = start.run(evidence, accept_loss, now_ms)
        last = self.last_span()
        if last is not None:
            # Epochs never go back in a log.
            self.log.epoch = max(self.log.epoch, last.epoch)
        return recovery

    def note_clean_stop(self) -> None:
        """Record durably that the log ends here, for the next start.

        Raises:
            OSError: A disk operation failed.
        """
        high_water = self.log.high_water
        mark = high_water.mark
        if mark is not None and mark.end == self.log.end:
            high_water.settle(mark._replace(is_clean=True))

    def close(self) -> None:
        """Release the directory; staged records are lost, written ones stay."""
        self.log.close()
        self.checkpoints.close()
        if self._lock is not None:
            self._lock.release()

    # Appending

    def stage(self, new: Sequence[NewRecord], halves: Sequence[NewHalf] = ()) -> list[Place]:
        """Stage records in their order, all or none, and return their places.

        Args:
            new: The records.
            halves: The half messages among them.
        """
        places = self.queues.stage(new)
        if halves:
            self.halves.prepare(halves, new, places)
        return places

    def write(self) -> Span:
        """Write the staged records.

        Raises:
            DiskFull: The disk is full; the staged records are dropped and their offsets are free.
            WriteFailed: The write failed; the effect is the same.
        """
        log, queues = self.log, self.queues
        staged, messages = queues.take_staged()
        halves, self.halves.staged = self.halves.staged, []
        markers, self.halves.markers = self.halves.markers, []
        stay, self.halves.must_stay = self.halves.must_stay, False
        delayed = self.delays.take_staged() if self.delays.has_staged else None
        try:
            end = log.write(stay=stay)
        except BaseException:
            queues.take_back(staged)
            self.halves.take_back(halves, markers)
            if delayed is not None:
                self.delays.take_back(delayed)
            raise
        return Span(staged, messages, halves, markers, delayed, end, log.last_ms)

    def publish(self, span: Span) -> None:
        """Make a span's messages visible to readers."""
        self.queues.publish(span.staged)
        if span.halves or span.markers:
            self.halves.publish(span.halves, span.markers)
        if span.delayed is not None:
            self.delays.publish(span.delayed, span.end)
        checkpoints, segments = self.checkpoints, self.log.segments
        checkpoints.published = span.end
        segment = segments.starts[-1]
        if span.end <= segment:
            # The log continued in another file while the span waited for the disk.
            segment = segments.extent_at(span.end - 1).start
        checkpoints.file_ms[segment] = span.last_ms

    # Copying

    def copy(self, data: bytes, file_start: int, last: SpanHead | None, epoch: int) -> SpanHead:
        """Append whole spans of another copy of this log at its end.

        Returns the head of the last one. :meth:`index_copied` makes their records readable.

        Args:
            data: The spans; they lie in one file.
            file_start: The start of that file in the other copy, and so in this one.
            last: The head of the last span in this copy.
            epoch: The epoch of the leader that sent them.

        Raises:
            RemoteProtocolError: They are not intact spans of this log that follow its end.
            DiskFull: The disk is full.
            WriteFailed: The write failed.
            OSError: An empty file of this log cannot be deleted.
        """
        oldest = 0 if last is None else last.epoch
        heads = check_spans(data, self.log.end, self.log.segments.log_id, oldest, epoch)
        newest = self.log.segments.starts[-1]
        if file_start < newest == self.log.end:
            # A write failed or was cut here, and the other copy continued in the previous file.
            if newest in self.checkpoints.indexes:
                self.checkpoints.remove_index(newest)
            self.checkpoints.drop_index(newest)
            self.log.segments.drop_empty()
        self.log.copy(data, heads[-1], file_start)
        return heads[-1]

    def index_copied(self, most: int) -> None:
        """Index the records of the next copied spans, about ``most`` bytes of one file.

        Readers see them at once.

        Raises:
            CorruptRecord: A span is damaged; the spans before it are indexed. Or a record is
                invalid, as its writer stored it.
        """
        segments, checkpoints = self.log.segments, self.checkpoints
        at = checkpoints.published
        extent = segments.extent_at(at)
        end = min(extent.end, at + most)
        try:
            while at < end:
                span = span_at(segments, at, extent.end)
                if span is None:
                    raise CorruptRecord(at, "no span begins there")
                for record, position, piece in found_in(span[1], at + HEAD_BYTES):
                    self._restorer.restore(record, position, piece)
                at += span[0].size
        finally:
            checkpoints.published = at
            checkpoints.file_ms[extent.start] = self.log.last_ms

    def last_span(self) -> SpanHead | None:
        """The head of the newest span in the files; ``None`` without one.

        Raises:
            CorruptRecord: The log is damaged.
        """
        mark = self.log.high_water.mark
        return last_head(self.log.segments, 0 if mark is None else mark.start)

    def begin_at(self, position: int) -> None:
        """Have an empty log begin at the position at which another copy of it begins.

        Raises:
            OSError: A disk operation failed.
        """
        # An earlier mark would prove that the beginning is missing.
        self.log.high_water.forget()
        self.log.segments.begin_at(position)
        self.log.high_water.settle(Mark(position, position, position, 0))
        self.log.resume()
        self.checkpoints.checkpointed = self.checkpoints.published = position

    # Reading

    def record_bytes(self, position: int, *, is_indexed: bool = False) -> bytes | None:
        """The record at a position; ``None`` if no record begins, or its queue deleted it.

        A client chooses the position, and a body may hold bytes that look like a record. So the
        queue that the record names must have an entry for this position.

        Args:
            position: Where it begins.
            is_indexed: True if the key index says that a record begins there.

        Raises:
            CorruptRecord: It is damaged. If ``is_indexed`` is false, this is raised only if enough
                of it is left to recognize a record.
        """
        if not self.log.segments.start <= position < self.checkpoints.published:
            return None
        head = self.read(position, records.SMALLEST)
        if self.halves.is_hidden(head):
            place = self.halves.entry_at(position, head)
            if place is not None:
                return self.halves.shown(*place)
        elif len(head) == records.SMALLEST:
            size, magic = _SIZE_MAGIC.unpack_from(head)
            own_position = _POSITION.unpack_from(head, records.POSITION_AT)[0]
            if magic == records.MAGIC and own_position == position and size <= FRAME_BYTES_MAX:
                return self._plain_record(position, size, is_indexed=is_indexed)
        if is_indexed:
            raise CorruptRecord(position, _DIFFERS)
        return None

    def _plain_record(self, position: int, size: int, *, is_indexed: bool) -> bytes | None:
        data = self.read(position, size)
        try:
            record, _ = records.unpack(data)
        except RemoteProtocolError as error:
            raise CorruptRecord(position, str(error)) from error
        queue = self.find_queue(record.topic, record.queue_id)
        if queue is not None and record.queue_offset < queue.min_offset:
            return None
        entries = [] if queue is None else queue.read(record.queue_offset, 1)
        if not entries or entries[0][0] != position:
            if is_indexed:
                raise CorruptRecord(position, _DIFFERS)
            return None
        if crc32(data) != entries[0][3]:
            raise CorruptRecord(position, _DIFFERS)
        return data

    def stored_ms(self, queue: ConsumeQueue, offset: int) -> int | None:
        """Return the time at which a queue's message was stored or committed.

        If the disk cannot read the message, the next readable one gives the time.
        """
        for near in range(offset, offset + _NEAR):
            entries = queue.read(near, 1)
            if not entries:
                return None
            with suppress(CorruptRecord):
                return self.log.stored_ms_at(entries[0][0])
        return None

    def earliest_ms(self) -> int | None:
        """Return the time of the oldest record of the log."""
        return self.log.stored_ms_at(self.log.segments.start + HEAD_BYTES)

    def positions_of_key(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """The positions of records that may carry a key, newest first."""
        hashed = key_hash(topic_seed(topic), key)
        return self.queues.keys.positions(hashed, begin_ms, end_ms)

    # Retention

    def pinned(self) -> int | None:
        """The oldest position that an open transaction or a delayed message needs, if any."""
        positions = (self.halves.pending.pinned(), self.delays.pinned())
        return min([position for position in positions if position is not None], default=None)

    def floors_after(self, files: int) -> dict[str, dict[int, int]]:
        """Each queue's oldest offset after the deletion of a number of the oldest files."""
        return self.queues.floors_from(self.log.segments.extents()[files].start)

    def drop_first_file(self) -> None:
        """Delete the oldest file of the log with its index.

        The caller saves :meth:`floors_after` first, so that no offset is ever assigned twice.
        """
        segments, high_water = self.log.segments, self.log.high_water
        oldest = segments.start
        if high_water.mark is not None:
            next_start = segments.extents()[1].start
            high_water.settle(high_water.mark._replace(oldest=next_start))
        self.checkpoints.remove_index(oldest)
        start = segments.drop_first()
        self.checkpoints.drop_index(oldest)
        self.queues.drop_before_segment(start)
