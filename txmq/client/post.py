"""How a producer's loads get to brokers: routes, queues and connections found, or waited for.

Where everything is known and open, a load is on its way within one call. Where a route has to be
asked for or a connection opened, all loads that need it wait in line for one task, and go in the
order they came; so loads that are given to one queue arrive there in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from txmq.client.delivery import Delivery, retold
from txmq.client.latency import FaultTable
from txmq.client.routes import TEMPLATE, Route
from txmq.client.session import Session
from txmq.client.settings import ProducerSettings
from txmq.client.turns import Turns
from txmq.client.values import SendResult
from txmq.errors import ConnectFailed, TransportError, TxmqError, UsageError
from txmq.limits import FORMS_MAX
from txmq.message import Queue
from txmq.protocol.command import Command
from txmq.protocol.sends import SendHeaderTemplate
from txmq.remoting.connection import Connection
from txmq.runtime.tasks import Tasks

__all__ = ["Post"]

_CLOSED: Final = "this producer was closed before the message was answered"


class Post:
    """Carries deliveries, and knows those that are on their way.

    Args:
        session: The way to the cluster.
        group: In whose name.
        settings: How a producer sends.
    """

    def __init__(self, session: Session, group: str, settings: ProducerSettings) -> None:
        self.session = session
        self.settings = settings
        self.clock = session.clock
        self.timeout_s = settings.timeout_s
        self.loop = asyncio.get_running_loop()
        self.faults = FaultTable() if settings.avoid_slow_brokers else None
        self.bytes_in_flight = 0
        self._bytes_max = settings.in_flight_bytes_max
        self._group = group
        self._turns = Turns()
        self._first = session.entropy.below(1 << 16)
        self._forms: dict[tuple[str, str], SendHeaderTemplate] = {}
        self._live: dict[Delivery, None] = {}
        self._at_routes: dict[str, dict[Delivery, None]] = {}
        self._at_doors: dict[str, dict[Delivery, None]] = {}
        self._tasks = Tasks()
        self._wanting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._idle: asyncio.Future[None] | None = None
        self.heard: Callable[[str, Command], None] | None = None
        """Who looks at each answer to a send, and the name of the broker that gave it."""

    def __len__(self) -> int:
        return len(self._live)

    # Room

    def take(self, size: int) -> bool:
        """Count bytes as on their way from now on, where so many may be sent now; a load of any
        size may, where it is alone.
        """
        before = self.bytes_in_flight
        if self._wanting or (before and before + size > self._bytes_max):
            return False
        self.bytes_in_flight = before + size
        return True

    async def room(self, size: int) -> None:
        """Wait until so many bytes may be sent, and take that room; first come, first served."""
        turn: asyncio.Future[None] = self.loop.create_future()
        self._wanting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(size)
            else:
                self._wanting = deque(each for each in self._wanting if each[1] is not turn)
                self._admit()
            raise

    def release(self, size: int) -> None:
        """They are no more, and others may follow."""
        self.bytes_in_flight -= size
        assert self.bytes_in_flight >= 0, "more bytes have arrived than were sent"
        if self._wanting:
            self._admit()

    def _admit(self) -> None:
        while self._wanting:
            size, turn = self._wanting[0]
            if self.bytes_in_flight and self.bytes_in_flight + size > self._bytes_max:
                return
            self._wanting.popleft()
            if not turn.done():
                self.bytes_in_flight += size
                turn.set_result(None)

    # The way of a delivery

    def start(self, delivery: Delivery) -> None:
        """Carry a delivery whose bytes are counted; they are released when it ends."""
        self._live[delivery] = None
        self.carry(delivery)

    def carry(self, delivery: Delivery) -> None:
        """Find its queue, and so on, as far as that goes without waiting."""
        if delivery not in self._live:
            return
        topic = delivery.parcel.topic
        in_line = self._at_routes.get(topic)
        route = None if in_line is not None else self.session.known_route(topic)
        if route is None:
            delivery.is_spread = False
            self._wait(self._at_routes, topic, delivery, self._find_route)
        else:
            self._follow(delivery, route)

    def _follow(self, delivery: Delivery, route: Route) -> None:
        queue = delivery.chosen
        delivery.is_spread = route.is_spread and queue is None
        is_unknown = queue is not None and queue.broker not in route.addresses
        if is_unknown and not delivery.has_looked_again:
            delivery.has_looked_again = True
            self.session.forget(route.topic)
            self._wait(self._at_routes, route.topic, delivery, self._find_route)
            return
        try:
            delivery.queue = queue = queue or self.next_queue(route, delivery.avoid)
            address = route.master(queue.broker)
        except ConnectFailed as problem:
            delivery.lost(problem)
            return
        except TxmqError as problem:
            delivery.give_up(problem)
            return
        in_line = self._at_doors.get(address)
        connection = None if in_line is not None else self.session.ready(address)
        if connection is None:
            self._wait(self._at_doors, address, delivery, self._open_door)
        else:
            delivery.go(connection, self.form(queue))

    def next_queue(self, route: Route, avoid: str | None = None) -> Queue:
        """The queue whose turn it is.

        Raises:
            NoPermission: The topic is there and cannot be written to.
        """
        if self.faults is None:
            return self._turns.next_queue(route, self._first, avoid)
        now = self.clock.monotonic()
        return self._turns.next_available(route, self._first, self.faults, now, avoid)

    def form(self, queue: Queue) -> SendHeaderTemplate:
        """The prepared header of what goes to this queue's topic at its broker."""
        which = queue.topic, queue.broker
        found = self._forms.get(which)
        if found is None:
            if len(self._forms) >= FORMS_MAX:
                del self._forms[next(iter(self._forms))]
            found = self._forms[which] = SendHeaderTemplate(
                self._group, queue.topic, TEMPLATE, self.settings.queues_of_new_topics, queue.broker
            )
        return found

    def note(self, broker: str, latency_s: float, *, failed: bool = False) -> None:
        """Remember how a broker did, where that is wanted."""
        if self.faults is not None:
            self.faults.note(broker, latency_s, self.clock.monotonic(), failed=failed)

    # Waiting

    def _wait(
        self,
        lines: dict[str, dict[Delivery, None]],
        where: str,
        delivery: Delivery,
        find: Callable[[str], object],
    ) -> None:
        line = lines.get(where)
        if line is None:
            line = lines[where] = {}
            find(where)
        delivery.wait(line)

    def _find_route(self, topic: str) -> None:
        self._tasks.start(self._ask_route(topic), f"route of {topic}")

    async def _ask_route(self, topic: str) -> None:
        found: Route | TxmqError
        try:
            found = await self.session.route_to_write(topic, self.settings.queues_of_new_topics)
        except TxmqError as problem:
            found = problem
        for each in self._leave_line(self._at_routes, topic):
            if isinstance(found, TxmqError):
                each.give_up(found)
            else:
                self._follow(each, found)

    def _open_door(self, address: str) -> None:
        self._tasks.start(self._connect(address), f"connection to {address}")

    async def _connect(self, address: str) -> None:
        found: Connection | TxmqError
        try:
            found = await self.session.connection(address)
        except TxmqError as problem:
            found = problem
        for each in self._leave_line(self._at_doors, address):
            assert each.queue is not None, "whoever waits for a connection has a queue"
            if isinstance(found, Connection):
                each.go(found, self.form(each.queue))
            elif isinstance(found, TransportError):
                each.lost(found)
            else:
                each.give_up(found)

    def _leave_line(self, lines: dict[str, dict[Delivery, None]], where: str) -> list[Delivery]:
        leaving = [each for each in lines.pop(where) if each in self._live]
        for each in leaving:
            each.stop_waiting()
        return leaving

    # The end of a delivery

    def delivered(self, delivery: Delivery, results: list[SendResult]) -> None:
        """A broker has it."""
        if self._forget(delivery) and not delivery.future.done():
            delivery.future.set_result(results[0] if delivery.is_single else results)

    def undeliverable(self, delivery: Delivery, problem: TxmqError) -> None:
        """All attempts were in vain."""
        if self._forget(delivery) and not delivery.future.done():
            # Several may be told of one loss; each raises an error of its own.
            cause = problem.__cause__
            own = retold(problem, str(problem), problem.effect)
            own.__cause__ = cause
            delivery.future.set_exception(own)

    def dropped(self, delivery: Delivery) -> None:
        """Nobody waits for it any more."""
        self._forget(delivery)

    def _forget(self, delivery: Delivery) -> bool:
        if self._live.pop(delivery, self) is self:
            return False
        self.release(delivery.size)
        if not self._live and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        return True

    async def drain(self) -> None:
        """Wait until nothing is on its way; each delivery has its deadline, so this ends."""
        while self._live:
            self._idle = self.loop.create_future()
            await self._idle

    def send_away(self) -> None:
        """Whoever waits for room waits in vain: no more is sent."""
        wanting, self._wanting = self._wanting, deque()
        for _, turn in wanting:
            if not turn.done():
                turn.set_exception(UsageError("this producer was closed meanwhile"))

    async def close(self) -> None:
        """Give up whatever is still on its way."""
        for each in list(self._live):
            each.abandon(_CLOSED)
        await self._tasks.stop()
