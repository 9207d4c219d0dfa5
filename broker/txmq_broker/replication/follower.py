"""A follower: it copies the log of its leader, byte for byte, into its own directory.

The follower first compares the two logs and cuts the part that the leader lacks. Then it keeps
requesting the log from its own end, and syncs each answer while the next one is on its way.

It refuses answers and spans from an epoch older than the newest one that it knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, Protocol

from txmq.errors import (
    BrokerRefused,
    ConfigError,
    DiskFull,
    RemoteProtocolError,
    TransportError,
)
from txmq.protocol.codes import RequestCode, SysFlag
from txmq.protocol.compression import decompress
from txmq.protocol.copies import NO_SPAN, CopiedTables, FollowAnswer, FollowLog, NoteCopied
from txmq.protocol.span import SpanHead
from txmq.remoting.connection import Connection
from txmq.remoting.pool import ConnectionPool
from txmq.runtime.backoff import Backoff
from txmq.runtime.clock import Clock
from txmq.runtime.coordinator import LogEnd
from txmq.runtime.disk import NO_ROOM, Disk
from txmq.runtime.entropy import Entropy
from txmq_broker.config import BrokerSettings
from txmq_broker.core.statistics import Statistics
from txmq_broker.replication.log_copy import LogCopy
from txmq_broker.replication.log_repair import LogRepair
from txmq_broker.replication.set_acts import promotion_command
from txmq_broker.replication.truncation import last_shared, refuse_to_lose
from txmq_broker.services.log_verifier import LogVerifier

__all__ = ["Follower", "FollowerStatus"]

log = logging.getLogger(__name__)

FIRST_RETRY_S: Final = 0.1
"""A new leader's port opens about this long after its election."""

LAST_RETRY_S: Final = 1.0
TIMEOUT_S: Final = 5.0
_NEAR_BYTES: Final = 4 * 1024 * 1024
_ID_DIGITS: Final = 9
_INDEXED_AT_ONCE: Final = 64 * 1024
_ACCOUNTS_S: Final = 1.0
"""How often the follower's account files are checked for changes."""
_TABLES_BYTES_MAX: Final = 128 * 1024 * 1024
"""The maximum size of a leader's tables: twice that of 150,000 topics with the longest names."""

_RETRIED: Final = (TransportError, BrokerRefused, RemoteProtocolError, DiskFull, ConfigError)


class OwnAccounts(Protocol):
    """The accounts of a follower, copied from its leader."""

    async def take(self, texts: Mapping[str, str], before: str, /) -> str:
        """Put the leader's accounts in place, and return their digest.

        Raises:
            ConfigError: This follower cannot use them.
        """
        ...

    async def restore(self) -> None:
        """Undo local changes.

        Raises:
            ConfigError: The files cannot be read or written.
        """
        ...


class FollowerStatus(NamedTuple):
    """The progress of a follower."""

    position: int
    """The end of its log."""
    durable: int
    """The position before which its log is durable."""
    unindexed: int
    """The bytes at its end that are not indexed yet; a broker that starts here indexes them."""
    leaders_end: int
    """The end of the leader's log in its last answer; 0 before the first."""
    leader: str
    """The address of the leader that it follows or tries to follow; empty if it knows none."""
    epoch: int
    """The newest epoch that it knows."""
    failure: str
    """Why it does not follow; empty while it follows."""


class FollowerReads(NamedTuple):
    """The figures of a follower that serves consumers."""

    statistics: Statistics
    started_ms: int
    connections: int
    is_serving: bool
    """Whether consumers may read from it now."""
    sent_to_leader: int
    """The number of pulls that it sent to its leader."""


