"""A follower: it copies the log of its leader, byte for byte, into a directory of its own.

The follower compares the histories first: a part of its log that the leader does not have was never
acknowledged by both, and goes to a side folder. Then it asks for the log from its own end on, again
and again, and syncs while the next answer is on its way.

It obeys the newest epoch that it knows: an answer or a span of an older one is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from txmq.errors import (
    BrokerRefused,
    DiskFull,
    LogTooShort,
    RemoteProtocolError,
    TransportError,
)
from txmq.protocol.codes import RequestCode
from txmq.protocol.copies import NO_SPAN, CopiedTables, FollowAnswer, FollowLog, NoteCopied
from txmq.protocol.span import SpanHead
from txmq.remoting.connection import Connection
from txmq.remoting.pool import ConnectionPool
from txmq.runtime.backoff import Backoff
from txmq.runtime.clock import Clock
from txmq.runtime.disk import NO_ROOM, Disk
from txmq.runtime.entropy import Entropy
from txmq_broker.config import BrokerSettings
from txmq_broker.services.log_copy import LogCopy

__all__ = ["Follower", "FollowerStatus"]

log = logging.getLogger(__name__)

FIRST_RETRY_S: Final = 0.1
"""A new leader's port opens about this long after its election."""

LAST_RETRY_S: Final = 1.0
TIMEOUT_S: Final = 5.0
_RETRIED: Final = (TransportError, BrokerRefused, RemoteProtocolError, DiskFull)


class FollowerStatus(NamedTuple):
    """How far a follower is."""

    position: int
    """The end of its log."""
    durable: int
    """The position before which its log is durable."""
    leader: str
    """The address of the leader that it follows or tries to; empty before it knows one."""
    epoch: int
    """The newest epoch that it knows."""
    failure: str
    """Why it does not follow; empty while it follows."""


