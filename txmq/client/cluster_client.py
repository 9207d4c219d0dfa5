"""A program's membership in a cluster: one set of connections, one id, and its groups.

A client sends heartbeats to all brokers every 30 s, when a group joins, and on every new
connection, since a broker forgets a client with its connection. It refreshes routes, and answers
brokers' requests (:mod:`txmq.client.broker_requests`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections import Counter
from contextlib import AsyncExitStack
from typing import Final, Protocol, Self, TypeVar

from txmq.client.admin.admin import Admin
from txmq.client.broker_requests import BrokerRequests, TransactionOwner
from txmq.client.lifecycle import Lifecycle
from txmq.client.middleware import Middleware, ReceiveFunction, as_middleware
from txmq.client.observe.worker_process import CURRENT
from txmq.client.replies import Replies
from txmq.client.routes import MASTER
from txmq.client.session import Session
from txmq.client.settings import ClientSettings
from txmq.errors import BrokerRefused, RequestTimeout, TxmqError, UsageError
from txmq.protocol.bodies import ConsumerRegistration, Heartbeat, ProducerRegistration
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import ClientGroups
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Dispatcher
from txmq.runtime.clock import Clock, SystemClock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network
from txmq.runtime.tasks import Tasks
from txmq.settings.values import settings_or

__all__ = ["ClientMember", "ClusterClient", "client_of"]

log = logging.getLogger(__name__)

W = TypeVar("W", bound="Middleware | ReceiveFunction")

LEAVE_S: Final = 1.0
"""The timeout of unregistering a group; the broker also forgets it with the connection."""


class ClientMember(Protocol):
    """A producer or consumer of some group."""

    @property
    def group(self) -> str:
        """The group's name."""
        ...

    def registration(self) -> ProducerRegistration | ConsumerRegistration:
        """What it registers with brokers."""
        ...

    def rebalance_soon(self) -> None:
        """React to changed topics or members; a producer ignores it."""
        ...


