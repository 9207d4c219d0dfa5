"""A follower's directory: a copy of its leader's log and tables.

The log grows by whole spans. Their records are indexed afterwards, because indexing takes longer
than copying; the next start indexes the rest. Topics and groups are saved as they arrive. Committed
offsets and floors must never be ahead of the log, so they are saved once the copy has durably
reached the position where the leader's log ended when they were sent.

Readers see everything that is indexed. So a copy that consumers may read indexes only the part that
no fail-over can cut.

The directory has a broker's format: a leader that starts on it continues where the copy ends.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from txmq.errors import CorruptRecord, ForeignFile, LogTooShort, StoreError, SyncFailed
from txmq.protocol.bodies import ConsumerOffsets
from txmq.protocol.copies import CopiedTables
from txmq.protocol.span import FOLDER as LOG_FOLDER
from txmq.protocol.span import HEAD_BYTES, SpanHead, read_head
from txmq.runtime.clock import Clock
from txmq.runtime.disk import Disk, File
from txmq.runtime.entropy import Entropy
from txmq.text import quantity
from txmq_broker.config import StoreSettings
from txmq_broker.core.offsets import Offsets
from txmq_broker.core.topics import queue_counts
from txmq_broker.replication.truncation import finish_cut, keep_tail, lower_tables, set_aside
from txmq_broker.services.keeper import CopyState, Keeper
from txmq_broker.store.checkpoints import Checkpoint
from txmq_broker.store.evidence import QueueOffsets
from txmq_broker.store.log.damaged_parts import DamagedPart, DamagedParts, look_at
from txmq_broker.store.log.identity import PATH as IDENTITY
from txmq_broker.store.log.identity import known_log
from txmq_broker.store.log.proof import proof_of
from txmq_broker.store.log.spans import heads_of
from txmq_broker.store.message_store import MessageStore

__all__ = ["LogCopy"]

log = logging.getLogger(__name__)

_INDEXED_AT_ONCE: Final = 64 * 1024
"""Indexing this many bytes takes a few milliseconds."""

_INDEXED_AT_THE_END: Final = 4 * 1024 * 1024


class LogCopy:
    """The copy in one directory.

    Args:
        disk: The directory.
        settings: How the log is kept.
        clock: The clocks.
        entropy: For names that must be unique.
        serves_reads: Whether consumers may read from it.

    Attributes:
        is_open: Whether the log can be read and appended to.
        tables: The leader's tables that are saved here.
        acknowledged: The position before which no fail-over cuts the log; -1 until that is known.
        before_closing: Called before the log is closed or reopened.
        epoch: The newest known epoch.
        last: The head of its last span; ``None`` if there is none.
        state: The saved state of the copy.
        damaged: The known damaged parts.
    """

    def __init__(
        self,
        disk: Disk,
        settings: StoreSettings,
        clock: Clock,
        entropy: Entropy,
        *,
        serves_reads: bool = False,
    ) -> None:
        self._serves_reads = serves_reads
        self.tables = CopiedTables()
        self.acknowledged = -1
        self.before_closing: Callable[[], None] = lambda: None
        self._disk = disk
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._keeper = Keeper(disk)
        self._store = MessageStore(disk, settings)
        self._late: list[tuple[int, CopiedTables]] = []
        """Offsets and floors to save once the log is durable up to a position, oldest first."""
        self._floors: dict[str, dict[int, int]] = {}
        self.state = CopyState()
        self._chunk: Checkpoint | None = None
        """A chunk of an index that is written but not confirmed yet."""
        self._syncing = asyncio.Lock()
        self._indexing = asyncio.Lock()
        self._has_offsets = False
        """Whether the leader's offsets were saved since the log was opened."""
        self._is_broken = False
        """True after a failed sync or a broken record: the files can no longer be trusted."""
        self._is_closed = False
        self.is_open = False
        self.epoch = 0
        self.last: SpanHead | None = None
        self.damaged = DamagedParts(self._save_damaged)

    @property
    def owner(self) -> str:
        """The identity of the log."""
        return self._keeper.owner

    @property
    def store(self) -> MessageStore:
        """The log and its indexes; a new object each time the directory is read again."""
        return self._store

    @property
    def is_readable(self) -> bool:
        """Whether consumers may read everything that is indexed.

        A restart indexes the whole log, so consumers wait until all of it is acknowledged. They
        also wait for the leader's offsets, without which groups would start over.
        """
        is_shown = self.acknowledged >= self._store.checkpoints.published
        is_whole = self.is_open and self._has_offsets and not self.is_out
        return self._serves_reads and is_whole and is_shown

    @property
    def doubt(self) -> str:
        """Why the copy may have lost something; empty if there is no sign of a loss."""
        return self.state.doubt

    @property
    def is_out(self) -> bool:
        """True if the copy does not count as in sync, however long it is."""
        return bool(self.doubt or self.damaged)

    @property
    def start(self) -> int:
        """Where the log begins."""
        return self._store.log.start

    @property
    def end(self) -> int:
        """Where the log ends."""
        return self._store.log.end

    @property
    def durable(self) -> int:
        """The position before which every byte is durable."""
        return self._store.log.durable

    # Opening and closing

    def lock(self) -> None:
        """Lock the directory, and open it unless it is new.

        A log that is damaged, or shorter than it was, stays untouched until there is a leader to
        copy the rest from.

        Raises:
            StoreError: The directory is in use, or a file other than the log is damaged.
            OSError: The disk failed.
        """
        self._store.lock()
        if known_log(self._disk)[0] is not None:
            self._begin_again(None)
            if not self._must_begin and not self.doubt:
                # Looked at first, because opening the log writes a new high-water mark.
                if doubt := proof_of(self._disk).doubt:
                    self.note_doubt(doubt)
                try:
                    self._open(is_doubtful=False)
                except (CorruptRecord, LogTooShort) as error:
                    self.note_doubt(str(error))

    def open_as(self, log_id: int, start: int, tables: CopiedTables) -> None:
        """Make the directory a copy of a log; an empty copy begins where that log begins.

        Raises:
            ForeignFile: The directory has another log.
            StoreError: The directory is damaged.
            OSError: The disk failed.
        """
        if not self.is_open:
            self._begin_again(log_id)
            if self._must_begin:
                self._adopt_all(tables)
            try:
                self._open()
            except (CorruptRecord, LogTooShort):
                # A damaged log cannot even be cut.
                self.start_over(start, tables)
        own = self._store.log.segments.log_id
        if own != log_id:
            raise ForeignFile(IDENTITY, own, log_id)
        if not self._store.log.segments.extents():
            self._store.begin_at(start)
        elif self.doubt and self.start > start:
            # The log is copied in order, so if its beginning is missing, all is copied again.
            self.start_over(start, tables)
        self.note(is_copy=True, epoch=self.epoch, reason="", promoted_ms=0)

    def _begin_again(self, log_id: int | None) -> None:
        """Close the directory, and read again which log it holds."""
        self.before_closing()
        self.is_open = self._has_offsets = False
        self.acknowledged = -1
        self._store.close()
        self._keeper = Keeper(self._disk)
        self._store = MessageStore(self._disk, self._settings)
        self._late.clear()
        self._chunk = self.last = None
        self._keeper.owner = f"{self._store.take(self._entropy, copied=log_id):016x}"
        self.state = finish_cut(self._keeper, self._disk, self._store.log)
        self.damaged.load(self.state.damaged)
        self._keeper.floors()

    @property
    def _must_begin(self) -> bool:
        """Whether nothing has been copied yet."""
        is_complete = self.state.is_complete
        return bool(self._keeper.is_new) or not (is_complete or self._disk.names(LOG_FOLDER))

    def _adopt_all(self, tables: CopiedTables) -> None:
        """Save the leader's tables except its offsets, which would be ahead of an empty log."""
        self.note(is_copy=True, is_complete=False)
        self._keeper.adopt(
            CopiedTables(tables.topics, tables.groups, ConsumerOffsets(), tables.floors), 0
        )

    def note(self, **changes: object) -> None:
        """Change fields of :attr:`state`, durably.

        Raises:
            OSError: The disk refuses.
        """
        changed = replace(self.state, **changes)
        if changed != self.state:
            self._keeper.save_copy_state(changed)
            self.state = changed

    def _save_damaged(self, parts: list[DamagedPart]) -> None:
        try:
            self.note(damaged=[tuple(part) for part in parts])
        except OSError as error:
            log.warning("a restart may forget that the log is damaged: %s", error)

    def _open(self, *, is_doubtful: bool | None = None) -> None:
        keeper, store = self._keeper, self._store
        floors, topics = keeper.floors(), keeper.topics()
        self.tables = CopiedTables(topics, keeper.groups(), keeper.offsets(), floors.floors)
        offsets = Offsets()
        offsets.load(keeper.offsets())
        store.open(
            floors.floors,
            floors_end=floors.log_end,
            committed=offsets.highest(),
            topics=queue_counts(topics),
            is_copy=self.state.is_copy,
            is_doubtful=bool(self.doubt) if is_doubtful is None else is_doubtful,
            now_ms=self._clock.wall_ms(),
        )
        self.is_open = True
        self.damaged.keep_within(self.start, self.end)
        self._floors = floors.floors
        self.last = store.last_span()
        newest = 0 if self.last is None else self.last.epoch
        self.epoch = max(self.epoch, self.state.epoch, newest)

    def note_epoch(self, epoch: int) -> None:
        """Record a newer epoch durably: an older leader must not be followed, even after a restart.

        Raises:
            OSError: The disk refuses.
        """
        self.epoch = max(self.epoch, epoch)
        if self.is_open:
            self.note(epoch=self.epoch)

    def note_doubt(self, reason: str) -> None:
        """Record that the copy may have lost something.

        Raises:
            OSError: The disk refuses.
        """
        log.error("this copy does not count until it has caught up with a leader: %s", reason)
        self.note(doubt=reason)

    def end_doubt(self) -> None:
        """Record that the copy has caught up with its leader.

        Raises:
            OSError: The disk refuses.
        """
        if self.doubt:
            log.warning("this copy has caught up and counts again; before: %s", self.doubt)
            self.note(doubt="")

    async def close(self) -> None:
        """Make everything durable, save the indexes, and release the directory; may be repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        self.before_closing()
        was_open, self.is_open = self.is_open, False
        try:
            if was_open and not self._is_broken:
                await self.sync()
                if self.unindexed <= _INDEXED_AT_THE_END:
                    # Otherwise the next start does this: a fail-over may wait for the close.
                    await self.index()
                async with self._indexing:
                    await self._save_indexes()
                self._store.note_clean_stop()
        except (OSError, StoreError) as error:
            log.warning("the copy was closed without being saved whole: %s", error)
        finally:
            self._store.close()

    def promote(self, reason: str) -> None:
        """Make it a leader's directory, in an epoch newer than any that it knows.

        Raises:
            OSError: The disk refuses.
        """
        self.epoch += 1
        self.note(
            is_copy=False,
            is_complete=True,
            doubt="",
            epoch=self.epoch,
            reason=reason,
            promoted_ms=self._clock.wall_ms(),
        )

    # Growing

    def take_tables(self, tables: CopiedTables, leaders_end: int) -> None:
        """Save the leader's topics and groups now, and its other tables with a later sync.

        Args:
            tables: The tables.
            leaders_end: The end of the leader's log; the tables may refer to anything before it.

        Raises:
            OSError: The disk refuses.
        """
        topics = tables.topics
        if tables.topic_changes is not None and self.tables.topics is not None:
            topics = tables.topic_changes.applied_to(self.tables.topics)
        self._keeper.adopt(CopiedTables(topics, tables.groups), self.durable)
        self.tables = CopiedTables(
            topics or self.tables.topics,
            tables.groups or self.tables.groups,
            self.tables.offsets,
            self.tables.floors,
        )
        if tables.offsets is not None:
            late = CopiedTables(offsets=tables.offsets, floors=tables.floors)
            self._late.append((leaders_end, late))
            # The oldest tables can be saved first, and the newest matter most; drop the others.
            del self._late[1:-1]

    def take_spans(self, spans: bytes, file_start: int, epoch: int) -> None:
        """Append spans to the log; :meth:`index` later indexes their records.

        Args:
            spans: Whole spans of one file.
            file_start: Where that file begins.
            epoch: The epoch of the leader that sent them.

        Raises:
            RemoteProtocolError: They do not continue the log.
            StoreError: The disk refused.
        """
        self.last = self._store.copy(spans, file_start, self.last, epoch)

    @property
    def unindexed(self) -> int:
        """The number of bytes at the end of the log whose records are not indexed."""
        return self.end - self._store.checkpoints.published

    @property
    def indexable(self) -> int:
        """The number of unindexed bytes that may be indexed now."""
        end = min(self.durable, self.acknowledged) if self._serves_reads else self.end
        return max(0, self._whole_until(end) - self._store.checkpoints.published)

    def _whole_until(self, end: int) -> int:
        """Where indexing must stop: at ``end``, or before a damaged part that will be repaired."""
        damage = self.damaged.begin_behind(self._store.checkpoints.published)
        return end if damage is None else min(end, damage)

    async def index(self, most: int | None = None) -> None:
        """Index copied records, up to the first damaged part.

        Args:
            most: The approximate number of bytes to index; all by default.

        Raises:
            StoreError: A record is broken in a span with a correct checksum, or a sync failed.
            OSError: An index cannot be saved.
        """
        store, checkpoints = self._store, self._store.checkpoints
        async with self._indexing:
            end = self.end if most is None else min(self.end, checkpoints.published + most)
            end = self._whole_until(end)
            while checkpoints.published < end:
                if checkpoints.published in store.log.segments.starts:
                    # A chunk covers one file, and queues may jump in the next one.
                    await self._save_indexes()
                try:
                    store.index_copied(min(_INDEXED_AT_ONCE, end - checkpoints.published))
                except CorruptRecord:
                    after, is_whole = look_at(store.log.segments, checkpoints.published)
                    if not is_whole:
                        self.damaged.add(DamagedPart(checkpoints.published, after))
                        return
                    self._is_broken = True
                    raise
                if (
                    checkpoints.published - checkpoints.checkpointed
                    >= self._settings.checkpoint_every
                ):
                    await self._save_indexes()

    async def drop_files_before(self, position: int) -> None:
        """Delete the files that the leader has deleted.

        Raises:
            OSError: The disk refuses.
            StoreError: A sync failed, or a record is broken.
        """
        extents = self._store.log.segments.extents()
        files = sum(extent.end <= position for extent in extents[:-1])
        if not files:
            return
        unindexed = extents[files].start - self._store.checkpoints.published
        if self._serves_reads and unindexed > self.indexable:
            return
        await self.index(unindexed)
        if self._store.checkpoints.published < extents[files].start:
            return
        async with self._indexing:
            await self._save_indexes()
            self._floors = _highest(self._floors, self._store.floors_after(files))
            self._keeper.save_floors(self._floors, self.durable)
            for _ in range(files):
                self._store.drop_first_file()
            self.damaged.keep_within(self.start, self.end)

    async def sync(self) -> None:
        """Make the log durable, and save the offsets and floors that it has reached.

        Raises:
            SyncFailed: The disk refused, so its contents are unknown.
            OSError: The tables cannot be saved.
        """
        async with self._syncing:
            point = self._store.log.sync_point()
            if point.end > self.durable:
                await self._make_durable(point.files)
                self._store.log.synced(point)
        while self._late and self.durable >= self._late[0][0]:
            late = self._late.pop(0)[1]
            if late.floors is not None:
                self._floors = _highest(self._floors, late.floors)
            self._keeper.adopt(
                CopiedTables(offsets=late.offsets, floors=self._floors), self.durable
            )
            self.tables = CopiedTables(
                self.tables.topics, self.tables.groups, late.offsets, self._floors
            )
            self._has_offsets = True
            self.note(is_complete=True)

    async def merge_topics(self) -> None:
        """Rewrite the file of all topics if many have changed.

        Raises:
            OSError: The disk refuses.
        """
        topics = self.tables.topics
        if topics is not None and self._keeper.has_many_changes:
            await self._keeper.merge_changes(topics)

    async def _save_indexes(self) -> None:
        await self.sync()
        checkpoints = self._store.checkpoints
        while True:
            # A cancelled call may have left the chunk that it wrote.
            if self._chunk is None:
                part = checkpoints.next_range()
                if part is None:
                    return
                self._chunk = checkpoints.begin(part)
            await self._make_durable([self._chunk.file.file])
            checkpoints.confirm(self._chunk)
            self._chunk = None

    async def _make_durable(self, files: Sequence[File]) -> None:
        if self._is_broken:
            # A file reports a failed sync only once, so a later success means nothing.
            raise SyncFailed("the disk could not make the copy durable before")
        syncing = asyncio.ensure_future(self._disk.sync_soon(files))
        syncing.add_done_callback(self._synced)
        try:
            # Cancelling the caller does not stop the disk, whose failure must still be noticed.
            await asyncio.shield(syncing)
        except OSError as error:
            raise SyncFailed(f"the disk could not make the copy durable: {error}") from error

    def _synced(self, syncing: asyncio.Future[None]) -> None:
        self._is_broken |= syncing.cancelled() or syncing.exception() is not None

    # Damage

    async def put_back(self, position: int, spans: bytes) -> None:
        """Write whole spans in place of damaged ones, durably.

        Raises:
            OSError: The disk refuses to write them.
            SyncFailed: The disk could not make them durable.
        """
        async with self._syncing:
            segments = self._store.log.segments
            if position >= segments.start:  # Otherwise the leader has deleted them.
                await self._make_durable([segments.replace(position, spans)])

    # Cutting back

    def span_starts(self) -> Iterator[Sequence[int]]:
        """The start of each span with an intact head, file by file, newest file first."""
        segments = self._store.log.segments
        for extent in reversed(segments.extents()):
            # An array, because a file may hold a million spans.
            starts, at = array("q"), extent.start
            while at < extent.end:
                try:
                    starts.extend(head.position for head in heads_of(segments, extent, at))
                    at = extent.end
                except CorruptRecord as damage:
                    at, _ = look_at(segments, damage.position)
            yield starts

    def head_at(self, start: int) -> SpanHead:
        """The head of the span that begins at a position."""
        head = read_head(self._store.log.read(start, HEAD_BYTES), 0, start)
        assert head is not None, "it was found before"
        return head

    def cut_back(self, last: SpanHead | None, leaders_start: int, tables: CopiedTables) -> None:
        """Cut the log after a span, and report where the rest is kept.

        Args:
            last: The last span that stays; without one, the whole log is cut.
            leaders_start: Where the leader's log begins.
            tables: The leader's tables.

        Raises:
            StoreError: The directory is damaged.
            OSError: The disk refused.
        """
        end, start = self.end, self.start
        if last is None and start != leaders_start:
            self.start_over(leaders_start, tables)
            return
        position = start if last is None else last.position + last.size
        self._begin_again(None)
        # The tables come first, because they must never be ahead of the log.
        log_id = self._store.log.segments.log_id
        lower_tables(self._keeper, self._disk, log_id, position, tables)
        kept = keep_tail(self._disk, self._store.log, position, self._clock.wall_ms())
        self.note(cut=(position if last is None else last.position, position))
        self.state = finish_cut(self._keeper, self._disk, self._store.log)
        log.error(
            "%s of this log are not in the leader's and were cut at position %d; %s keeps them",
            quantity(end - position, "byte"),
            position,
            kept,
        )
        try:
            self._open()
        except (CorruptRecord, LogTooShort) as error:
            # The log could be opened only with an index that the cut has removed.
            self._begin_again(None)
            self.note_doubt(str(error))
            self._open()

    def start_over(self, start: int, tables: CopiedTables) -> None:
        """Start again with an empty log where the leader's begins; keep the old log aside.

        Raises:
            StoreError: The directory is damaged.
            OSError: The disk refused.
        """
        size, end = self.end - self.start, self.end
        self._begin_again(None)
        self.note(is_copy=True, is_complete=False)
        # The tables must not be ahead of the rest of the log.
        floors = self._keeper.floors().floors
        self._keeper.adopt(CopiedTables(offsets=ConsumerOffsets(), floors=floors), 0)
        kept = set_aside(self._disk, self._store.log, self._clock.wall_ms())
        self._adopt_all(tables)
        if size:
            log.error(
                "the leader's log begins at position %d and has nothing in common with this one, "
                "which ended at %d: everything is copied again; %s keeps the old log",
                start,
                end,
                kept,
            )
        self._open()
        self._store.begin_at(start)


def _highest(one: QueueOffsets, other: QueueOffsets) -> dict[str, dict[int, int]]:
    """The higher offset of each queue."""
    highest = {topic: dict(numbers) for topic, numbers in one.items()}
    for topic, numbers in other.items():
        known = highest.setdefault(topic, {})
        for number, offset in numbers.items():
            known[number] = max(known.get(number, 0), offset)
    return highest