class Follower:
    """One follower; while it runs, it owns its directory.

    Args:
        settings: The settings of the broker.
        pool: The connections to leaders.
        disk: The directory.
        clock: The clocks.
        entropy: For names that must be unique.
        find_leader: Returns the address and the epoch of the present leader. It waits for one, or
            raises :class:`TransportError` or :class:`BrokerRefused`.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        pool: ConnectionPool,
        disk: Disk,
        clock: Clock,
        entropy: Entropy,
        find_leader: Callable[[], Awaitable[tuple[str, int]]],
    ) -> None:
        self._member = settings.replication.member
        self._pool = pool
        self._find_leader = find_leader
        self._copy = LogCopy(disk, settings.store, clock, entropy)
        self._connection: Connection | None = None
        self._copied = asyncio.Event()
        self._leader = ""
        self._epoch = 0
        self._failure = ""
        self._backoff = Backoff(entropy, FIRST_RETRY_S, LAST_RETRY_S)

    @property
    def status(self) -> FollowerStatus:
        """How far it is."""
        copy = self._copy
        return FollowerStatus(copy.end, copy.durable, self._leader, self._epoch, self._failure)

    def look_again(self) -> None:
        """Leave the present leader, and ask for the leader again."""
        if self._connection is not None:
            self._connection.abort()

    async def run(self) -> None:
        """Follow the leader until cancelled. Afterwards a broker may be started on the directory.

        Raises:
            StoreError: The directory is in use, damaged, belongs to another log, or is too far
                behind; or a sync failed.
            OSError: The disk failed.
        """
        try:
            self._copy.lock()
            while True:
                self._epoch = max(self._epoch, self._copy.epoch)
                try:
                    await self._follow(*await self._find_leader())
                except _RETRIED as error:
                    self._report(error)
                except OSError as error:
                    if error.errno not in NO_ROOM:
                        raise
                    self._report(error)
                await asyncio.sleep(self._backoff.next_pause())
        finally:
            await self._copy.close()

    def _report(self, error: Exception) -> None:
        if str(error) != self._failure:
            self._failure = str(error)
            log.warning("not following: %s; trying again", error)

    # One leader

    async def _follow(self, address: str, epoch: int) -> None:
        self._epoch = max(self._epoch, epoch)
        self._leader = address
        self._connection = connection = await self._pool.connection(address)
        try:
            answer, tables, _ = await self._ask(connection, self._copy.last)
            if tables is None:
                raise RemoteProtocolError(f"{address} sent no tables")
            self._copy.open_as(int(answer.log, 16), answer.start, tables)
            if not answer.is_shared:
                answer, tables, _ = await self._ask(connection, self._copy.last)
            if not answer.is_shared:
                await self._cut_back(connection, answer.start, tables or CopiedTables())
            self._copy.take_tables(tables or CopiedTables())
            self._copy.take_offsets(tables or CopiedTables())
            self._failure = ""
            self._backoff.reset()
            log.info("following %s from position %d on", address, self._copy.end)
            await self._copy_until_lost(connection)
        finally:
            self._connection = None
            connection.abort()

    async def _ask(
        self, connection: Connection, last: SpanHead | None, *, waits: bool = False
    ) -> tuple[FollowAnswer, CopiedTables | None, bytes]:
        """Ask for what follows a span: the answer, the tables in it, and the spans."""
        position = self._copy.end if last is None else last.position + last.size
        header = FollowLog(
            member=self._member,
            epoch=self._epoch,
            position=position,
            last_start=NO_SPAN if last is None else last.position,
            last_epoch=0 if last is None else last.epoch,
            last_checksum=0 if last is None else last.checksum,
            waits=waits,
        )
        found = await connection.request(RequestCode.FOLLOW_LOG, header, timeout_s=TIMEOUT_S)
        answer = found.read(FollowAnswer)
        if answer.epoch < self._epoch:
            raise BrokerRefused(
                f"{self._leader} leads in epoch {answer.epoch}, and epoch {self._epoch} has begun"
            )
        self._epoch = answer.epoch
        tables, spans = found.body[: answer.tables_bytes], found.body[answer.tables_bytes :]
        return answer, CopiedTables.read(tables) if tables else None, spans

    async def _copy_until_lost(self, connection: Connection) -> None:
        copying = asyncio.create_task(self._take_spans(connection), name="copy")
        syncing = asyncio.create_task(self._sync_copies(connection), name="sync copies")
        try:
            ended, _ = await asyncio.wait((copying, syncing), return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            copying.cancel()
            syncing.cancel()
            await asyncio.gather(copying, syncing, return_exceptions=True)

    async def _take_spans(self, connection: Connection) -> None:
        copy = self._copy
        while True:
            self._copied.set()
            answer, tables, spans = await self._ask(connection, copy.last, waits=True)
            if not answer.is_shared:
                raise RemoteProtocolError("the leader has another history than a moment ago")
            if tables is not None:
                # Before the records that need them.
                copy.take_tables(tables)
            if spans:
                await copy.take_spans(spans, answer.file_start, answer.epoch)
            if tables is not None:
                # Behind them, because offsets are of the end of the log.
                copy.take_offsets(tables)
            await copy.drop_files_before(answer.start)

    async def _sync_copies(self, connection: Connection) -> None:
        while True:
            await self._copied.wait()
            self._copied.clear()
            await self._copy.sync()
            copied = NoteCopied(self._member, self._copy.durable)
            connection.oneway(RequestCode.NOTE_COPIED, copied)

    # Cutting back

    async def _cut_back(
        self, connection: Connection, leaders_start: int, tables: CopiedTables
    ) -> None:
        last = await self._last_shared(connection)
        if last is None and self._copy.start != leaders_start:
            raise LogTooShort(
                f"the leader has the log from position {leaders_start} on, and this copy ends at "
                f"{self._copy.end}; move the directory away and start again, to copy everything"
            )
        self._copy.cut_back(last, tables)

    async def _last_shared(self, connection: Connection) -> SpanHead | None:
        """The last span that both logs have; ``None`` if they share nothing."""

        async def is_shared(head: SpanHead) -> bool:
            answer, _, _ = await self._ask(connection, head)
            return answer.is_shared

        for heads in self._copy.heads():
            if not heads or not await is_shared(heads[0]):
                continue
            # What is shared is a beginning of the log.
            low, high = 1, len(heads)
            while low < high:
                middle = (low + high) // 2
                if await is_shared(heads[middle]):
                    low = middle + 1
                else:
                    high = middle
            return heads[low - 1]
        return None
