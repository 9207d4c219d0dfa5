"""The broker: its parts, the order in which they start, and how it drains and stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Final, Protocol, Self

from msgspec.structs import replace

from txmq.errors import (
    BrokerRefused,
    InternalError,
    RemoteProtocolError,
    ServiceUnavailable,
    StoreError,
    WriteFailed,
)
from txmq.protocol.bodies import TopicConfigs
from txmq.protocol.headers import EndTransaction
from txmq.protocol.record import unpack
from txmq.remoting.connection import Connection, Service
from txmq.remoting.dispatch import Dispatcher, Handler
from txmq.remoting.listener import Listener
from txmq.remoting.pool import ConnectionPool, split_address
from txmq.runtime.clock import Clock, SystemClock
from txmq.runtime.disk import Disk, LocalDisk
from txmq.runtime.entropy import Entropy, SystemEntropy
from txmq.runtime.network import Network, SystemNetwork
from txmq_broker.access.account_copies import AccountsSource
from txmq_broker.access.audit import AuditLog, entries_about
from txmq_broker.access.front_door import FrontDoor
from txmq_broker.access.requirements import MessageTopics
from txmq_broker.config import BrokerSettings
from txmq_broker.core.admission import FULL, Admission
from txmq_broker.core.clients import Clients
from txmq_broker.core.filter.filters import Filters
from txmq_broker.core.groups import Groups
from txmq_broker.core.identity import Identity
from txmq_broker.core.locks import Locks
from txmq_broker.core.offsets import Offsets
from txmq_broker.core.schedule import Schedule
from txmq_broker.core.statistics import Statistics
from txmq_broker.core.topics import Topics, queue_counts, system_topics
from txmq_broker.core.transactions import Transactions
from txmq_broker.handlers.accounts import AccountHandlers
from txmq_broker.handlers.broker_set import BrokerSetHandlers
from txmq_broker.handlers.clients import ClientHandlers
from txmq_broker.handlers.copies import CopyHandlers
from txmq_broker.handlers.groups import GroupHandlers
from txmq_broker.handlers.offsets import OffsetHandlers
from txmq_broker.handlers.progress import ProgressHandlers
from txmq_broker.handlers.pull import PullHandlers
from txmq_broker.handlers.query import QueryHandlers
from txmq_broker.handlers.relay import RelayHandlers
from txmq_broker.handlers.returns import ReturnHandlers
from txmq_broker.handlers.send import SendHandlers
from txmq_broker.handlers.settings import SettingHandlers
from txmq_broker.handlers.statistics import StatisticsHandlers
from txmq_broker.handlers.topics import TopicHandlers
from txmq_broker.handlers.transactions import TransactionHandlers
from txmq_broker.names.server import NameServer, OwnRegistration
from txmq_broker.parts import Counted, Parts
from txmq_broker.replication.held_leadership import HeldLeadership, LeaderGate
from txmq_broker.replication.truncation import finish_cut
from txmq_broker.services.checker import Checker
from txmq_broker.services.deliverer import Deliverer
from txmq_broker.services.flusher import Flusher
from txmq_broker.services.housekeeping import Housekeeping
from txmq_broker.services.keeper import CopyState, Keeper, Tables
from txmq_broker.services.log_verifier import LogVerifier
from txmq_broker.services.own_connections import own_connections
from txmq_broker.services.registrar import Registrar, Registration
from txmq_broker.services.topic_creator import TopicCreator
from txmq_broker.store.log.damaged_parts import DamagedPart, DamagedParts
from txmq_broker.store.message_store import MessageStore, Span
from txmq_broker.store.start import Recovery

__all__ = ["Broker"]

log = logging.getLogger(__name__)

DRAIN_S: Final = 10.0

_TORN_MEANS: Final = {
    "sync": "none of them was acknowledged",
    "async": "they may hold messages that were acknowledged shortly before",
}


class HandlerFamily(Protocol):
    """The handlers of one family of requests."""

    def table(self) -> dict[int, Handler]:
        """The handlers by request code."""
        ...


class Broker:
    """A broker. It runs its own name server unless the settings name others."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        clock: Clock | None = None,
        network: Network | None = None,
        disk: Disk | None = None,
        entropy: Entropy | None = None,
        accept_loss: str | None = None,
        leadership: HeldLeadership | None = None,
        register: Callable[[Identity, Topics], Registration] | None = None,
    ) -> None:
        self.settings = settings
        self._register = register
        self._accept_loss = accept_loss
        self._leadership = leadership
        self._gate = None if leadership is None else LeaderGate(leadership)
        self.clock: Clock = clock or SystemClock()
        self.network: Network = network or SystemNetwork()
        is_async = settings.store.flush == "async"
        self.disk: Disk = disk or LocalDisk(settings.data, adds_room=is_async)
        self.entropy: Entropy = entropy or SystemEntropy()
        self.store = MessageStore(self.disk, settings.store)
        self.topics = Topics(self.store, settings.topics)
        self.groups = Groups(settings.topics)
        self.offsets = Offsets(self.store.end_of, lambda name: self.groups.find(name) is not None)
        self.clients: Clients[Connection] = Clients()
        self.schedule = Schedule(self.store, self.topics, settings.delay)
        self.transactions = Transactions(
            self.store.halves, self.topics, settings.transaction, self.schedule, self.clock
        )
        self.filters = Filters(settings.filter)
        self.locks = Locks()
        self.statistics = Statistics()
        self.admission = Admission()
        self.recovery = Recovery(0, 0, 0)
        self.failure: StoreError | None = None
        self.stopped = asyncio.Event()
        self._keeper = Keeper(self.disk)
        self._housekeeping = Housekeeping(
            self.store,
            self.disk,
            self.clock,
            self._keeper,
            Tables(self.topics, self.groups, self.offsets),
            self.statistics,
            self.admission,
            settings.retention,
        )
        self._copy_state = CopyState()
        self._damaged = DamagedParts(self._save_damaged)
        self._verifier = LogVerifier(
            self.disk,
            self.clock,
            settings.store.verify_bytes_per_second,
            lambda: self.store.log,
            self._damaged,
        )
        self._audit = AuditLog(self.disk, self.clock)
        self._door = FrontDoor(
            settings.acl, settings.security, settings.tls, self.network, self._audit
        )
        self._pool = self._pool_to_names()
        self._names: NameServer | None = None
        topics = MessageTopics(self._topic_at, self._topics_of_halves)
        self._authorizer = self._door.authorizer(topics)
        # A bound method, because calling the object would look it up for each request.
        self._dispatch = Dispatcher(
            {},
            self._authorizer.check if self._authorizer else None,
            self.store.damage.note_error,
        )
        self._creator = TopicCreator(self.topics, self.clock, self._topics_changed, self._dispatch)
        self._listener: Listener | None = None
        self._registrar: Registration | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._delivery: asyncio.Task[None] | None = None
        self.started_ms = 0

    # Starting

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._give_up()
            raise
        return self

    async def _start(self) -> None:
        self._keeper.owner = f"{self.store.take(self.entropy):016x}"
        if self._leadership is None:
            self._keeper.refuse_copy()
        self._keeper.accepts_loss = self._accept_loss is not None
        floors = self._keeper.floors()
        self._housekeeping.floors = floors.floors
        topics = self._keeper.topics()
        self.groups.load(self._keeper.groups())
        self.offsets.load(self._keeper.offsets())
        self._open_store(topics, floors.log_end)
        self._audit.open(self._keeper.owner)
        if self._leadership is not None:
            for entry in entries_about(self._leadership.before):
                self._audit.append(entry)
        self.topics.load(topics, system_topics(self.settings))
        self.started_ms = self.clock.wall_ms()
        # The address becomes part of every record, so the port must be known before any is served.
        protection = self._door.protection
        self._listener = Listener(
            self.network,
            self.clock,
            self._dispatch,
            connections_max=self.settings.connections_max,
            on_lost=self._lost,
            decode=self._dispatch.decode,
            service_for=self._service_for(),
            tls=self._door.port_tls,
        )
        await self._listener.open(*split_address(self.settings.listen))
        if protection is not None:
            protection.announce(self._listener.address)
        self._identity = Identity.of(
            self.settings,
            *self._listener.address,
            self.entropy,
            self.clock,
            self._keeper.owner,
        )
        self._flusher = Flusher(
            self.store,
            self.disk,
            self.clock,
            self.admission,
            self.settings.store,
            self._published,
            self._failed,
        )
        self._checker = Checker(
            self.transactions, self.clients, self.clock, self._flusher.decision_ms
        )
        if self._authorizer is not None:
            may_publish = self._authorizer.may_publish
            self._checker.may_check = lambda producer, half: may_publish(producer, half.queue.topic)
        self._deliverer = Deliverer(self.schedule, self.store.delays, self._flusher, self.clock)
        self._checker.on_damage = self._deliverer.on_damage = self.store.damage.note
        self.parts = self._parts()
        self._serve(self.parts)
        self._flusher.start()
        self._complete_tables()
        if self._gate is not None:
            await self._copies.until_start_copied()
            self._gate.is_open = True
        self._registrar = await self._open_names()
        await self._registrar.start()
        chores = self._housekeeping.run(
            self._client_handlers.drop_silent, self._expire_locks, self._note_room
        )
        self._tasks.append(asyncio.create_task(chores, name="housekeeping"))
        self._tasks.append(asyncio.create_task(self._checker.run(), name="check-back"))
        self._tasks.append(asyncio.create_task(self._verifier.run(), name="verify the log"))
        for files in self._door.files:
            self._tasks.append(asyncio.create_task(files.watch(), name="changed files"))
        counting = self._deliverer.count_retries()
        self._tasks.append(asyncio.create_task(counting, name="count retries"))
        self._delivery = asyncio.create_task(self._deliverer.run(), name="delivery")
        self._tasks.append(self._delivery)

    def _service_for(self) -> Callable[[str], Service] | None:
        """Chooses the service of each host; ``None`` if one service serves all hosts."""
        protection, gate = self._door.protection, self._gate
        limited = None if protection is None else protection.over(self._dispatch)
        if gate is None:
            return limited
        services: dict[Dispatcher, Service] = {}

        def gated(host: str) -> Service:
            behind = self._dispatch if limited is None else limited(host)
            return services.setdefault(behind, gate.before(behind))

        return gated

    def _open_store(self, topics: TopicConfigs, floors_end: int) -> None:
        copy_state = finish_cut(self._keeper, self.disk, self.store.log)
        self.recovery = self.store.open(
            self._housekeeping.floors,
            floors_end=floors_end,
            committed=self.offsets.highest(),
            topics=queue_counts(topics),
            accept_loss=self._accept_loss,
            is_copy=copy_state.is_copy,
            now_ms=self.clock.wall_ms(),
        )
        log_ = self.store.log
        log_.epoch = max(log_.epoch, copy_state.epoch)
        if self._leadership is not None:
            log_.epoch = self._leadership.epoch
        self._damaged.load(copy_state.damaged)
        self._copy_state = replace(copy_state, is_copy=False, epoch=log_.epoch, doubt="")
        if copy_state.is_copy:
            # Before this broker writes its first span: from then on heads say what was durable
            # here.
            self._keeper.save_copy_state(self._copy_state)
        elif self._leadership is not None:
            # A member remembers its epochs, in case the coordinator's store loses them.
            with contextlib.suppress(OSError):
                self._keeper.save_copy_state(self._copy_state)
        self._damaged.keep_within(log_.start, log_.end)
        if self.recovery.lost:
            log.error("going on without what is missing: %s", self.recovery.lost)
            return
        if self.recovery.cut_bytes:
            log.warning(
                "a crash left %d bytes unfinished at position %d, and they were cut; %s",
                self.recovery.cut_bytes,
                self.recovery.end,
                _TORN_MEANS[self.settings.store.flush],
            )
        is_asked = self._accept_loss is not None and self._leadership is None
        if is_asked and not self._keeper.has_lost:
            log.warning("nothing is missing, so --accept-loss had no effect")

    async def _open_names(self) -> Registration:
        if self._register is not None:
            return self._register(self._identity, self.topics)
        names = self.settings.names
        if not names:
            server = self._names = NameServer(
                self.network,
                self.clock,
                self.disk,
                connections_max=self.settings.connections_max,
                owner=self._keeper.owner,
                audit=self._audit,
                door=self._door,
            )
            await server.__aenter__()
            # Registered before the first client connects: without a route a client believes that
            # the topic does not exist.
            own = OwnRegistration(self._identity, self.topics, server.routes, self.clock)
            await server.open(*split_address(self.settings.names_listen))
            return own
        addresses = [address.strip() for address in names.split(";") if address.strip()]
        registrar = Registrar(self._identity, self.topics, self._pool, addresses)
        if self._leadership is not None:
            registrar.may_register = self._leadership.is_certain
        return registrar

    async def refresh_files(self) -> None:
        """Read the files of accounts and certificates again now, if they have changed."""
        for files in self._door.files:
            await files.refresh_in_thread()

    def _pool_to_names(self) -> ConnectionPool:
        """The connections to other name servers; account and TLS come from the environment."""
        if not self.settings.names:
            return ConnectionPool(self.network, self.clock)
        return own_connections(self.network, self.clock)

    def _topic_at(self, position: int) -> str | None:
        data = self.store.record_bytes(position)
        return None if data is None else unpack(data)[0].topic

    def _topics_of_halves(self, end: EndTransaction) -> set[str]:
        try:
            found = self.transactions.find_all(end)
        except (BrokerRefused, RemoteProtocolError):
            return set()  # The handler refuses it too.
        return {one.half.queue.topic for one in found if one.half is not None}

    def _parts(self) -> Parts:
        return Parts(
            settings=self.settings,
            identity=self._identity,
            access=self._door.access_at(split_address(self.settings.listen)[0]),
            started_ms=self.started_ms,
            disk=self.disk,
            clock=self.clock,
            entropy=self.entropy,
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            clients=self.clients,
            transactions=self.transactions,
            schedule=self.schedule,
            filters=self.filters,
            locks=self.locks,
            statistics=self.statistics,
            admission=self.admission,
            flusher=self._flusher,
            checker=self._checker,
            verifier=self._verifier,
            figures=self._figures,
            is_open=lambda: self._listener is not None,
            leadership=self._leadership,
            show_copies=lambda: self._copies.view(),  # noqa: PLW0108  it is made from these parts
            is_registered=lambda: self._registrar is not None and self._registrar.is_registered(),
            floors=lambda: self._housekeeping.floors,
            names=lambda: self.names,
            create_topics=self._creator.create,
            producers_seen=self._checker.producers_seen,
            topics_changed=self._topics_changed,
            groups_changed=self._groups_changed,
            settings_changed=self._settings_changed,
            forget_topic=self._forget_topic,
            delete_old_files=self._housekeeping.retain_now,
        )

    def _figures(self) -> dict[str, int]:
        assert self._listener is not None, "not started"
        parts: tuple[Counted, ...] = (
            self._listener,
            self._door,
            self.clients,
            self.groups,
            self.offsets,
            self.locks,
            self.filters,
            self._creator,
            self._checker,
            self._flusher,
            self._pulls,
            self._relays,
            self._copies,
        )
        return {name: value for part in parts for name, value in part.figures().items()}

    def _serve(self, parts: Parts) -> None:
        self._pulls = PullHandlers(parts)
        self._client_handlers = ClientHandlers(parts)
        self._relays = RelayHandlers(parts)
        accounts = AccountsSource(self._door.accounts, self._audit)
        self._copies = CopyHandlers(parts, self._leadership, accounts)
        self._pulls.choice = self._copies.choice
        self._account_handlers = AccountHandlers(parts, self._door.accounts)
        self._set_handlers = BrokerSetHandlers(parts, self._leadership, self._copies)
        self._flusher.on_trouble = partial(self._set_handlers.note_unfit, "disk")
        self.store.damage.found = self._verifier.suspect
        self._damaged.on_change = self._note_damage
        self._note_damage()
        sends = SendHandlers(parts)
        families: list[HandlerFamily] = [
            sends,
            ReturnHandlers(parts, sends.topic_of_group),
            TransactionHandlers(parts),
            OffsetHandlers(parts),
            QueryHandlers(parts),
            TopicHandlers(parts),
            GroupHandlers(parts),
            ProgressHandlers(parts),
            StatisticsHandlers(parts),
            SettingHandlers(parts),
            self._account_handlers,
            self._pulls,
            self._client_handlers,
            self._relays,
            self._copies,
            self._set_handlers,
        ]
        table: dict[int, Handler] = {}
        for family in families:
            table |= family.table()
        table = self._audit.watched(self._copies.confirmed(table))
        self._dispatch.serve(table)
        self._account_handlers.serve_again(table)

    # Stopping

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Drain: refuse new work, finish accepted work, save all tables, close."""
        if self._listener is None:
            return
        self._listener.stop_listening()
        self.admission.set_cause("stopping", "the broker is stopping")
        # The name server closes first: during the drain it would answer that no topic exists.
        await self._close_names()
        if self._registrar is not None:
            await self._registrar.stop()
        self._pulls.release()
        await self._relays.stop()
        if self._delivery is not None:
            self._delivery.cancel()  # The next start delivers the messages that are due.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self._flusher.drain()
                await self._copies.until_all_copied()
        if self.failure is None:
            try:
                self._housekeeping.save_tables()
            except OSError as error:
                log.error(  # noqa: TRY400
                    "stopping without having saved all tables: %s%s",
                    error,
                    "; groups go on from the offsets that were saved before, and receive some "
                    "messages again"
                    if self.offsets.unsaved
                    else "",
                )
            try:
                self.store.note_clean_stop()
            except OSError as error:
                log.error("the clean stop could not be noted: %s", error)  # noqa: TRY400
        await self._give_up()

    async def abandon(self) -> None:
        """Close at once, because another member may lead: answer and save nothing more."""
        if isinstance(self._registrar, Registrar):
            await self._registrar.give_up()
        if self._delivery is not None:
            self._delivery.cancel()
        if self._listener is not None:
            self._pulls.release()
            await self._relays.stop()
        await self._give_up()

    async def _give_up(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._creator.close()
        if hasattr(self, "_copies"):
            self._account_handlers.close()
            await self._set_handlers.stop()
            self._copies.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if hasattr(self, "_flusher"):
            await self._flusher.stop()
        await self._pool.close()
        await self._close_names()
        self._audit.close()
        self.store.close()
        self.stopped.set()

    async def _close_names(self) -> None:
        server, self._names = self._names, None
        if server is not None:
            await server.__aexit__(None, None, None)

    # Events between the parts

    def _published(self, span: Span) -> None:
        if span.halves or span.markers:
            self._checker.published(span)
        if span.delayed is not None:
            self._deliverer.published(span)
        self._pulls.arrived(span)

    def _lost(self, connection: Connection) -> None:
        self._checker.lost(connection)
        self._client_handlers.lost(connection)

    def _failed(self, error: StoreError) -> None:
        self.failure = error
        self.stopped.set()

    def _complete_tables(self) -> None:
        """Write the tables whose files differ from memory, if there is room."""
        try:
            self._housekeeping.complete_tables()
        except OSError as error:
            if self._keeper.is_new:
                raise WriteFailed(
                    f"the first files of a new data directory cannot be written: {error}; make "
                    "room on its disk and start again"
                ) from error
            log.warning("serving without having saved all tables, tried again later: %s", error)
        self.topics.settle()

    def _topics_changed(self) -> None:
        try:
            self._housekeeping.end_deletion()
            self._save_topics()
        except OSError as error:
            self.topics.undo()
            raise ServiceUnavailable(f"the topics could not be saved: {error}") from error
        if self._registrar is not None:
            self._registrar.changed()

    def _forget_topic(self, name: str) -> None:
        try:
            self._housekeeping.forget_topic(name, self._save_topics)
        except OSError as error:
            self.topics.undo()
            raise ServiceUnavailable(f"the topic could not be deleted: {error}") from error
        if self._registrar is not None:
            self._registrar.changed()

    def _groups_changed(self) -> None:
        try:
            self._housekeeping.save_tables()
        except OSError as error:
            raise InternalError(
                f"the groups could not be saved: {error}; the change holds now, and is saved as "
                "soon as the disk takes it"
            ) from error

    def _save_topics(self) -> None:
        self._keeper.save_topics(self.topics)
        self.topics.settle()

    def _settings_changed(self, settings: BrokerSettings) -> None:
        missing = [
            config
            for config in system_topics(settings)
            if self.topics.by_name.get(config.topic_name) is None
        ]
        for config in missing:
            self.topics.put(config, self.clock.wall_ms())
        if missing:
            self._topics_changed()
        self.settings = settings
        self._housekeeping.retention = settings.retention
        self._pulls.wait_max = settings.pull_wait_max
        self.topics.defaults = settings.topics
        self.groups.defaults = settings.topics
        self.transactions.settings = settings.transaction
        self.filters.settings = settings.filter
        self.schedule.adopt(settings.delay)

    def _expire_locks(self) -> None:
        self.locks.expire(self.clock.monotonic())

    def _note_damage(self) -> None:
        self._set_handlers.note_unfit("damage", str(self._damaged))

    def _save_damaged(self, parts: list[DamagedPart]) -> None:
        """Save the damaged parts, so that this member repairs them first after a restart."""
        if self._leadership is None:
            return
        self._copy_state = replace(self._copy_state, damaged=[tuple(part) for part in parts])
        try:
            self._keeper.save_copy_state(self._copy_state)
        except OSError as error:
            log.warning("a restart may forget that the log is damaged: %s", error)

    def _note_room(self) -> None:
        self._set_handlers.note_unfit("room", self.admission.reasons.get(FULL, ""))

    # Questions from outside

    def served(self) -> tuple[Mapping[int, Handler], Mapping[int, Handler]]:
        """The handlers of the broker and of its name server, by request code."""
        return self._dispatch.handlers, self._names.served if self._names is not None else {}

    @property
    def address(self) -> str:
        """The address that clients connect to."""
        return self._identity.address

    @property
    def names(self) -> str:
        """The addresses of its name servers, separated by ``;``."""
        if self._names is None:
            return self.settings.names
        host, port = self._names.address
        return f"{host}:{port}"