class ClusterClient(Lifecycle):
    """The connections, heartbeats, routes and groups that producers and consumers share.

    :class:`txmq.client.client.Client` adds handlers.

    Args:
        names: The name servers, ``host:port`` separated by ``;``.
        settings: Timeouts and intervals.
        network: Opens streams.
        clock: Gives the time.
        entropy: Gives randomness.

    Raises:
        ConfigError: ``names`` names no server, or an address is invalid.
    """

    def __init__(
        self,
        names: str,
        settings: ClientSettings | None = None,
        network: Network | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self.settings: ClientSettings = settings_or(ClientSettings, settings)
        self.replies: Replies = Replies()
        self.tasks: Tasks = Tasks()
        clock = clock or SystemClock()
        self.session: Session = Session(
            names,
            network,
            clock,
            entropy,
            service=Dispatcher(BrokerRequests(self, clock, names).table()),
            on_open=self._opened,
            answer_s=self.settings.answer_timeout,
            # Refresh in the background well before the route expires.
            fresh_s=2 * self.settings.route_refresh,
            credentials=self.settings.credentials,
            tls=self.settings.tls,
        )
        self.admin: Admin = Admin(self.session)
        self.id: str = _client_id(self.settings, self.session.entropy)
        self._producers: dict[str, ClientMember] = {}
        self._consumers: dict[str, ClientMember] = {}
        self._beaten: dict[str, None] = {}
        self._to_beat: Counter[str] = Counter()
        self._met: dict[str, str] = {}
        self._is_open = False
        self.middlewares: list[Middleware] = []

    def middleware(self, hook: W) -> W:
        """Run code around the handlers and sends of this client; also a decorator.

        The first one given is outermost. Push consumers and producers that share the client have
        it; batch handlers do not.

        Args:
            hook: A :class:`~txmq.client.middleware.Middleware`, or an async function of the
                message and ``call_next`` that runs around each handler.

        Raises:
            UsageError: The client is open, or it is neither.
        """
        if self._is_open:
            raise UsageError("middleware is given before a client opens")
        self.middlewares.append(as_middleware(hook))
        return hook

    async def __aenter__(self) -> Self:
        if not self.session.owner.is_current:
            self.id = _client_id(self.settings, self.session.entropy)
        await self.session.__aenter__()
        self._is_open = True
        self.tasks.start(self._beat_always(), "heartbeats")
        self.tasks.start(self._refresh_always(), "route refresh")
        return self

    async def __aexit__(self, *ending: object) -> None:
        if not self.session.owner.is_current:
            return
        async with AsyncExitStack() as at_last:
            # The session closes even if stopping the tasks is cut short.
            at_last.push_async_callback(self.session.__aexit__, *ending)
            self._is_open = False
            await self.tasks.stop()

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return self._is_open

    # Groups

    async def join(self, member: ClientMember) -> None:
        """Register a producer or consumer with all known brokers.

        Raises:
            UsageError: The client is not open, or already has such a member of this group.
        """
        if not self._is_open:
            raise UsageError(
                "this client is not open; use it with 'async with', or await its start()"
            )
        self.session.owner.check()
        table = self._table_of(member)
        if table.setdefault(member.group, member) is not member:
            raise UsageError(
                f"this client has a member of group {member.group} already; "
                "a second one needs a client of its own"
            )
        try:
            if isinstance(member, TransactionOwner):
                await self._meet_brokers()
            await self.beat()
        except BaseException:
            # Some brokers may have registered it.
            await self.leave(member)
            raise

    async def leave(self, member: ClientMember) -> None:
        """Unregister it with the brokers; one that does not answer notices later by itself."""
        table = self._table_of(member)
        if table.get(member.group) is not member:
            return
        del table[member.group]
        is_producer = table is self._producers
        header = ClientGroups(
            self.id,
            producer_group=member.group if is_producer else None,
            consumer_group=None if is_producer else member.group,
        )
        addresses = {**self._beaten, **dict.fromkeys(self._addresses())}
        # Started one by one: if the loop is already closed, every task has an awaiter.
        tasks = [
            asyncio.ensure_future(self._tell_goodbye(address, header)) for address in addresses
        ]
        await asyncio.gather(*tasks)

    def _table_of(self, member: ClientMember) -> dict[str, ClientMember]:
        is_producer = isinstance(member.registration(), ProducerRegistration)
        return self._producers if is_producer else self._consumers

    async def _tell_goodbye(self, address: str, header: ClientGroups) -> None:
        connection = self.session.pool.ready(address)
        if connection is None:
            return
        try:
            await connection.request(RequestCode.UNREGISTER_CLIENT, header, timeout_s=LEAVE_S)
        except TxmqError as error:
            log.debug("%s did not hear that %s leaves: %s", address, self.id, error)

    def producer(self, group: str) -> ClientMember | None:
        """The member that produces for a group."""
        return self._producers.get(group)

    def consumer(self, group: str) -> ClientMember | None:
        """The member that consumes for a group."""
        return self._consumers.get(group)

    def rebalance_soon(self, group: str | None = None) -> None:
        """Make the consumers of one group, or all, rebalance soon."""
        for name, member in self._consumers.items():
            if group is None or name == group:
                member.rebalance_soon()

    # Heartbeats

    async def beat(self) -> None:
        """Send heartbeats to all known brokers; skip those that do not answer."""
        if self._producers or self._consumers:
            await asyncio.gather(*[self.beat_at(address) for address in self._addresses()])

    def _addresses(self) -> list[str]:
        # Only consumers register with slave replicas.
        routed = [
            address
            for replicas in self.session.brokers().values()
            for number, address in replicas.items()
            if number == MASTER or self._consumers
        ]
        return list(dict.fromkeys([*routed, *self._met.values()]))

    async def _meet_brokers(self) -> bool:
        """Find every broker that may check this client's transactions; return whether any is new.

        Other members of the group, or this one before a restart, may have sent through any broker.
        """
        before, self._met = self._met, {}
        if any(isinstance(member, TransactionOwner) for member in self._producers.values()):
            self._met = before
            try:
                known = await self.admin.cluster()
            except TxmqError as error:
                log.warning("no broker is found that may ask about transactions: %s", error)
                return False
            self._met = {
                broker.name: broker.addresses[MASTER]
                for broker in known
                if MASTER in broker.addresses
            }
        return not self._met.items() <= before.items()

    def master(self, broker: str) -> str | None:
        """A broker's master address at the last search; for producers of transactions."""
        return self._met.get(broker)

    def _heartbeat(self) -> bytes:
        producers = [member.registration() for member in self._producers.values()]
        consumers = [member.registration() for member in self._consumers.values()]
        return Heartbeat(
            self.id,
            [
                registration
                for registration in producers
                if isinstance(registration, ProducerRegistration)
            ],
            [
                registration
                for registration in consumers
                if isinstance(registration, ConsumerRegistration)
            ],
        ).write()

    async def beat_at(self, address: str) -> Connection | None:
        """Send a heartbeat to one broker; returns the connection if the broker answered."""
        try:
            connection = await self._connection_to_beat(address)
            if not self._producers and not self._consumers:
                return None  # All groups have left meanwhile.
            await self._beat_over(connection)
        except BrokerRefused as error:
            log.warning("%s refuses the heartbeat of %s: %s", address, self.id, error)
        except TxmqError as error:
            log.info("no heartbeat to %s: %s", address, error)
        else:
            self._beaten[address] = None
            return connection
        return None

    async def _beat_over(self, connection: Connection) -> None:
        asked_at, limit = self.session.clock.monotonic(), self.settings.answer_timeout
        try:
            await connection.request(
                RequestCode.HEART_BEAT, body=self._heartbeat(), timeout_s=limit
            )
        except RequestTimeout:
            if connection.active_at < asked_at:
                # A silently cut connection stays open for a quarter of an hour; close it, so that
                # the next request opens another.
                connection.abort()
            raise

    async def _connection_to_beat(self, address: str) -> Connection:
        self._to_beat[address] += 1
        try:
            return await self.session.connection(address)
        finally:
            self._to_beat[address] -= 1

    def _opened(self, address: str, connection: Connection) -> None:
        del connection
        # A connection opened for a heartbeat carries that heartbeat; only others need one now.
        is_due = not self._to_beat[address] and address not in self.session.names
        if is_due and self._is_open and (self._producers or self._consumers):
            self.tasks.start(self.beat_at(address), f"heartbeat to {address}")

    async def _beat_always(self) -> None:
        while True:
            await asyncio.sleep(self.settings.heartbeat)
            addresses = self._addresses()
            self._beaten = {address: None for address in self._beaten if address in addresses}
            self._to_beat = +self._to_beat  # Drops zero counts.
            await self.beat()

    # Routes

    async def _refresh_always(self) -> None:
        while True:
            await asyncio.sleep(self.settings.route_refresh)
            try:
                moved = await self.session.refresh()
            except TxmqError as error:
                log.warning("routes are not refreshed: %s", error)
                continue
            if await self._meet_brokers() or moved:
                # New brokers have not registered this client yet.
                await self.beat()
                self.rebalance_soon()


def client_of(
    names: str | ClusterClient,
    network: Network | None = None,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
) -> tuple[ClusterClient, bool]:
    """The client of a producer or consumer: a shared one, or a new one of its own.

    Args:
        names: The client to share, or the name servers of a new one.
        network: Opens streams, for a new one.
        clock: Gives the time, likewise.
        entropy: Gives randomness, likewise.

    Returns:
        The client, and whether the caller must open and close it.

    Raises:
        ConfigError: ``names`` names no server, or has the wrong type.
    """
    if isinstance(names, ClusterClient):
        return names, False
    return ClusterClient(names, None, network, clock, entropy), True


def _client_id(settings: ClientSettings, entropy: Entropy) -> str:
    host = settings.host or platform.node().replace("@", "-") or "localhost"
    instance = settings.instance or f"{os.getpid()}#{entropy.token(6).hex()}"
    if settings.instance and CURRENT.get() is not None:
        # The processes of a worker share their settings, and brokers take one id for one member.
        instance = f"{instance}-{os.getpid()}"
    return f"{host}@{instance}"