class Follower:
    """One follower; it owns its directory while it runs.

    Attributes:
        copy: The directory.
        broker_id: The id under which it registers with name servers; 0 before its leader has given
            it one.
        has_caught_up: Whether the copy has everything that the leader had when the follower found
            it.
        verifier: Looks for damage in the copy.
        repair: Repairs the damage.
        on_following: Called when a leader is found and the id is known.
        on_indexed: Called when readers may see more.
        reads: Returns the figures about reads; ``None`` if nothing serves consumers.

    Args:
        settings: The settings of the broker.
        pool: The connections to leaders.
        disk: The directory.
        clock: The clocks.
        entropy: For names that must be unique.
        find_leader: Returns the address and the epoch of the current leader. It waits for one, or
            raises :class:`TransportError` or :class:`BrokerRefused`.
        accounts: Receives the leader's accounts; without it, they are ignored.
        covered: Returns the end of what the set has acknowledged, according to its store. It raises
            :class:`TransportError` if the store does not answer.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        pool: ConnectionPool,
        disk: Disk,
        clock: Clock,
        entropy: Entropy,
        find_leader: Callable[[], Awaitable[tuple[str, int]]],
        accounts: OwnAccounts | None = None,
        covered: Callable[[], Awaitable[LogEnd | None]] | None = None,
    ) -> None:
        self._member = settings.replication.member
        self._set = settings.name
        self._coordinator = settings.replication.coordinator
        self._pool = pool
        self._find_leader = find_leader
        self._covered = covered
        self._disk = disk
        self._full_from = settings.retention.refuse_above
        self._serves_reads = settings.replication.reads
        self.copy = self._copy = copy = LogCopy(
            disk, settings.store, clock, entropy, serves_reads=self._serves_reads
        )
        self.verifier = LogVerifier(
            disk,
            clock,
            settings.store.verify_bytes_per_second,
            lambda: copy.store.log if copy.is_open else None,
            copy.damaged,
        )
        self.repair = LogRepair(copy, self.verifier, self._member, disk, clock)
        copy.damaged.on_change = self._note_damage
        self.broker_id = 0
        self.on_following: Callable[[], None] = lambda: None
        self.on_indexed: Callable[[], None] = lambda: None
        self.reads: Callable[[], FollowerReads | None] = lambda: None
        self._accounts = accounts
        self._connection: Connection | None = None
        self._copied = asyncio.Event()
        self._is_near = asyncio.Event()
        """Set when the copy is close enough to the leader's end to spend time on indexing."""
        self._has_tables = asyncio.Event()
        """Set when tables arrived: the file of all topics may be due for a rewrite."""
        self._leader = ""
        self._leaders_end = 0
        self._first_end = 0
        """Where the leader's log ended when this follower found it."""
        self.has_caught_up = False
        self._is_following = False
        self._failure = ""
        self._is_locked = False
        self._backoff = Backoff(entropy, FIRST_RETRY_S, LAST_RETRY_S)

    @property
    def status(self) -> FollowerStatus:
        """Its progress."""
        copy = self._copy
        return FollowerStatus(
            copy.end,
            copy.durable,
            copy.unindexed,
            self._leaders_end,
            self._leader,
            copy.epoch,
            self._failure,
        )

    def look_again(self) -> None:
        """Leave the current leader, and look for a leader again."""
        if self._connection is not None:
            self._connection.abort()

    def open(self) -> None:
        """Lock the directory, and open it unless it is new; harmless when repeated.

        Raises:
            StoreError: The directory is in use, or damaged.
            OSError: The disk failed.
        """
        if self._is_locked:
            return
        self._is_locked = True
        self._copy.lock()
        self.broker_id = self._copy.state.broker_id
        if not self.broker_id and self._member.isdecimal():
            self.broker_id = int(self._member[:_ID_DIGITS])

    async def run(self) -> None:
        """Follow the leader until cancelled. Afterwards a broker may start on the directory.

        Raises:
            StoreError: The directory is in use, damaged, or belongs to another log; or a sync
                failed.
            OSError: The disk failed.
        """
        verifying: asyncio.Task[None] | None = None
        try:
            self.open()
            verifying = asyncio.create_task(self.verifier.run(), name="verify the log")
            while True:
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
            if verifying is not None:
                verifying.cancel()
                await asyncio.gather(verifying, return_exceptions=True)
            await self._copy.close()

    def _note_damage(self) -> None:
        # A repaired part can be indexed now.
        self._is_near.set()
        self.repair.look_again()

    def _report(self, error: Exception) -> None:
        if str(error) != self._failure:
            self._failure = str(error)
            log.warning("not following: %s; trying again", error)

    # One leader

    async def _follow(self, address: str, epoch: int) -> None:
        self._copy.note_epoch(epoch)
        self._leader, self._is_following = address, False
        self._connection = connection = await self._pool.connection(address)
        try:
            last = self._copy.last
            answer, tables, _ = await self._ask(connection, last)
            if tables is None:
                raise RemoteProtocolError(f"{address} sent no tables")
            self._first_end = answer.end
            self._copy.open_as(int(answer.log, 16), answer.start, tables)
            if self._copy.last != last or not answer.is_shared:
                answer, tables, _ = await self._ask(connection, self._copy.last)
            if not answer.is_shared:
                await self._cut_back(connection, answer.start, tables or CopiedTables())
            else:
                self._note_acknowledged(answer.acknowledged)
            if tables is not None:
                self._copy.take_tables(tables, answer.end)
            self._note_broker_id(answer.broker_id)
            await self._copy_until_lost(connection)
        finally:
            self._connection = None
            connection.abort()

    def _note_broker_id(self, broker_id: int) -> None:
        if broker_id > 0:
            self.broker_id = broker_id
            self._copy.note(broker_id=broker_id)
            self.on_following()

    def _note_following(self) -> None:
        """Note and report, once for each leader, that its log is being copied."""
        if not self._is_following:
            self._is_following = True
            self._failure = ""
            self._backoff.reset()
            log.info("following %s; this copy ends at position %d", self._leader, self._copy.end)

    async def _ask(
        self, connection: Connection, last: SpanHead | None, *, waits: bool = False
    ) -> tuple[FollowAnswer, CopiedTables | None, bytes]:
        """Request the log after a span; return the answer, its tables and its spans."""
        position = self._copy.end if last is None else last.position + last.size
        header = FollowLog(
            member=self._member,
            epoch=self._copy.epoch,
            position=position,
            last_start=NO_SPAN if last is None else last.position,
            last_epoch=0 if last is None else last.epoch,
            last_checksum=0 if last is None else last.checksum,
            waits=waits,
            broker_id=self.broker_id,
            serves_reads=self._serves_reads,
            takes_deflated=True,
            takes_changes=True,
            is_out=self._copy.is_out,
            can_lead=self._disk.space().used_part <= self._full_from,
            damaged_parts=len(self._copy.damaged),
            verified_ms=self.verifier.last_round_ms,
        )
        found = await connection.request(RequestCode.FOLLOW_LOG, header, timeout_s=TIMEOUT_S)
        answer = found.read(FollowAnswer)
        if answer.epoch < self._copy.epoch:
            raise BrokerRefused(
                f"{self._leader} leads in epoch {answer.epoch}, and epoch {self._copy.epoch} has "
                "begun"
            )
        self._copy.note_epoch(answer.epoch)
        self._leaders_end = answer.end
        tables, spans = found.body[: answer.tables_bytes], found.body[answer.tables_bytes :]
        if answer.is_deflated:
            tables = decompress(int(SysFlag.COMPRESSED), tables, _TABLES_BYTES_MAX)
        return answer, CopiedTables.read(tables) if tables else None, spans

    async def _copy_until_lost(self, connection: Connection) -> None:
        tasks = [
            asyncio.create_task(self._take_spans(connection), name="copy"),
            asyncio.create_task(self._sync_copies(connection), name="sync copies"),
            asyncio.create_task(self._index_copies(), name="index copies"),
            asyncio.create_task(self._merge_topics(), name="merge topics"),
            asyncio.create_task(self.repair.run(connection), name="repair the log"),
        ]
        if self._accounts is not None:
            guard = self._keep_accounts(self._accounts)
            tasks.append(asyncio.create_task(guard, name="keep accounts"))
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take_spans(self, connection: Connection) -> None:
        copy = self._copy
        while True:
            self._copied.set()
            answer, tables, spans = await self._ask(connection, copy.last, waits=True)
            if not answer.is_shared:
                raise RemoteProtocolError("the leader has another history than a moment ago")
            if tables is not None:
                if tables.accounts is not None and self._accounts is not None:
                    digest = await self._accounts.take(tables.accounts, copy.state.accounts)
                    copy.note(accounts=digest)
                # The tables come first, because the records need them.
                copy.take_tables(tables, answer.end)
                self._has_tables.set()
            if spans:
                copy.take_spans(spans, answer.file_start, answer.epoch)
            self._note_acknowledged(answer.acknowledged)
            self._look_near()
            self._note_following()
            await copy.drop_files_before(answer.start)

    async def _sync_copies(self, connection: Connection) -> None:
        while True:
            await self._copied.wait()
            self._copied.clear()
            await self._copy.sync()
            self._look_near()
            if self._copy.durable >= self._first_end:
                self.has_caught_up = True
                self._copy.end_doubt()
            copied = NoteCopied(self._member, self._copy.durable)
            connection.oneway(RequestCode.NOTE_COPIED, copied)

    def _note_acknowledged(self, position: int) -> None:
        # A new leader may know less than the previous one.
        self._copy.acknowledged = max(self._copy.acknowledged, position)

    def _look_near(self) -> None:
        # A follower that is far behind spends its time on copying.
        if self._leaders_end - self._copy.end <= _NEAR_BYTES:
            self._is_near.set()

    async def _keep_accounts(self, accounts: OwnAccounts) -> None:
        while True:
            await asyncio.sleep(_ACCOUNTS_S)
            await accounts.restore()

    async def _index_copies(self) -> None:
        while True:
            await self._is_near.wait()
            self._is_near.clear()
            while indexable := self._copy.indexable:
                await self._copy.index(min(_INDEXED_AT_ONCE, indexable))
                self.on_indexed()
                await asyncio.sleep(0)

    async def _merge_topics(self) -> None:
        # In a task apart from the syncs: the leader's clients wait for NOTE_COPIED.
        while True:
            await self._has_tables.wait()
            self._has_tables.clear()
            try:
                await self._copy.merge_topics()
            except OSError as error:
                log.warning("the file of all topics could not be written anew: %s", error)

    async def _cut_back(
        self, connection: Connection, leaders_start: int, tables: CopiedTables
    ) -> None:
        """Cut the part of the log that the leader lacks.

        Raises:
            BrokerRefused: The leader lacks a part that the set has acknowledged.
        """

        async def is_shared(head: SpanHead) -> bool:
            answer, _, _ = await self._ask(connection, head)
            return answer.is_shared

        copy = self._copy
        last = await last_shared(copy, is_shared)
        covered = None if self._covered is None else await self._covered()
        position = leaders_start if last is None else last.position + last.size
        way_out = promotion_command(self._member, self._set, self._coordinator)
        refuse_to_lose(copy, position, covered, self._leader, way_out)
        copy.cut_back(last, leaders_start, tables)
