"""The log with its indexes: the one place where a record becomes a message of a queue."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from txmq.errors import (
    CorruptRecord,
    DirectoryInUse,
    RemoteProtocolError,
)
from txmq.limits import FRAME_BYTES_MAX
from txmq.protocol import record as records
from txmq.protocol.checksum import crc32
from txmq.protocol.codes import SysFlag
from txmq.protocol.decision import MARKER, MARKER_BYTES, decided_ms_of
from txmq.protocol.loss import LOSS
from txmq.protocol.record import Postmark
from txmq.protocol.span import HEAD_BYTES
from txmq.runtime.disk import Disk, Lock
from txmq.runtime.entropy import Entropy
from txmq_broker.config import StoreSettings
from txmq_broker.store.checkpoint import (
    Chunk,
    IndexFile,
    Stretch,
    draft,
    path_of,
)
from txmq_broker.store.commit_log import CommitLog
from txmq_broker.store.consume_queue import ConsumeQueue
from txmq_broker.store.delay_store import Delayed, DelayStore
from txmq_broker.store.evidence import Evidence, QueueOffsets
from txmq_broker.store.half_store import Closing, HalfStore, Opening
from txmq_broker.store.high_water import HighWater
from txmq_broker.store.key_index import KeyIndex, key_hash, topic_seed
from txmq_broker.store.log_identity import log_identity
from txmq_broker.store.retention import Age
from txmq_broker.store.segment import Extent, Segments
from txmq_broker.store.start import Recovery, Start

__all__ = ["Checkpoint", "MessageStore", "Recovery", "Span", "Staged"]

log = logging.getLogger(__name__)

_TYPE_BITS: Final = int(SysFlag.ROLLED_BACK)
_PREPARED: Final = int(SysFlag.PREPARED)
_SIZE_MAGIC: Final = Struct(">II")
_POSITION: Final = Struct(">q")
_READ_AT_ONCE: Final = 2048
"""Most records are no larger, and one read costs half of two."""


Staged: TypeAlias = tuple[ConsumeQueue, int, int, int, int, tuple[int, ...]]
"""A record on its way to the disk: its queue, its position, size, tag's hash and checksum, which
become its entry there, and its keys' hashes.
"""


class Span(NamedTuple):
    """Records that were written together."""

    staged: list[Staged]
    halves: list[Opening]
    markers: list[Closing]
    delayed: Delayed | None
    end: int
    last_ms: int


class Checkpoint(NamedTuple):
    """A chunk that is written and has yet to be synced."""

    file: IndexFile
    chunk: Chunk


class MessageStore:
    """Appends records, publishes them to queues, and reads them back."""

    def __init__(self, disk: Disk, settings: StoreSettings) -> None:
        self.disk = disk
        self.settings = settings
        self.segments = Segments(disk, settings.segment_size)
        self._queues: dict[str, dict[int, ConsumeQueue]] = {}
        self.keys = KeyIndex()
        self._staged: list[Staged] = []
        self.floors: Mapping[str, Mapping[int, int]] = {}
        self.indexes: dict[int, IndexFile] = {}
        self.checkpointed = 0
        self.published = 0
        self.first_ms = 0
        self.file_ms: dict[int, int] = {}
        self._lock: Lock | None = None
        self.last_ms = 0
        self.high_water = HighWater(disk, 0)
        self.log = self.new_log()
        self.halves = HalfStore(self)
        self.delays = DelayStore(self)

    # Opening and closing

    def new_log(self) -> CommitLog:
        """The log, to be continued where its files end."""
        is_async = self.settings.flush == "async"
        return CommitLog(self.segments, self.high_water, is_async=is_async)

    def take(self, entropy: Entropy) -> int:
        """Take the directory for this process, and return the identity of its log.

        Raises:
            DirectoryInUse: Another broker has it open.
            ForeignFile: Its files belong to different logs.
            CorruptRecord: Its files do not say which log they belong to.
        """
        try:
            self._lock = self.disk.lock()
        except BlockingIOError as error:
            raise DirectoryInUse("another broker has this data directory open") from error
        log_id = log_identity(self.disk, entropy)
        self.segments.log_id = log_id
        self.high_water = HighWater(self.disk, log_id)
        self.high_water.load()
        return log_id

    def open(
        self,
        floors: QueueOffsets,
        *,
        floors_end: int = 0,
        committed: QueueOffsets | None = None,
        topics: Mapping[str, int] | None = None,
        accept_loss: str | None = None,
        now_ms: int = 0,
    ) -> Recovery:
        """Bring the indexes up to the log's end, and cut a torn tail.

        The log is compared with everything that knows how far it reached. Where it is shorter,
        nothing is changed and the start is refused, unless the loss is accepted.

        Args:
            floors: Offsets below which a queue's messages were deleted, by topic and queue.
            floors_end: How far the log was durable when they were saved.
            committed: The highest offset that a group committed, by topic and queue.
            topics: The topics that are known, with their numbers of queues.
            accept_loss: Why the broker shall go on without what is missing. It is recorded in the
                log, and every queue goes on above all offsets that may have been given.
            now_ms: The wall clock, for that record.

        Raises:
            LogTooShort: Something is missing, and no reason to accept that is given.
            CorruptRecord: The log is damaged where it must not be.
            ForeignFile: A file belongs to another log.
        """
        assert self._lock is not None, "the directory has to be taken first"
        evidence = Evidence(self.high_water.mark, [], floors_end, committed or {}, [])
        self._name_queues(floors, topics or {})
        return Start(self).run(evidence, accept_loss, now_ms)

    def _name_queues(self, floors: QueueOffsets, topics: Mapping[str, int]) -> None:
        self.floors = floors
        for topic, numbers in floors.items():
            for number in numbers:
                self.queue(topic, number)
        for topic, count in topics.items():
            for number in range(count):
                self.queue(topic, number)

    def restore_keys(self, hashes: Sequence[int], position: int) -> None:
        """Take the keys of what was found at a position of the log."""
        self.keys.extend(hashes, [position] * len(hashes))

    def note_clean_stop(self) -> None:
        """Have the next start know that the log ends here.

        Raises:
            OSError: The disk refused.
        """
        mark = self.high_water.mark
        if mark is not None and mark.end == self.log.end:
            self.high_water.settle(mark._replace(is_clean=True))

    def close(self) -> None:
        """Let go of the directory; what is staged is lost, what is written stays."""
        self.segments.close()
        for index in self.indexes.values():
            index.file.close()
        self.high_water.close()
        if self._lock is not None:
            self._lock.release()

    # Queues

    def queue(self, topic: str, number: int) -> ConsumeQueue:
        """A queue, made when first named."""
        numbers = self._queues.get(topic)
        if numbers is None:
            numbers = self._queues[topic] = {}
        found = numbers.get(number)
        if found is None:
            floor = self.floors.get(topic, {}).get(number, 0)
            found = numbers[number] = ConsumeQueue(topic, number, floor)
        return found

    def find_queue(self, topic: str, number: int) -> ConsumeQueue | None:
        """A queue that was named before."""
        return self._queues.get(topic, {}).get(number)

    def end_of(self, topic: str, number: int) -> int | None:
        """Behind the newest message of a queue; ``None`` where there is no such queue."""
        found = self.find_queue(topic, number)
        return None if found is None else found.max_offset

    def queues_of(self, topic: str) -> list[ConsumeQueue]:
        """A topic's queues that were ever named."""
        return list(self._queues.get(topic, {}).values())

    # Appending

    def append(
        self,
        queue: ConsumeQueue,
        postmark: Postmark,
        flag: int,
        body: bytes,
        tail: bytes,
        tags_code: int,
        key_hashes: tuple[int, ...],
    ) -> tuple[int, int]:
        """Stage one record and return the queue offset and the log position it has from now on.

        ``tail`` is topic and properties as :func:`txmq.protocol.record.tail_of` writes them.
        Positional, and short of a record object: this runs once for every message.
        """
        log = self.log
        position = log.next_position
        offset = queue.next_offset
        head, size = records.head_of(
            queue.number, flag, offset, position, postmark, body, len(tail)
        )
        # Only now: what cannot be packed must not leave a gap behind.
        queue.next_offset = offset + 1
        self.last_ms = postmark[3]
        log.stage((head, body, tail), size)
        checksum = crc32(tail, crc32(body, crc32(head)))
        self._staged.append((queue, position, size, tags_code, checksum, key_hashes))
        return offset, position

    def stage(
        self,
        queue: ConsumeQueue,
        pieces: tuple[bytes, ...],
        size: int,
        tags_code: int,
        checksum: int,
        key_hashes: tuple[int, ...],
    ) -> None:
        """Stage bytes that say where they lie, and an entry for them."""
        position = self.log.next_position
        self.log.stage(pieces, size)
        self.stage_entry(queue, position, size, tags_code, checksum, key_hashes)

    def stage_entry(
        self,
        queue: ConsumeQueue,
        position: int,
        size: int,
        tags_code: int,
        checksum: int,
        key_hashes: tuple[int, ...],
    ) -> None:
        """Stage a queue's next entry for what is staged at a position."""
        queue.next_offset += 1
        self._staged.append((queue, position, size, tags_code, checksum, key_hashes))

    @property
    def has_staged(self) -> bool:
        """Whether there is anything to write."""
        return self.log.has_staged

    def write(self) -> Span:
        """Write what is staged.

        Raises:
            DiskFull: There is no room; what was staged is gone and its offsets are free again.
            WriteFailed: The disk refused; likewise.
        """
        staged, self._staged = self._staged, []
        stay = self.halves.must_stay
        halves, markers = self.halves.take_staged()
        delayed = self.delays.take_staged()
        try:
            end = self.log.write(stay=stay)
        except BaseException:
            for each in staged:
                each[0].next_offset -= 1
            self.halves.take_back(halves, markers)
            if delayed is not None:
                self.delays.take_back(delayed)
            raise
        return Span(staged, halves, markers, delayed, end, self.last_ms)

    def publish(self, span: Span) -> None:
        """Make a span's messages visible to readers."""
        keys: list[int] = []
        positions: list[int] = []
        for queue, position, size, tags_code, checksum, key_hashes in span.staged:
            queue.publish(position, size, tags_code, checksum)
            for hashed in key_hashes:
                keys.append(hashed)
                positions.append(position)
        self.keys.extend(keys, positions)
        if span.halves or span.markers:
            self.halves.publish(span.halves, span.markers)
        if span.delayed is not None:
            self.delays.publish(span.delayed, span.end)
        self.published = span.end
        segment = self.segments.tail_start
        if span.end <= segment:
            # While it waited for the disk, the log went on in another file.
            segment = self.segments.extent_at(span.end - 1).start
        self.file_ms[segment] = span.last_ms

    # Reading

    def read(self, position: int, size: int) -> bytes:
        """Bytes of the log from one file; fewer than asked for where it ends or is gone."""
        return self.segments.read(position, size)

    def bytes_at(self, position: int) -> bytes | None:
        """The record that begins at a position, as it lies there; positions are our own."""
        data = self.segments.read(position, _READ_AT_ONCE) if position >= self.start else b""
        if len(data) < records.SMALLEST:
            return None
        size, magic = _SIZE_MAGIC.unpack_from(data)
        if magic != records.MAGIC or size > FRAME_BYTES_MAX:
            return None
        if size > len(data):
            data = self.segments.read(position, size)
        return data[:size] if len(data) >= size else None

    def record_bytes(self, position: int) -> bytes | None:
        """The record that lies at a position, or ``None`` where none does or its queue lost it.

        Positions come from strangers, and bodies may hold what looks like a record; only what the
        queue it names has there is one.

        Raises:
            CorruptRecord: Its body differs from its checksum.
        """
        if not self.segments.start <= position < self.published:
            return None
        head = self.segments.read(position, records.SMALLEST)
        if self.halves.is_hidden(head):
            place = self.halves.entry_at(position, head)
            return None if place is None else self.halves.shown(*place)
        return self._plain_record(position, head)

    def _plain_record(self, position: int, head: bytes) -> bytes | None:
        if len(head) < records.SMALLEST:
            return None
        size, magic = _SIZE_MAGIC.unpack_from(head)
        where = _POSITION.unpack_from(head, records.POSITION_AT)[0]
        if magic != records.MAGIC or where != position or size > FRAME_BYTES_MAX:
            return None
        data = self.segments.read(position, size)
        try:
            record, _ = records.unpack(data)
        except RemoteProtocolError as problem:
            raise CorruptRecord(position, str(problem)) from problem
        queue = self.find_queue(record.topic, record.queue_id)
        if queue is None or record.queue_offset < queue.min_offset:
            return None
        entries = queue.read(record.queue_offset, 1)
        if not entries or entries[0][0] != position:
            return None
        if crc32(data) != entries[0][3]:
            raise CorruptRecord(position, "a message differs from what was stored")
        return data

    def stored_ms(self, queue: ConsumeQueue, offset: int) -> int | None:
        """When a queue's message was stored, or committed where it was a half message."""
        entries = queue.read(offset, 1)
        if not entries:
            return None
        return self._stored_ms_at(entries[0][0])

    def earliest_ms(self) -> int | None:
        """When the oldest record of the log was stored."""
        return self._stored_ms_at(self.segments.start + HEAD_BYTES)

    def _stored_ms_at(self, position: int) -> int | None:
        data = self.segments.read(position, records.SMALLEST)
        if data[4:8] == MARKER and len(data) >= MARKER_BYTES:
            return decided_ms_of(data)
        if data[4:8] == LOSS:
            return None
        return records.stored_ms_of(data) if len(data) == records.SMALLEST else None

    def positions_of_key(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Where records that may carry a key lie, newest first."""
        return self.keys.positions(key_hash(topic_seed(topic), key), begin_ms, end_ms)

    # Checkpoints

    def checkpoint_due(self) -> bool:
        """Whether enough has been published since the last checkpoint, or a segment is complete."""
        behind = self.published - self.checkpointed
        return behind >= self.settings.checkpoint_every or (
            self.segments.tail_start > self.checkpointed
        )

    def next_stretch(self) -> Stretch | None:
        """The stretch that the next chunk will cover, or ``None`` where there is nothing to save.

        It ends where a segment does, so there may be more to save afterwards. It must be durable
        before the chunk is begun: an index that outlives its log hides that something is missing.
        """
        if self.published <= self.checkpointed:
            return None
        extent = self.segments.extent_at(self.checkpointed)
        return self.stretch_to(min(extent.end, self.published), extent)

    def stretch_to(self, end: int, extent: Extent) -> Stretch:
        """The stretch from the last checkpoint to a position in the same file."""
        last_ms = self.file_ms.get(extent.start, self.last_ms)
        return Stretch(self.checkpointed, end, self.first_ms, last_ms)

    def begin_checkpoint(self, stretch: Stretch) -> Checkpoint:
        """Write the chunk of a durable stretch; it counts once it is synced and confirmed.

        Raises:
            OSError: The index file cannot be written.
        """
        assert stretch.end <= self.log.durable, "an index never outlives its log"
        return self.write_chunk(stretch)

    def write_chunk(self, stretch: Stretch) -> Checkpoint:
        """Write the next chunk; it counts once it is synced and confirmed.

        Raises:
            OSError: The index file cannot be written.
        """
        assert stretch.start == self.checkpointed, "one checkpoint at a time"
        self.segments.harden_rest()
        segment = self.segments.extent_at(stretch.start).start
        index = self.indexes.get(segment)
        if index is None:
            index = self.indexes[segment] = IndexFile(self.disk, segment, self.segments.log_id)
        dirty = [
            queue
            for numbers in self._queues.values()
            for queue in numbers.values()
            if queue.tail_count or queue.has_jumped
        ]
        changes = self.halves.pending.changes_before(stretch.end)
        lines = self.delays.states_before(stretch.end)
        data, chunk = draft(self.segments.log_id, stretch, dirty, self.keys, changes, lines)
        return Checkpoint(index, index.append(data, chunk))

    def confirm_checkpoint(self, done: Checkpoint) -> None:
        """Note that a chunk was synced."""
        stretch = done.chunk.stretch
        for run, block in done.file.blocks(done.chunk):
            self.queue(run.topic, run.number).saved(block)
        self.keys.saved(done.file.key_run(done.chunk))
        self.halves.pending.saved_before(stretch.end)
        self.checkpointed = stretch.end
        self.first_ms = stretch.last_ms

    # Retention

    @property
    def start(self) -> int:
        """The position of the oldest byte of the log that is kept."""
        return self.segments.start

    @property
    def tail_start(self) -> int:
        """Where the file that is being written begins."""
        return self.segments.tail_start

    def file_at(self, position: int) -> int:
        """Where the file begins that holds a position."""
        return self.segments.extent_at(position).start

    @property
    def segment_size(self) -> int:
        """How large a file of the log becomes."""
        return self.settings.segment_size

    def completed_files(self) -> list[Age]:
        """The files that will never be written again and are fully indexed, oldest first."""
        return [
            Age(extent.start, extent.end, self.file_ms.get(extent.start, self.last_ms))
            for extent in self.segments.extents()[:-1]
            if extent.end <= self.checkpointed
        ]

    def pinned(self) -> int | None:
        """A position from which on the log must be kept: of what is undecided, or waits."""
        positions = (self.halves.pending.pinned(), self.delays.pinned())
        return min([each for each in positions if each is not None], default=None)

    def drop_first_file(self) -> None:
        """Delete the oldest file of the log with its index.

        The caller has saved :meth:`floors_after` first, so that no offset is ever given twice.
        """
        oldest = self.segments.start
        if self.high_water.mark is not None:
            next_start = self.segments.extents()[1].start
            self.high_water.settle(self.high_water.mark._replace(oldest=next_start))
        self.disk.remove(path_of(oldest))
        start = self.segments.drop_first()
        self.file_ms.pop(oldest, None)
        index = self.indexes.pop(oldest, None)
        if index is not None:
            index.file.close()
        self.keys.drop_before_segment(start)
        for queue in self.all_queues():
            queue.drop_before_segment(start)
            queue.raise_floor(queue.min_offset)

    def floors_after(self, files: int) -> dict[str, dict[int, int]]:
        """Each queue's oldest offset once a number of the oldest files is deleted."""
        start = self.segments.extents()[files].start
        floors: dict[str, dict[int, int]] = {}
        for queue in self.all_queues():
            if queue.max_offset:  # One that never held anything starts at 0 all the same.
                floors.setdefault(queue.topic, {})[queue.number] = queue.min_offset_from(start)
        return floors

    def forget_topic(self, topic: str) -> dict[int, int]:
        """Hide a topic's messages for good; returns the floors that hide them after a restart."""
        floors: dict[int, int] = {}
        for queue in self.queues_of(topic):
            # What is on its way counts as sent afterwards: were it taken back, its offsets would be
            # given again, and a floor above them would hide those who get them.
            queue.raise_floor(queue.max_offset)
            floors[queue.number] = queue.floor
        return floors

    def all_queues(self) -> Iterator[ConsumeQueue]:
        """Every queue that was ever named."""
        for numbers in self._queues.values():
            yield from numbers.values()
