"""One client's way to a cluster: name servers to ask, routes remembered, connections shared.

A session keeps to one name server until that fails, then moves to the next. It opens nothing before
something is asked, runs no task of its own, and takes time, chance and streams only from its ports.
Producers, consumers and :class:`txmq.client.admin.admin.Admin` share one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from txmq.client.identity import UniqueIds
from txmq.client.queue_choice import QueueRotation
from txmq.client.routes import (
    FRESH_S,
    TEMPLATE,
    TEMPLATE_QUEUES_MAX,
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

__all__ = ["Session"]

log = logging.getLogger(__name__)

ANSWER_S = 3.0
"""How long an answer may take, as in stock clients."""

KNOWN_ROUTE_WAIT_S = 1.0
"""How long a caller waits for a newer route than the one that is known: a name server that is
silent must not use up the time for sending.
"""

Fields = Header | dict[str, str] | None


class Session:
    """A client's connections and what it knows of the cluster; ``async with`` opens and closes it.

    Args:
        names: The name servers, ``host:port`` separated by ``;``.
        network: Where streams come from.
        clock: Where the time comes from.
        entropy: Where chance comes from.
        service: Who answers what brokers ask of this client.
        on_open: Who hears of every connection that was opened, and to which address.
        answer_s: How long an answer may take.
        fresh_s: How long a route is believed.

    Raises:
        ConfigError: ``names`` names no server, or one in a way that is no address.
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
    ) -> None:
        self.names = _addresses_in(names)
        self.clock = clock or SystemClock()
        self.entropy = entropy or SystemEntropy()
        self.ids = UniqueIds(self.clock, self.entropy)
        self.turns = QueueRotation()
        self._network = network or SystemNetwork()
        self._service = service
        self._on_open = on_open
        self.answer_s = answer_s
        self.routes = RouteTable(fresh_s)
        self._asking: dict[str, asyncio.Task[Route]] = {}
        self._names_at = self.entropy.below(len(self.names))
        self.pool: ConnectionPool | None = None
        self.owner = OwnerProcess("client")

    async def __aenter__(self) -> Self:
        if self.pool is not None:
            raise UsageError("this session is open already")
        if not self.owner.is_current:
            # Made before a fork: each child gives out ids of its own.
            self.ids = UniqueIds(self.clock, self.entropy)
            self.owner = OwnerProcess("client")
        self.pool = ConnectionPool(self._network, self.clock, self._service, self._on_open)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.owner.is_current:
            return  # What is open belongs to the parent, which goes on with it.
        pool, self.pool = self.pool, None
        for task in list(self._asking.values()):
            task.cancel()
        if pool is not None:
            await pool.close()

    # Connections

    def ready(self, address: str) -> Connection | None:
        """The connection to an address, where one is open now."""
        return None if self.pool is None else self.pool.ready(address)

    async def connection(self, address: str) -> Connection:
        """An open connection to an address, shared by all callers.

        Raises:
            UsageError: The session is not open.
            ConnectFailed: No server listens there.
        """
        if self.pool is None:
            raise UsageError("this session is not open; use it with 'async with'")
        self.owner.check()
        with self._closing_told():
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
        """Ask one address and return its answer where that is a success.

        Raises:
            UsageError: The session is not open.
            TransportError: No answer came; the subclass says whether the request may have run.
            BrokerRefused: The answer is a refusal.
        """
        asked = await self.connection(address)
        limit = self.answer_s if timeout_s is None else timeout_s
        return await asked.request(code, header, body=body, timeout_s=limit)

    @contextmanager
    def _closing_told(self) -> Iterator[None]:
        # Closing cancels tasks that callers share; that must not look like their own cancellation.
        try:
            yield
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.pool is None and task is not None and not task.cancelling():
                raise UsageError("this session was closed meanwhile") from None
            raise

    # Name servers

    async def ask_names(self, code: int, header: Fields = None) -> Command:
        """Ask a name server, and the next where one does not answer.

        Raises:
            UsageError: The session is not open.
            TransportError: None of them answers.
            BrokerRefused: The one that answered refuses.
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
                    said = error.remark.strip()
                    text = f"{said}; is {self.names[at]} a name server, and not a broker?"
                    raise RequestNotSupported(text) from error
                raise
            self._names_at = at
            return answer
        assert failed is not None, "a session has at least one name server"
        if len(self.names) == 1:
            raise failed
        text = f"none of the name servers {';'.join(self.names)} answers; the last said: {failed}"
        raise ConnectFailed(text) from failed

    async def tell_names(self, code: int, header: Fields = None) -> None:
        """Have every name server do something.

        Raises:
            UsageError: The session is not open.
            TransportError: One of them does not answer; all others have the request.
            BrokerRefused: One of them refuses; those before it have the request.
        """
        failed: TransportError | None = None
        for address in self.names:
            try:
                await self.request(address, code, header)
            except TransportError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    # Routes

    def known_route(self, topic: str) -> Route | None:
        """Where a topic lives, as far as that is known without asking."""
        return self.routes.get(topic, self.clock.monotonic())

    def brokers(self) -> Mapping[str, Mapping[int, str]]:
        """Where all brokers listen that some known route names, by name and replica number."""
        return self.routes.brokers()

    async def refresh(self) -> list[str]:
        """Ask again where the topics live that are in use; returns those that have moved.

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
                # The next caller that uses the topic gets the reason.
                self.forget(topic)
        return moved

    async def route(self, topic: str) -> Route:
        """Where a topic lives.

        A route that was good once is kept while the name servers do not answer, answer that they
        do not know the topic, or name no queue of it: a name server that has just started, or has
        lost its brokers, knows less than this client. It is not kept past a broker's own word that
        the topic does not exist (:meth:`remove`).

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
        # Many may wait for one answer, so a caller that gives up does not cancel the question.
        with self._closing_told():
            await asyncio.wait({asking}, timeout=None if known is None else KNOWN_ROUTE_WAIT_S)
            if known is None or asking.done():
                return asking.result()
        known = self.routes.last(topic)
        if known is None:  # A broker has said meanwhile that the topic does not exist.
            return await asyncio.shield(asking)
        self.routes.put(known, self.clock.monotonic())
        return known

    async def route_to_write(self, topic: str, new_queues: int = TEMPLATE_QUEUES_MAX) -> Route:
        """Where a topic lives, or would come to live by its first message.

        Args:
            topic: The topic.
            new_queues: The queues it is to get at each broker, if it is not there yet.

        Raises:
            UsageError: The session is not open.
            TopicNotFound: No broker has it, and none would create it.
            TransportError: No name server answers.
        """
        try:
            return await self.route(topic)
        except TopicNotFound as error:
            try:
                answer = await self._ask_about(TEMPLATE)
            except TopicNotFound:
                raise error from None
            # Not remembered: the true route is there as soon as the first message is.
            return route_of(topic, answer, template=True, queues_max=new_queues)

    async def fresh_route(self, topic: str) -> Route:
        """Where a topic lives, asked now.

        Raises:
            UsageError: The session is not open.
            TopicNotFound: No broker has it.
            TransportError: No name server answers.
        """
        self.forget(topic)
        return await self._ask_route(topic)

    def forget(self, topic: str) -> None:
        """Ask for this topic's route again before it is next used."""
        self.routes.forget(topic)

    def remove(self, topic: str, broker: str | None = None) -> None:
        """Keep nothing of a topic that does not exist any more: at one broker, or at all."""
        self.routes.remove(topic, broker)

    async def queue_to_write(self, topic: str) -> tuple[Queue, str]:
        """The queue whose turn it is, and the address that takes messages for it.

        Raises:
            UsageError: The session is not open.
            TopicNotFound: No broker has the topic, and none would create it.
            NoPermission: It has no queue that can be written to.
            TransportError: No name server answers.
        """
        route = await self.route_to_write(topic)
        queue = self.turns.next_queue(route, self.entropy.below(1 << 16))
        return queue, route.master(queue.broker)

    async def address_of(self, queue: Queue, *, reading: bool = False) -> str:
        """Where the broker of a queue listens.

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
            # Trusted for a while again, because each unanswered question costs time.
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
            task.exception()  # Read, in case no caller waits any longer.


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
