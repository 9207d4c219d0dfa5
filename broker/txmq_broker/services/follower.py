"""A follower: it copies the log of its leader, byte for byte, into a directory of its own.

The follower finds the leader at the name servers. It compares the histories first: a part of its
log that the leader does not have was never acknowledged by both, and goes to a side folder. Then it
asks for the log from its own end on, again and again, and syncs while the next answer is on its
way. Beside the log it saves the leader's tables, each when its copy of the log has reached them.

The directory is that of a broker: started as a leader, it goes on where the copy ends.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Awaitable, Callable
from typing import Final

from txmq.errors import (
    BrokerRefused,
    DiskFull,
    ForeignFile,
    LogTooShort,
    RemoteProtocolError,
    TransportError,
    TxmqError,
)
from txmq.protocol.bodies import ConsumerOffsets
from txmq.protocol.codes import RequestCode
from txmq.protocol.copies import NO_SPAN, CopiedTables, FollowAnswer, FollowLog, NoteCopied
from txmq.protocol.span import HEAD_BYTES, SpanHead, read_head
from txmq.quantity import quantity
from txmq.remoting.connection import Connection
from txmq.remoting.pool import ConnectionPool
from txmq.runtime.clock import Clock
from txmq.runtime.disk import Disk
from txmq.runtime.entropy import Entropy
from txmq_broker.config import BrokerSettings
from txmq_broker.core.offsets import Offsets
from txmq_broker.core.topics import queue_counts
from txmq_broker.services.keeper import Keeper
from txmq_broker.store.log.identity import PATH as IDENTITY
from txmq_broker.store.log.spans import heads_of
from txmq_broker.store.message_store import MessageStore

__all__ = ["Follower"]

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
TIMEOUT_S: Final = 5.0
_MASTER: Final = 0
_RETRIED: Final = (TransportError, BrokerRefused, RemoteProtocolError, DiskFull)

LastSpan = tuple[int, int]
"""Where a span begins, and its checksum."""

_NONE: Final[LastSpan] = (NO_SPAN, 0)


class Follower:
    """One follower; it owns its directory."""

    def __init__(
        self,
        settings: BrokerSettings,
        pool: ConnectionPool,
        disk: Disk,
        clock: Clock,
        entropy: Entropy,
        find_leader: Callable[[], Awaitable[tuple[str, int]]],
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._disk = disk
        self._clock = clock
        self._entropy = entropy
        self._find = find_leader
        self._keeper = Keeper(disk)
        self._store = MessageStore(disk, settings.store)
        self._is_open = False
        self._last = _NONE
        self._epoch = 0
        self._late: tuple[int, CopiedTables] | None = None
        """Tables to save once the log is durable up to a position."""
        self._copied = asyncio.Event()
        self._syncing = asyncio.Lock()
        self._failure = ""

    async def run(self) -> None:
        """Follow the leader until cancelled.

        Raises:
            StoreError: The directory is damaged, belongs to another log, or is too far behind.
            OSError: The disk failed.
        """
        try:
            while True:
                try:
                    leader, self._epoch = await self._find()
                    await self._follow(leader)
                except _RETRIED as error:
                    self._report(error)
                await asyncio.sleep(RETRY_S)
        finally:
            if self._is_open:
                self._store.close()

    def _report(self, error: TxmqError) -> None:
        if str(error) != self._failure:
            self._failure = str(error)
            log.warning("not following: %s; trying again", error)

    async def _follow(self, leader: str) -> None:
        connection = await self._pool.connection(leader)
        try:
            answer, body = await self._ask(connection, self._store.log.end, self._last)
            if not self._is_open:
                self._open(answer, body)
                end = self._store.log.end
                answer, body = await self._ask(connection, end, self._last)
            if not answer.is_shared:
                await self._cut_back(connection, answer.start)
            log.info("following %s from position %d on", leader, self._store.log.end)
            self._failure = ""
            await self._copy_until_lost(connection)
        finally:
            connection.abort()

    async def _copy_until_lost(self, connection: Connection) -> None:
        copying = asyncio.create_task(self._copy(connection), name="copy")
        syncing = asyncio.create_task(self._sync_copies(connection), name="sync copies")
        try:
            ended, _ = await asyncio.wait((copying, syncing), return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            # Without a connection the copying ends by itself. It is not cancelled: a chunk of an
            # index that is written and not confirmed would be written twice.
            connection.abort()
            syncing.cancel()
            await asyncio.gather(copying, syncing, return_exceptions=True)

    async def _ask(
        self, connection: Connection, position: int, last: LastSpan, *, waits: bool = False
    ) -> tuple[FollowAnswer, bytes]:
        header = FollowLog(
            member=self._settings.replication.member,
            epoch=self._epoch,
            position=position,
            last_start=last[0],
            last_epoch=0,
            last_checksum=last[1],
            waits=waits,
        )
        found = await connection.request(RequestCode.FOLLOW_LOG, header, timeout_s=TIMEOUT_S)
        return found.read(FollowAnswer), found.body

    # Opening

    def _open(self, answer: FollowAnswer, body: bytes) -> None:
        keeper, store, leaders = self._keeper, self._store, int(answer.log, 16)
        log_id = store.take(self._entropy, copied=leaders)
        self._is_open = True
        if log_id != leaders:
            raise ForeignFile(IDENTITY, log_id, leaders)
        keeper.owner = answer.log
        floors, topics = keeper.floors(), keeper.topics()
        keeper.groups()
        offsets = Offsets()
        offsets.load(keeper.offsets())
        if keeper.is_new:
            tables = CopiedTables.read(body[: answer.tables_bytes])
            # The leader's offsets are ahead of a log that is empty here.
            tables = CopiedTables(tables.topics, tables.groups, ConsumerOffsets(), tables.floors)
            keeper.adopt(tables, 0)
            floors = keeper.floors()
        store.open(
            floors.floors,
            floors_end=floors.log_end,
            committed=offsets.highest(),
            topics=queue_counts(topics),
            now_ms=self._clock.wall_ms(),
        )
        if not store.log.segments.extents():
            store.begin_at(answer.start)
        self._last = self._last_span()

    def _last_span(self) -> LastSpan:
        segments = self._store.log.segments
        last = _NONE
        for extent in reversed(segments.extents()):
            for head in heads_of(segments, extent):
                last = _identity(head)
            if last != _NONE:
                break
        return last

    # Cutting back

    async def _cut_back(self, connection: Connection, leaders_start: int) -> None:
        end = self._store.log.end
        found = await self._last_shared(connection)
        segments = self._store.log.segments
        if found is None and segments.start != leaders_start:
            raise LogTooShort(
                f"the leader has the log from position {leaders_start} on, and this copy ends at "
                f"{end}; move the directory away and start again, to copy everything"
            )
        last, position = (_NONE, segments.start) if found is None else found
        floors = self._keeper.floors()
        tables = CopiedTables(
            self._keeper.topics(), self._keeper.groups(), ConsumerOffsets(), floors.floors
        )
        self._store.close()
        self._is_open = False
        self._keeper = Keeper(self._disk)
        self._store = MessageStore(self._disk, self._settings.store)
        self._late = None
        self._keeper.owner = f"{self._store.take(self._entropy):016x}"
        self._is_open = True
        self._keeper.adopt(tables, position)
        start = position if last == _NONE else last[0]
        kept = self._store.cut_back(start, position, self._clock.wall_ms())
        log.error(
            "%s of this log are not in the leader's and were cut at position %d; %s keeps them",
            quantity(end - position, "byte"),
            position,
            kept,
        )
        self._store.open(
            floors.floors, topics=queue_counts(tables.topics), now_ms=self._clock.wall_ms()
        )
        self._last = last

    async def _last_shared(self, connection: Connection) -> tuple[LastSpan, int] | None:
        """The last span that both logs have, and its end; ``None`` if there is none."""
        segments = self._store.log.segments

        async def shared_at(position: int) -> tuple[LastSpan, int] | None:
            head = read_head(segments.read(position, HEAD_BYTES), 0, position)
            assert head is not None, "it was found before"
            last, end = _identity(head), head.position + head.size
            answer, _ = await self._ask(connection, end, last)
            return (last, end) if answer.is_shared else None

        for extent in reversed(segments.extents()):
            starts = array("q", [head.position for head in heads_of(segments, extent)])
            if not starts or (found := await shared_at(starts[0])) is None:
                continue
            # What is shared is a beginning of the log.
            low, high = 1, len(starts)
            while low < high:
                middle = (low + high) // 2
                if (later := await shared_at(starts[middle])) is None:
                    high = middle
                else:
                    found, low = later, middle + 1
            return found
        return None

    # Copying

    async def _copy(self, connection: Connection) -> None:
        self._copied.set()
        while True:
            end = self._store.log.end
            answer, body = await self._ask(connection, end, self._last, waits=True)
            if not answer.is_shared:
                raise RemoteProtocolError("the leader has another history than a moment ago")
            tables, spans = body[: answer.tables_bytes], body[answer.tables_bytes :]
            await self._take(answer, CopiedTables.read(tables) if tables else None, spans)

    async def _take(self, answer: FollowAnswer, tables: CopiedTables | None, spans: bytes) -> None:
        store = self._store
        if tables is not None:
            # Before the records that need them.
            self._keeper.adopt(CopiedTables(tables.topics, tables.groups), store.log.durable)
        if spans:
            checkpoints = store.checkpoints
            if answer.file_start == store.log.end:
                # A chunk of an index never covers a part of what was indexed.
                await self._checkpoint()
            self._last = _identity(store.copy(spans, answer.file_start))
            self._copied.set()
            if checkpoints.is_due():
                await self._checkpoint()
        if tables is not None and tables.offsets is not None:
            self._late = store.log.end, tables
            self._adopt_late()
        self._drop_files_before(answer.start)

    def _adopt_late(self) -> None:
        durable = self._store.log.durable
        if self._late is not None and durable >= self._late[0]:
            self._keeper.adopt(self._late[1], durable)
            self._late = None

    async def _sync_copies(self, connection: Connection) -> None:
        while True:
            await self._copied.wait()
            self._copied.clear()
            await self._sync()
            copied = NoteCopied(self._settings.replication.member, self._store.log.durable)
            connection.oneway(RequestCode.NOTE_COPIED, copied)
            self._adopt_late()

    async def _sync(self) -> None:
        async with self._syncing:
            point = self._store.log.sync_point()
            if point.end > self._store.log.durable:
                await self._disk.sync_soon(point.files)
                self._store.log.synced(point)

    async def _checkpoint(self) -> None:
        await self._sync()
        checkpoints = self._store.checkpoints
        while (part := checkpoints.next_range()) is not None:
            written = checkpoints.begin(part)
            await self._disk.sync_soon([written.file.file])
            checkpoints.confirm(written)

    def _drop_files_before(self, position: int) -> None:
        """Delete the files that the leader has deleted."""
        extents = self._store.log.segments.extents()
        files = sum(extent.end <= position for extent in extents[:-1])
        if files:
            floors = self._store.floors_after(files)
            self._keeper.save_floors(floors, self._store.log.durable)
            for _ in range(files):
                self._store.drop_first_file()


def _identity(head: SpanHead) -> LastSpan:
    return head.position, head.checksum
