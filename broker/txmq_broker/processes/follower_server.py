"""Serves reads from a follower's copy, up to the acknowledged position; refuses all writes.

The follower registers with name servers as a replica of its broker, so that consumers find it. It
answers as a RocketMQ slave does: it sends a consumer that is not far behind back to the leader, it
reports the offsets that it has copied, and it refuses every change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from txmq.errors import InternalError, ServiceUnavailable, TxmqError
from txmq.limits import HELD_PULLS_MAX
from txmq.protocol import templates
from txmq.protocol.bodies import ConsumerOffsets, GroupConfigs, TopicConfigs
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command
from txmq.protocol.copies import CopiedTables
from txmq.protocol.headers import PullMessage
from txmq.protocol.record import unpack
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Dispatcher
from txmq.remoting.listener import Listener
from txmq.remoting.pool import split_address
from txmq.runtime.clock import Clock
from txmq.runtime.coordinator import LogEnd
from txmq.runtime.disk import Disk
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network
from txmq_broker.access.account_copies import AccountsCopy
from txmq_broker.access.audit import AuditEntry, AuditLog
from txmq_broker.access.front_door import FrontDoor
from txmq_broker.access.requirements import REQUIREMENTS, MessageTopics
from txmq_broker.config import BrokerSettings
from txmq_broker.core.clients import Clients
from txmq_broker.core.filter.filters import Filters
from txmq_broker.core.groups import Groups
from txmq_broker.core.identity import Identity
from txmq_broker.core.locks import Locks
from txmq_broker.core.offsets import Offsets
from txmq_broker.core.statistics import SAMPLE_S, Statistics
from txmq_broker.core.topics import Topics, system_topics
from txmq_broker.handlers.clients import ClientHandlers
from txmq_broker.handlers.groups import GroupReads
from txmq_broker.handlers.offsets import OffsetHandlers
from txmq_broker.handlers.progress import ProgressHandlers
from txmq_broker.handlers.pull import PullHandlers, ReplicaChoice
from txmq_broker.handlers.query import QueryHandlers
from txmq_broker.handlers.statistics import StatisticsReads
from txmq_broker.handlers.topics import TopicReads
from txmq_broker.parts import ReadParts
from txmq_broker.replication.follower import Follower, FollowerReads
from txmq_broker.services.housekeeping import local_time
from txmq_broker.services.own_connections import own_connections
from txmq_broker.services.registrar import Registrar
from txmq_broker.store.log.damaged_parts import DamagedPart
from txmq_broker.store.message_store import MessageStore

__all__ = ["FollowerServer"]

log = logging.getLogger(__name__)

_SEND_BACK_S: Final = 1.0
"""The delay before a consumer whose pull cannot be served is sent to the leader. If the leader is
gone, the consumer comes back here, and must not do so in a tight loop.
"""

_PULLS: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
_STORED: Final = frozenset((
    RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_DELAYED_HALF, RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2, RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.END_TRANSACTION, RequestCode.RECALL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET,
))  # fmt: skip
"""Refused as unavailable, so that clients retry elsewhere.

A RocketMQ slave answers an END with 11, which our producers would read as a stored decision. It
also accepts offsets, and later overwrites them with the master's: a client with an old route would
believe that they are committed.
"""

_WRITES: Final = frozenset((
    RequestCode.CLONE_GROUP_OFFSET, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ,
))  # fmt: skip
"""Writes in the tables of handlers that otherwise only read."""

_RETRY_AT_LEADER: Final = 20


class ReadService:
    """The handlers over one opened store of a follower.

    Args:
        parts: The parts of this store.
        follower: The follower that owns it.
    """

    def __init__(self, parts: ReadParts, follower: Follower) -> None:
        self._parts = parts
        self._follower = follower
        self._adopted = CopiedTables()
        self.store = parts.store
        self.topics = parts.topics
        self.pulls = PullHandlers(parts)
        self.pulls.is_copy = True
        self.pulls.choice = ReplicaChoice(
            parts.store,
            parts.settings.replication.far_behind_bytes,
            lambda: follower.broker_id,
        )
        self.clients = ClientHandlers(parts)
        self.of_settings = self.clients.table() | TopicReads(parts).table()
        self.of_settings |= GroupReads(parts).table() | StatisticsReads(parts).table()
        """The handlers that read neither the log nor the offsets."""
        found = self.pulls.table() | QueryHandlers(parts).table()
        found |= OffsetHandlers(parts).table() | ProgressHandlers(parts).table()
        self.of_log = {code: handler for code, handler in found.items() if code not in _WRITES}
        """The handlers that read the log or the offsets."""

    def adopt(self) -> None:
        """Adopt the leader's tables that the copy has saved."""
        tables, adopted = self._follower.copy.tables, self._adopted
        if tables is adopted:
            return
        parts, self._adopted = self._parts, tables
        topics, groups = tables.topics or TopicConfigs(), tables.groups or GroupConfigs()
        if adopted.topics is None or topics.data_version != adopted.topics.data_version:
            parts.topics.adopt(topics)
        if adopted.groups is None or groups.data_version != adopted.groups.data_version:
            parts.groups.load(groups)
        if tables.offsets is not adopted.offsets:
            parts.offsets.adopt(tables.offsets or ConsumerOffsets())
        for topic, numbers in (tables.floors or {}).items():
            for number, floor in numbers.items():
                queue = parts.store.find_queue(topic, number)
                if queue is not None and floor > queue.floor:
                    queue.raise_floor(min(floor, queue.max_offset))


