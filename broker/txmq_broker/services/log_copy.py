"""A follower's directory: a copy of a leader's log, and of the tables beside it.

The log grows by whole spans. The tables are saved as they arrive, except the committed offsets,
which may be ahead of the copy: they are cut to its queues, and saved once it is durable.

The directory is that of a broker: started as a leader, it goes on where the copy ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence

from txmq.errors import CorruptRecord, ForeignFile, SyncFailed
from txmq.protocol.bodies import ConsumerOffsets
from txmq.protocol.copies import CopiedTables
from txmq.protocol.span import SpanHead
from txmq.quantity import quantity
from txmq.runtime.clock import Clock
from txmq.runtime.disk import Disk, File
from txmq.runtime.entropy import Entropy
from txmq_broker.config import StoreSettings
from txmq_broker.core.offsets import Offsets
from txmq_broker.core.topics import queue_counts
from txmq_broker.services.keeper import Keeper
from txmq_broker.store.checkpoints import Checkpoint
from txmq_broker.store.evidence import QueueOffsets
from txmq_broker.store.log.identity import PATH as IDENTITY
from txmq_broker.store.log.identity import known_log
from txmq_broker.store.log.spans import heads_of
from txmq_broker.store.message_store import MessageStore

__all__ = ["LogCopy"]

log = logging.getLogger(__name__)


class LogCopy:
    """The copy in one directory.

    Attributes:
        is_open: Whether the log can be read and grow.
        last: The head of its last span; ``None`` before there is one.
    """

    def __init__(self, disk: Disk, settings: StoreSettings, clock: Clock, entropy: Entropy) -> None:
        self._disk = disk
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._keeper = Keeper(disk)
        self._store = MessageStore(disk, settings)
        self._offsets: tuple[int, ConsumerOffsets] | None = None
        """Offsets to save once the log is durable up to a position."""
        self._floors: dict[str, dict[int, int]] = {}
        self._chunk: Checkpoint | None = None
        """A chunk of an index that is written and not confirmed yet."""
        self._syncing = asyncio.Lock()
        self._is_broken = False
        """Whether the files or the indexes are not what they should be."""
        self.is_open = False
        self.last: SpanHead | None = None

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

    @property
    def epoch(self) -> int:
        """The epoch of the last span."""
        return 0 if self.last is None else self.last.epoch

    # Opening and closing

    def lock(self) -> None:
        """Lock the directory, and open it unless it is new.

        Raises:
            StoreError: The directory is in use, or damaged.
            OSError: The disk failed.
        """
        self._store.lock()
        if known_log(self._disk)[0] is not None:
            self._begin_again(None)
            if not self._keeper.is_new:
                self._open()

    def open_as(self, log_id: int, start: int, tables: CopiedTables) -> None:
        """Make the directory a copy of a log; an empty one begins where that log begins.

        Raises:
            ForeignFile: The directory has another log.
            StoreError: It is damaged.
            OSError: The disk failed.
        """
        if not self.is_open:
            self._begin_again(log_id)
            if self._keeper.is_new:
                # The leader's offsets are ahead of a log that is empty here.
                empty = CopiedTables(tables.topics, tables.groups, ConsumerOffsets(), tables.floors)
                self._keeper.adopt(empty, 0)
            self._open()
        own = self._store.log.segments.log_id
        if own != log_id:
            raise ForeignFile(IDENTITY, own, log_id)
        if not self._store.log.segments.extents():
            self._store.begin_at(start)
        self._store.log.note_writer(is_copy=True)

    def _begin_again(self, log_id: int | None) -> None:
        """Forget what was read from the directory, and read whose it is."""
        self.is_open = False
        self._store.close()
        self._keeper = Keeper(self._disk)
        self._store = MessageStore(self._disk, self._settings)
        self._offsets = self._chunk = self.last = None
        self._keeper.owner = f"{self._store.take(self._entropy, copied=log_id):016x}"
        self._keeper.floors()

    def _open(self) -> None:
        keeper, store = self._keeper, self._store
        floors, topics = keeper.floors(), keeper.topics()
        keeper.groups()
        offsets = Offsets()
        offsets.load(keeper.offsets())
        store.open(
            floors.floors,
            floors_end=floors.log_end,
            committed=offsets.highest(),
            topics=queue_counts(topics),
            now_ms=self._clock.wall_ms(),
        )
        self.is_open = True
        self._floors = floors.floors
        self.last = store.last_span()

    async def close(self) -> None:
        """Make everything durable, save the indexes, and release the directory."""
        try:
            if self.is_open and not self._is_broken:
                await self.sync()
                await self.save_indexes()
                self._store.note_clean_stop()
        except (OSError, SyncFailed) as error:
            log.warning("the copy was closed without being saved whole: %s", error)
        finally:
            self.is_open = False
            self._store.close()

    # Growing

    def take_tables(self, tables: CopiedTables) -> None:
        """Save the leader's tables, except its offsets.

        Raises:
            OSError: The disk refuses.
        """
        floors = None if tables.floors is None else _highest(self._floors, tables.floors)
        changed = CopiedTables(tables.topics, tables.groups, None, floors)
        self._keeper.adopt(changed, self._store.log.durable)
        if floors is not None:
            self._floors = floors

    def take_offsets(self, tables: CopiedTables) -> None:
        """Take the leader's offsets, if it sent them; the next sync saves them."""
        if tables.offsets is not None:
            self._offsets = self.end, self._within(tables.offsets, self.end)

    async def take_spans(self, spans: bytes, file_start: int, epoch: int) -> None:
        """Append spans at the end of the log.

        Args:
            spans: Whole spans of one file.
            file_start: Where that file begins.
            epoch: The epoch of the leader that sent them.

        Raises:
            RemoteProtocolError: They do not follow the log.
            StoreError: A record in them is broken, or the disk refused.
            OSError: An index cannot be saved.
        """
        if file_start == self.end:
            # A chunk of an index covers one file, and queues may jump in the next one.
            await self.save_indexes()
        try:
            self.last = self._store.copy(spans, file_start, self.last, epoch)
        except CorruptRecord:
            self._is_broken = True
            raise
        if self._store.checkpoints.is_due():
            await self.save_indexes()

    async def drop_files_before(self, position: int) -> None:
        """Delete the files that the leader has deleted.

        Raises:
            OSError: The disk refuses.
            SyncFailed: A sync failed.
        """
        extents = self._store.log.segments.extents()
        files = sum(extent.end <= position for extent in extents[:-1])
        if not files:
            return
        await self.save_indexes()
        self._floors = _highest(self._floors, self._store.floors_after(files))
        self._keeper.save_floors(self._floors, self.durable)
        for _ in range(files):
            self._store.drop_first_file()

    async def sync(self) -> None:
        """Make the log durable, and save the offsets that it has reached.

        Raises:
            SyncFailed: The disk refused; what it holds is unknown.
            OSError: The offsets cannot be saved.
        """
        async with self._syncing:
            point = self._store.log.sync_point()
            if point.end > self.durable:
                await self._make_durable(point.files)
                self._store.log.synced(point)
        if self._offsets is not None and self.durable >= self._offsets[0]:
            self._keeper.adopt(CopiedTables(offsets=self._offsets[1]), self.durable)
            self._offsets = None

    async def save_indexes(self) -> None:
        """Save the indexes of everything that was copied.

        Raises:
            SyncFailed: A sync failed.
            OSError: An index cannot be written.
        """
        await self.sync()
        checkpoints = self._store.checkpoints
        while True:
            # After a cancelled call the chunk that it wrote is still there.
            if self._chunk is None:
                part = checkpoints.next_range()
                if part is None:
                    return
                self._chunk = checkpoints.begin(part)
            await self._make_durable([self._chunk.file.file])
            checkpoints.confirm(self._chunk)
            self._chunk = None

    async def _make_durable(self, files: Sequence[File]) -> None:
        try:
            await self._disk.sync_soon(files)
        except OSError as error:
            self._is_broken = True
            raise SyncFailed(f"the disk could not make the copy durable: {error}") from error

    def _within(self, offsets: ConsumerOffsets, end: int) -> ConsumerOffsets:
        """Offsets that are at most those of the messages before a position of the log."""
        within: dict[str, dict[int, int]] = {}
        for name, numbers in offsets.offset_table.items():
            topic = name.partition("@")[0]
            cut = within[name] = {}
            for number, offset in numbers.items():
                queue = self._store.find_queue(topic, number)
                cut[number] = min(offset, 0 if queue is None else queue.end_before(end))
        return ConsumerOffsets(within)

    # Cutting back

    def heads(self) -> Iterator[Sequence[SpanHead]]:
        """The heads of the spans of each file, newest file first."""
        segments = self._store.log.segments
        for extent in reversed(segments.extents()):
            yield list(heads_of(segments, extent))

    def cut_back(self, last: SpanHead | None, tables: CopiedTables) -> None:
        """End the log behind a span, and say where the rest is kept.

        Args:
            last: The last span that stays; without one, the whole log is cut.
            tables: The leader's tables.

        Raises:
            StoreError: The directory is damaged.
            OSError: The disk refused.
        """
        end, start = self.end, self.start
        position = start if last is None else last.position + last.size
        offsets = self._within(self._keeper.offsets(), position)
        floors = self._floors
        self._begin_again(None)
        # Nothing beside the log may be ahead of it, so the tables are first.
        self._keeper.adopt(
            CopiedTables(tables.topics, tables.groups, offsets, floors), min(position, end)
        )
        kept = self._store.cut_back(last, position, self._clock.wall_ms())
        log.error(
            "%s of this log are not in the leader's and were cut at position %d; %s keeps them",
            quantity(end - position, "byte"),
            position,
            kept,
        )
        self._open()


def _highest(one: QueueOffsets, other: QueueOffsets) -> dict[str, dict[int, int]]:
    """The higher offset of each queue."""
    highest = {topic: dict(numbers) for topic, numbers in one.items()}
    for topic, numbers in other.items():
        known = highest.setdefault(topic, {})
        for number, offset in numbers.items():
            known[number] = max(known.get(number, 0), offset)
    return highest
