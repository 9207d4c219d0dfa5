"""A client's session with a cluster: name servers, cached routes, shared connections.

A session uses one name server until that fails, then the next. It opens connections on demand, runs
no background task, and takes time, randomness and streams only from its ports. Producers, consumers
and :class:`txmq.client.admin.admin.Admin` share one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from txmq.client.identity import UniqueIds
from txmq.client.routes import (
    FRESH_S,
    TEMPLATE,
    TEMPLATE_QUEUES_MAX,
    QueueRotation,
    Route,
    RouteTable,
    route_of,
)
from txmq.errors import (
    BrokerRefused,
    ConfigError,
    ConnectFailed,
    RequestNotSupported,
    TopicNotFound,
    TransportError,
    UsageError,
)
from txmq.message import Queue
from txmq.protocol.bodies import TopicRoute
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command
from txmq.protocol.headers import Header, RouteQuery
from txmq.remoting.connection import Connection, Service, no_service
from txmq.remoting.pool import ConnectionPool, split_address
from txmq.runtime.clock import Clock, SystemClock
from txmq.runtime.entropy import Entropy, SystemEntropy
from txmq.runtime.network import Network, SystemNetwork
from txmq.runtime.process import OwnerProcess
from txmq.security.credentials import load_credentials
from txmq.security.signatures import Credentials
from txmq.security.tls import ClientTls, client_context, load_tls

__all__ = ["Session"]

log = logging.getLogger(__name__)

ANSWER_S = 3.0
"""The timeout of a request, as in stock clients."""

KNOWN_ROUTE_WAIT_S = 1.0
"""How long a caller waits for a newer route than the known one. A silent name server must not use
up the time for sending.
"""

Fields = Header | dict[str, str] | None


class Session:
    """A client's connections and its view of the cluster; ``async with`` opens and closes it.

    Args:
        names: The name servers, ``host:port`` separated by ``;``.
        network: Opens streams.
        clock: Gives the time.
        entropy: Gives randomness.
        service: Answers brokers' requests.
        on_open: Called with every new connection and its address.
        answer_s: The timeout of a request.
        fresh_s: How long a route is fresh.
        credentials: The account that signs requests; taken from the environment if ``None``.
        tls: How connections are encrypted; taken from the environment if ``None``.

    Raises:
        ConfigError: ``names`` names no server, an address is invalid, the credentials of the
            environment are incomplete, or a certificate cannot be used.
    """

    def __init__(
        self,
        names: str,
        network: Network | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        *,
        service: Service = no_service,
        on_open: Callable[[str, Connection], None] | None = None,
        answer_s: float = ANSWER_S,
        fresh_s: float = FRESH_S,
        credentials: Credentials | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self.names: tuple[str, ...] = _addresses_in(names)
        self.clock: Clock | SystemClock = clock or SystemClock()
        self.entropy: Entropy | SystemEntropy = entropy or SystemEntropy()
        self.ids: UniqueIds = UniqueIds(self.clock, self.entropy)
        self.turns: QueueRotation = QueueRotation()
        self.answer_s = answer_s
        self.routes: RouteTable = RouteTable(fresh_s)
        self._asking: dict[str, asyncio.Task[Route]] = {}
        self._names_at = self.entropy.below(len(self.names))
        self.credentials: Credentials | None = credentials or load_credentials()
        self.pool: ConnectionPool = ConnectionPool(
            network or SystemNetwork(),
            self.clock,
            service,
            on_open,
            credentials=self.credentials,
            tls=client_context(tls or load_tls()),
        )
        self._is_open = False
        self.owner: OwnerProcess = OwnerProcess("client")

    async def __aenter__(self) -> Self:
        if self._is_open:
            raise UsageError("this session is open already")
        if not self.owner.is_current:
            # Created before a fork: each child generates its own ids.
            self.ids = UniqueIds(self.clock, self.entropy)
            self.owner = OwnerProcess("client")
        self._is_open = True
        return self

    async def __aexit__(self, *ending: object) -> None:
        if not self.owner.is_current:
            return  # Open connections belong to the parent, which still uses them.
        self._is_open = False
        for task in list(self._asking.values()):
            task.cancel()
        await self.pool.close()

    # Connections

    async def connection(self, address: str) -> Connection:
        """An open connection to an address, shared by all callers.

        Raises:
            UsageError: The session is not open.
            ConnectFailed: No server listens there.
        """
        if not self._is_open:
            raise UsageError("this session is not open; use it with 'async with'")
        self.owner.check()
        with self._report_closing():
            return await self.pool.connection(address)

    async def request(
        self,
        address: str,
        code: int,
        header: Fields = None,
        *,
        body: bytes = b"",
        timeout_s: float | None = None,
    ) -> Command:
        """Send a request to an address and return its successful answer.

        Raises:
            UsageError: The session is not open.
            TransportError: No answer came; the subclass says whether the request may have run.
            BrokerRefused: The answer is a refusal.
        """
        asked = await self.connection(address)
        limit = self.answer_s if timeout_s is None else timeout_s
        return await asked.request(code, header, body=body, timeout_s=limit)

    @contextmanager
    def _report_closing(self) -> Iterator[None]:
        # Closing cancels tasks that callers share; callers must not see that as their own
        # cancellation.
        try:
            yield
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._is_open and task is not None and not task.cancelling():
                raise UsageError("this session was closed during the call") from None
            raise

    # Name servers

    async def ask_names(self, code: int, header: Fields = None) -> Command:
        """Send a request to a name server; if it does not answer, to the next.

        Raises:
            UsageError: The session is not open.
            TransportError: No name server answers.
            BrokerRefused: The name server that answers refuses.
        """
        first = self._names_at
        failed: TransportError | None = None
        for step in range(len(self.names)):
            at = (first + step) % len(self.names)
            try:
                answer = await self.request(self.names[at], code, header)
            except TransportError as error:
                failed = error
                continue
            except BrokerRefused as error:
                self._names_at = at
                if isinstance(error, RequestNotSupported):
                    remark = error.remark.strip()
                    text = f"{remark}; is {self.names[at]} a name server, and not a broker?"
                    raise RequestNotSupported(text) from error
                raise
            self._names_at = at
            return answer
        assert failed is not None, "a session has at least one name server"
        if len(self.names) == 1:
            raise failed
        text = f"none of the name servers {';'.join(self.names)} answers; the last error: {failed}"
        raise ConnectFailed(text) from failed

    async def tell_names(self, code: int, header: Fields = None) -> None:
        """Send a request to every name server.

        Raises:
            UsageError: The session is not open.
            TransportError: A name server does not answer; all others received the request.
            BrokerRefused: A name server refuses; all others received the request.
        """
        failed: TransportError | BrokerRefused | None = None
        for address in self.names:
            try:
                await self.request(address, code, header)
            except (TransportError, BrokerRefused) as error:
                failed = failed or error
        if failed is not None:
            raise failed

    # Routes

    def known_route(self, topic: str) -> Route | None:
        """A topic's cached route, if any."""
        return self.routes.get(topic, self.clock.monotonic())

    def known_route_to_write(self, topic: str) -> Route | None:
        """A topic's cached route, if any, unless it has no writable queue.

        Permission to write may have returned since such a route was cached.
        """
        route = self.routes.get(topic, self.clock.monotonic())
        if route is None or route.writable or route.waiting:
            return route
        self.routes.forget(topic)
        return None

    def brokers(self) -> Mapping[str, Mapping[int, str]]:
        """The addresses of all brokers in known routes, by name and replica number."""
        return self.routes.brokers()

    async def refresh(self) -> list[str]:
        """Refresh the routes of topics in use; returns the topics whose route changed.

        A topic that the name servers no longer know keeps its last route.

        Raises:
            UsageError: The session is not open.
            TransportError: No name server answers.
        """
        moved: list[str] = []
        for topic in self.routes.in_use(self.clock.monotonic()):
            before = self.routes.last(topic)
            try:
                if await self._ask_route(topic) != before:
                    moved.append(topic)
            except TopicNotFound:
                if before is not None:
                    self.routes.put(before, self.clock.monotonic())
            except BrokerRefused:
                # The next caller that uses the topic receives the error.
                self.forget(topic)
        return moved

    async def route(self, topic: str) -> Route:
        """A topic's route.

        The session keeps a known route while the name servers do not answer, do not know the topic,
        or name no queue of it: a name server that has just started, or has lost its brokers, knows
        less than this client. It drops the route when a broker says that the topic does not exist
        (:meth:`remove`).

        Raises:
            UsageError: The session is not open.
            TopicNotFound: No name server knows the topic, and this session has never seen it.
            TransportError: No name server answers, and this session has never seen the topic.
        """
        found = self.routes.get(topic, self.clock.monotonic())
        if found is not None:
            return found
        asking = self._asking.get(topic)
        if asking is None:
            asking = asyncio.ensure_future(self._learn_route(topic))
            self._asking[topic] = asking
            asking.add_done_callback(lambda task: self._settle(topic, task))
        known = self.routes.last(topic)
        # Many callers may wait for one answer, so a cancelled caller does not cancel the request.
        with self._report_closing():
            await asyncio.wait({asking}, timeout=None if known is None else KNOWN_ROUTE_WAIT_S)
            if known is None or asking.done():
                return asking.result()
        known = self.routes.last(topic)
        if known is None:  # A broker has just answered that the topic does not exist.
            return await asyncio.shield(asking)
        self.routes.put(known, self.clock.monotonic())
        return known

    async def route_to_write(self, topic: str, new_queues: int = TEMPLATE_QUEUES_MAX) -> Route:
        """A topic's route for writing; for a new topic, the route that its first message creates.

        A cached route without a writable queue is queried again.

        Args:
            topic: The topic.
            new_queues: The number of queues on each broker, if the topic does not exist yet.

        Raises:
            UsageError: The session is not open.
            TopicNotFound: No broker has it, and no broker would create it.
            TransportError: No name server answers.
        """
        try:
            return self.known_route_to_write(topic) or await self.route(topic)
        except TopicNotFound as error:
            try:
                answer = await self._ask_about(TEMPLATE)
            except TopicNotFound:
                raise error from None
            # Not cached: the real route exists as soon as the first message is stored.
            return route_of(topic, answer, template=True, queues_max=new_queues)

    async def fresh_route(self, topic: str) -> Route:
        """A topic's route, queried now.

        Raises:
            UsageError: The session is not open.
            TopicNotFound: No broker has it.
            TransportError: No name server answers.
        """
        self.forget(topic)
        return await self._ask_route(topic)

    def forget(self, topic: str) -> None:
        """Expire this topic's route."""
        self.routes.forget(topic)

    def remove(self, topic: str, broker: str | None = None) -> None:
        """Drop the route of a deleted topic, on one broker or entirely."""
        self.routes.remove(topic, broker)

    async def queue_to_write(self, topic: str) -> tuple[Queue, str]:
        """The next queue in rotation, and its master's address.

        Raises:
            UsageError: The session is not open.
            TopicNotFound: No broker has the topic, and no broker would create it.
            NoPermission: The topic has no writable queue.
            TransportError: No name server answers.
        """
        route = await self.route_to_write(topic)
        queue = self.turns.next_queue(route, self.entropy.below(1 << 16))
        return queue, route.master(queue.broker)

    async def address_of(self, queue: Queue, *, reading: bool = False) -> str:
        """The address of a queue's broker.

        Raises:
            UsageError: The session is not open.
            TopicNotFound: The topic does not exist, or not on this broker.
            TransportError: No name server answers, or the broker has no master now.
        """
        route = await self.route(queue.topic)
        if queue.broker not in route.addresses:
            self.forget(queue.topic)
            route = await self.route(queue.topic)
        return route.reader(queue.broker) if reading else route.master(queue.broker)

    async def _learn_route(self, topic: str) -> Route:
        try:
            return await self._ask_route(topic)
        except (TransportError, TopicNotFound) as error:
            known = self.routes.last(topic)
            if known is None:
                raise
            log.debug("the last known route of topic %s is kept: %s", topic, error)
            # Treat the route as fresh for a while, because each unanswered request costs time.
            self.routes.put(known, self.clock.monotonic())
            return known

    async def _ask_route(self, topic: str) -> Route:
        route = route_of(topic, await self._ask_about(topic))
        self.routes.put(route, self.clock.monotonic())
        return route

    async def _ask_about(self, topic: str) -> TopicRoute:
        query = RouteQuery(topic, accept_standard_json_only=True)
        answer = await self.ask_names(RequestCode.GET_ROUTEINFO_BY_TOPIC, query)
        found = TopicRoute.read(answer.body)
        reachable = {broker.broker_name for broker in found.broker_datas if broker.broker_addrs}
        if not any(queues.broker_name in reachable for queues in found.queue_datas):
            raise TopicNotFound(f"the name server names no broker that has topic {topic}")
        return found

    def _settle(self, topic: str, task: asyncio.Task[Route]) -> None:
        self._asking.pop(topic, None)
        if not task.cancelled():
            task.exception()  # Retrieve the exception, in case no caller is still waiting.


def _addresses_in(names: str) -> tuple[str, ...]:
    if not isinstance(names, str):
        several = isinstance(names, list | tuple | set) and all(isinstance(n, str) for n in names)
        hint = f"; write {';'.join(names)!r}" if several else ""
        raise ConfigError(f"name servers, or a txmq.Client, are wanted, not {names!r}{hint}")
    found = tuple(word.strip() for word in names.split(";") if word.strip())
    if not found:
        raise ConfigError("no name server is given; write host:port, several separated by ';'")
    for address in found:
        split_address(address)
    return found