class FollowerServer:
    """One follower, with the listener for its clients and its registration.

    Args:
        settings: The settings of the broker.
        find_leader: See :class:`Follower`.
        accounts: The copy of the leader's accounts.
        covered: See :class:`Follower`.

    Raises:
        ConfigError: A file of accounts or certificates, or an environment variable, is invalid.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        find_leader: Callable[[], Awaitable[tuple[str, int]]],
        accounts: AccountsCopy,
        *,
        clock: Clock,
        network: Network,
        disk: Disk,
        entropy: Entropy,
        covered: Callable[[], Awaitable[LogEnd | None]] | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._network = network
        self._disk = disk
        self._entropy = entropy
        self._pool = own_connections(network, clock)
        self.follower = Follower(
            settings, self._pool, disk, clock, entropy, find_leader, accounts, covered
        )
        self.follower.on_following = self._register
        self.follower.on_indexed = self._wake
        self.follower.reads = self._reads
        self.follower.repair.on_repaired = self._note_repair
        self.follower.copy.before_closing = self._end_reading
        self._door = FrontDoor(
            settings.acl, settings.security, settings.tls, network, may_lack_accounts=True
        )
        authorizer = self._door.authorizer(MessageTopics(self._topic_at, lambda _: ()))
        self._dispatch = Dispatcher({}, authorizer.check if authorizer else None, self._note_error)
        # Handle every request that a leader serves, so that each refusal gives a reason.
        self._dispatch.serve(dict.fromkeys(REQUIREMENTS, self._serve))
        protection = self._door.protection
        self._listener = Listener(
            network,
            clock,
            self._dispatch,
            connections_max=settings.connections_max,
            on_lost=self._lost,
            decode=self._dispatch.decode,
            service_for=None if protection is None else protection.over(self._dispatch),
            tls=self._door.port_tls,
        )
        self._clients: Clients[Connection] = Clients()
        self._filters = Filters(settings.filter)
        self._statistics = Statistics()
        self._reading: ReadService | None = None
        self._identity: Identity | None = None
        self._registrar: Registrar | None = None
        self._sent_back: set[asyncio.TimerHandle] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._started_ms = clock.wall_ms()
        self._sent_to_leader = 0

    # Running

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Follow and serve until cancelled.

        Args:
            ready: Called when the listener is open.

        Raises:
            StoreError: See :meth:`Follower.run`.
            OSError: The disk failed, or the address cannot be opened.
        """
        try:
            self.follower.open()
            await self._open()
            ready()
            following = asyncio.create_task(self.follower.run(), name="follower")
            self._tasks.append(following)
            await asyncio.shield(following)
        finally:
            await self._stop()

    async def _open(self) -> None:
        await self._listener.open(*split_address(self._settings.listen))
        if self._door.protection is not None:
            self._door.protection.announce(self._listener.address)
        self._tasks.append(asyncio.create_task(self._keep_up(), name="housekeeping"))
        for files in self._door.files:
            self._tasks.append(asyncio.create_task(files.watch(), name="changed files"))

    async def _stop(self) -> None:
        self._end_reading()
        self._listener.close()
        for timer in self._sent_back:
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.follower.copy.close()
        if self._registrar is not None:
            await self._registrar.give_up()

    async def close(self, *, leaves: bool) -> None:
        """Close the connections to other servers, after :meth:`run`.

        Args:
            leaves: Whether to unregister. A member that is about to lead registers again instead.
        """
        if self._registrar is not None and leaves:
            await self._registrar.stop()
        await self._pool.close()

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            if self._reading is not None:
                self._reading.clients.drop_silent()
            today = local_time(self._clock).toordinal()
            self._statistics.sample(self._clock.monotonic(), today)

    # The registration

    def _register(self) -> None:
        """Register under the id that the leader has assigned."""
        reading, broker_id = self._current(), self.follower.broker_id
        if reading is None:
            return
        identity = self._own_identity()
        if self._registrar is None:
            identity.broker_id = broker_id
            names = [name.strip() for name in self._settings.names.split(";") if name.strip()]
            registrar = self._registrar = Registrar(identity, reading.topics, self._pool, names)
            start = asyncio.create_task(registrar.start(), name="first registration")
            self._tasks.append(start)
            log.info("registering %s as its replica %d", identity.address, broker_id)
        elif identity.broker_id != broker_id:
            identity.broker_id = broker_id
            log.info("registering %s as its replica %d", identity.address, broker_id)
            self._registrar.changed()

    def _own_identity(self) -> Identity:
        if self._identity is None:
            self._identity = Identity.of(
                self._settings,
                *self._listener.address,
                self._entropy,
                self._clock,
                self.follower.copy.owner,
            )
        return self._identity

    def _note_repair(self, part: DamagedPart, leader: str, kept: str) -> None:
        """Record a repair in the audit of this directory."""
        audit = AuditLog(self._disk, self._clock)
        fields = {"start": str(part.start), "end": str(part.end), "kept": kept}
        try:
            audit.open(self.follower.copy.owner)
            audit.append(AuditEntry(self._clock.wall_ms(), "REPAIR_LOG", leader, fields=fields))
        except OSError as error:
            log.error("an entry of the audit could not be written: %s", error)  # noqa: TRY400
        finally:
            audit.close()

    # Requests

    def _serve(self, connection: Connection, request: Command) -> bytes | None:
        reading, code = self._current(), request.code
        if code in _STORED:
            raise ServiceUnavailable(f"{self._who()}; nothing was stored")
        if reading is None:
            raise ServiceUnavailable(f"{self._who()} and has no copy yet; ask the leader")
        handler = reading.of_settings.get(code)
        if handler is not None:
            reading.adopt()
            return handler(connection, request)
        handler = reading.of_log.get(code)
        if handler is None:
            raise InternalError(f"{self._who()}, and nothing was changed; ask the leader")
        if self.follower.copy.is_readable:
            reading.adopt()
            return handler(connection, request)
        if code in _PULLS:
            return self._send_back(connection, request)
        raise ServiceUnavailable(f"{self._who()} and serves no reads now; ask the leader")

    def _who(self) -> str:
        leader = self.follower.status.leader
        return f"this member of {self._settings.name} follows {leader or 'a leader'}"

    def _send_back(self, connection: Connection, request: Command) -> bytes | None:
        """Send a consumer to the leader after a short delay."""
        self._sent_to_leader += 1
        offset = request.read(PullMessage).queue_offset
        remark = "SERVED_BY_LEADER"
        answer = templates.pulled(request, _RETRY_AT_LEADER, (offset, 0, offset), remark, [])
        if request.is_oneway or len(self._sent_back) >= HELD_PULLS_MAX:
            return answer

        def send() -> None:
            self._sent_back.discard(timer)
            if connection.is_open:
                connection.send(answer)

        timer = asyncio.get_running_loop().call_later(_SEND_BACK_S, send)
        self._sent_back.add(timer)
        return None

    def _note_error(self, error: TxmqError) -> None:
        reading = self._current()
        if reading is not None:
            reading.store.damage.note_error(error)

    def _topic_at(self, position: int) -> str | None:
        reading = self._current()
        if reading is None or not self.follower.copy.is_readable:
            return None
        data = reading.store.record_bytes(position)
        return None if data is None else unpack(data)[0].topic

    # The store that is read

    def _current(self) -> ReadService | None:
        """The handlers of the current store; ``None`` while the copy is not open."""
        if self._reading is None and self.follower.copy.is_open:
            store = self.follower.copy.store
            store.damage.found = self.follower.verifier.suspect
            self._reading = ReadService(self._parts(store), self.follower)
            self._reading.adopt()
            if self._registrar is not None:
                self._registrar.topics = self._reading.topics
        return self._reading

    def _parts(self, store: MessageStore) -> ReadParts:
        settings = self._settings
        topics, groups = Topics(store, settings.topics), Groups(settings.topics)
        tables = self.follower.copy.tables
        topics.load(tables.topics or TopicConfigs(), system_topics(settings))
        return ReadParts(
            settings=settings,
            identity=self._own_identity(),
            access=self._door.access_at(split_address(settings.listen)[0]),
            started_ms=self._started_ms,
            disk=self._disk,
            clock=self._clock,
            store=store,
            topics=topics,
            groups=groups,
            offsets=Offsets(store.end_of, lambda name: groups.find(name) is not None),
            clients=self._clients,
            filters=self._filters,
            locks=Locks(),
            statistics=self._statistics,
            figures=self._figures,
            create_topics=lambda _: None,
            producers_seen=lambda _: None,
        )

    def _figures(self) -> dict[str, int]:
        status = self.follower.status
        figures = {
            "epoch": status.epoch,
            "is_leader": 0,
            "position": status.position,
            "bytes_not_shown": status.unindexed,
            "pulls_sent_back": len(self._sent_back),
        }
        if self._reading is not None:
            figures |= self._reading.pulls.figures()
        return figures | self._listener.figures() | self._clients.figures()

    def _reads(self) -> FollowerReads:
        return FollowerReads(
            self._statistics,
            self._started_ms,
            self._listener.figures()["connections_open"],
            self._settings.replication.reads and self.follower.copy.is_readable,
            self._sent_to_leader,
        )

    def _wake(self) -> None:
        if self._reading is not None and self.follower.copy.is_readable:
            self._reading.pulls.copied()

    def _end_reading(self) -> None:
        """Answer waiting pulls before the store is closed."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.pulls.release()

    def _lost(self, connection: Connection) -> None:
        if self._reading is None:
            self._clients.drop(connection)
        else:
            self._reading.clients.lost(connection)
