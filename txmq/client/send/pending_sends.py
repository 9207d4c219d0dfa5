"""Messages that a producer has sent and no broker has answered yet, through all their attempts.

If the route is known and a connection is open, one call takes a request to the wire. Requests that
need a route or a connection first wait in line for one task, and leave in the order they came: so
requests for one queue arrive there in order. Callbacks drive a pending send; it needs no task.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from txmq.client.queue_choice import FaultTable, QueueRotation
from txmq.client.routes import TEMPLATE, Route
from txmq.client.send_request import SendRequest
from txmq.client.session import Session
from txmq.client.settings import ProducerSettings
from txmq.client.values import SendResult, SendStatus
from txmq.errors import (
    BrokerRefused,
    ConnectFailed,
    Effect,
    InvalidParameter,
    NoPermission,
    RemoteProtocolError,
    RequestTimeout,
    TopicNotFound,
    TransportError,
    TxmqError,
    UnknownRefusal,
    UsageError,
)
from txmq.limits import FORMS_MAX
from txmq.message import Queue
from txmq.protocol.command import Command
from txmq.protocol.sends import SendHeaderTemplate
from txmq.remoting.connection import Connection
from txmq.runtime.tasks import Tasks

__all__ = ["PendingSend", "PendingSends", "SendAttempt", "retold"]

_CLOSED: Final = "this producer was closed before the message was answered"

RETRIED_CODES: Final = frozenset({17, 14, 1, 2, 16, 204, 205})
"""Refusals that another broker may not give, as stock producers see it."""

ROUTE_IS_WRONG: Final = (ConnectFailed, NoPermission, InvalidParameter)


class PendingSends:
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
        self._turns = QueueRotation()
        self._first = session.entropy.below(1 << 16)
        self._forms: dict[tuple[str, str], SendHeaderTemplate] = {}
        self._live: dict[PendingSend, None] = {}
        self._at_routes: dict[str, dict[PendingSend, None]] = {}
        self._at_doors: dict[str, dict[PendingSend, None]] = {}
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

    def start(self, delivery: PendingSend) -> None:
        """Carry a delivery whose bytes are counted; they are released when it ends."""
        self._live[delivery] = None
        self.carry(delivery)

    def carry(self, delivery: PendingSend) -> None:
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

    def _follow(self, delivery: PendingSend, route: Route) -> None:
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
        lines: dict[str, dict[PendingSend, None]],
        where: str,
        delivery: PendingSend,
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

    def _leave_line(
        self, lines: dict[str, dict[PendingSend, None]], where: str
    ) -> list[PendingSend]:
        leaving = [each for each in lines.pop(where) if each in self._live]
        for each in leaving:
            each.stop_waiting()
        return leaving

    # The end of a delivery

    def delivered(self, delivery: PendingSend, results: list[SendResult]) -> None:
        """A broker has it."""
        if self._forget(delivery) and not delivery.future.done():
            delivery.future.set_result(results[0] if delivery.is_single else results)

    def undeliverable(self, delivery: PendingSend, problem: TxmqError) -> None:
        """All attempts were in vain."""
        if self._forget(delivery) and not delivery.future.done():
            # Several may be told of one loss; each raises an error of its own.
            cause = problem.__cause__
            own = retold(problem, str(problem), problem.effect)
            own.__cause__ = cause
            delivery.future.set_exception(own)

    def dropped(self, delivery: PendingSend) -> None:
        """Nobody waits for it any more."""
        self._forget(delivery)

    def _forget(self, delivery: PendingSend) -> bool:
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


class SendAttempt:
    """Where a delivery was tried in vain, and why."""

    __slots__ = ("broker", "problem")

    def __init__(self, broker: str, problem: TxmqError) -> None:
        self.broker = broker
        self.problem = problem


class PendingSend:
    """A load, where it may go, and how often.

    Args:
        post: Who carries it.
        parcel: The load.
        chosen: Its queue; the one whose turn it is at each attempt where it is ``None``.
        retries: How many further attempts there are.
        is_nowait: Whether they go to the same queue, and only where no answer came.
        is_once: Whether there are any only while it is certain that nothing is stored.
        size: The bytes it counts for.
        is_single: Whether the future is of one result, not of a list.
    """

    __slots__ = (
        "_attempts", "_began", "_connection", "_deadline", "_is_nowait", "_is_once", "_line",
        "_opaque", "_post", "_retries", "_stored", "_timer", "avoid", "chosen", "future",
        "has_looked_again", "is_single", "is_spread", "parcel", "queue", "size",
    )  # fmt: skip

    def __init__(
        self,
        post: PendingSends,
        parcel: SendRequest,
        chosen: Queue | None,
        retries: int,
        size: int,
        *,
        is_nowait: bool = False,
        is_once: bool = False,
        is_single: bool = True,
    ) -> None:
        self.parcel = parcel
        self.chosen = chosen
        self.queue = chosen
        self.avoid: str | None = None
        self.has_looked_again = False
        self.is_spread = False
        self.size = size
        self.is_single = is_single
        self.future: asyncio.Future[Any] = post.loop.create_future()
        self._post = post
        self._retries = retries
        self._is_nowait = is_nowait
        self._is_once = is_once
        self._began = now = post.clock.monotonic()
        self._deadline = now + post.timeout_s
        self._attempts: list[SendAttempt] | None = None
        self._stored: list[SendResult] | None = None
        self._connection: Connection | None = None
        self._opaque = 0
        self._timer: asyncio.TimerHandle | None = None
        self._line: dict[PendingSend, None] | None = None

    # The way there

    def wait(self, line: dict[PendingSend, None]) -> None:
        """Wait in line for a route, or for a connection, no longer than this attempt may take."""
        line[self] = None
        self._line = line
        if self._timer is None:
            now = self._post.clock.monotonic()
            left = max(0.0, self._attempt_ends(now) - now)
            self._timer = self._post.loop.call_later(left, self._late)

    def stop_waiting(self) -> None:
        """What was waited for is there, or never will be."""
        self._line = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _attempt_ends(self, now: float) -> float:
        """Until when this attempt may last: for its share of the time that is left, where a later
        attempt goes to another broker. A broker that is silent costs no more than that.
        """
        if not self.is_spread or self._retries <= 0 or self._is_nowait or self._is_once:
            return self._deadline
        return now + max(0.0, self._deadline - now) / (self._retries + 1)

    def _late(self) -> None:
        self._timer = None
        if self._line is not None:
            del self._line[self]
            self._line = None
        problem = RequestTimeout("there was no way to a broker within the time for sending")
        problem.effect = Effect.NONE  # Of this attempt nothing was sent.
        self.lost(problem)

    def go(self, connection: Connection, form: SendHeaderTemplate) -> None:
        """Send it, now."""
        assert self.queue is not None, "a delivery goes to a queue"
        post, parcel = self._post, self.parcel
        now = post.clock.monotonic()
        if self._attempts is not None and now >= self._deadline:
            self._late()
            return
        self._began = now
        opaque = connection.number()
        try:
            head = parcel.head(form, opaque, self.queue.number, post.clock.wall_ms())
            ends = self._attempt_ends(now) if self.is_spread else self._deadline
            connection.post(opaque, self, ends, head, parcel.body)
        except TransportError as problem:
            problem.effect = Effect.NONE  # It was closed before.
            self.lost(problem)
            return
        except TxmqError as problem:
            self._end(problem)
            return
        self._connection, self._opaque = connection, opaque

    # What came of it

    def answered(self, answer: Command) -> None:
        """See :meth:`txmq.remoting.connection.Waiter.answered`."""
        self._connection = None
        queue = self.queue
        assert queue is not None, "what is answered was sent to a queue"
        try:
            results = self.parcel.results(answer, queue)
        except BrokerRefused as problem:
            self._refused(problem)
        except RemoteProtocolError as problem:
            self._post.note(queue.broker, 0.0, failed=True)
            problem.effect = Effect.MAYBE
            self._end(problem)
        else:
            post = self._post
            if post.heard is not None:
                post.heard(queue.broker, answer)
            if post.faults is not None:
                post.note(queue.broker, post.clock.monotonic() - self._began)
            if (
                results[0].status is not SendStatus.OK
                and post.settings.retry_not_safe
                and not self._is_nowait
                and not self._is_once
                and self._retries > 0
            ):
                self._stored = results
                self._again()
                return
            post.delivered(self, results)

    def failed(self, problem: TransportError) -> None:
        """See :meth:`txmq.remoting.connection.Waiter.failed`."""
        self._connection = None
        self.lost(problem)

    def lost(self, problem: TransportError) -> None:
        """No answer came of this attempt."""
        self._tried(problem)
        if self._may_again(problem):
            if self._is_nowait:
                self.chosen = self.queue
            self._again()
        else:
            self._end(problem)

    def _refused(self, problem: BrokerRefused) -> None:
        self._tried(problem)
        code = problem.response_code if isinstance(problem, UnknownRefusal) else problem.code
        may_again = not self._is_nowait and code in RETRIED_CODES
        if may_again and self._may_again(problem):
            self._again()
        else:
            self._end(problem)

    def _may_again(self, problem: TxmqError) -> bool:
        if self._is_once and problem.effect is not Effect.NONE:
            return False
        return self._retries > 0 and self._post.clock.monotonic() < self._deadline

    def _tried(self, problem: TxmqError) -> None:
        broker = "" if self.queue is None else self.queue.broker
        if broker:
            self._post.note(broker, 0.0, failed=True)
        if isinstance(problem, TopicNotFound):
            self._post.session.remove(self.parcel.topic, broker)
        elif isinstance(problem, ROUTE_IS_WRONG):
            self._post.session.forget(self.parcel.topic)
        if self._attempts is None:
            self._attempts = []
        self._attempts.append(SendAttempt(broker, problem))

    def _again(self) -> None:
        self._retries -= 1
        if self.queue is not None:
            self.avoid = self.queue.broker
        # Not at once: a failure may come from deep within what carries all deliveries.
        self._post.loop.call_soon(self._post.carry, self)

    def give_up(self, problem: TxmqError) -> None:
        """There is no way: the topic is unknown, or cannot be written to."""
        self._end(problem)

    def abandon(self, reason: str) -> None:
        """The producer closes."""
        problem: TxmqError = UsageError(reason)
        if self._connection is not None:
            self._connection.break_off(self._opaque)
            self._connection = None
            problem.effect = Effect.MAYBE
        self._end(problem)

    def _end(self, problem: TxmqError) -> None:
        self.stop_waiting()
        if self._stored is not None:
            # An earlier attempt was answered; that it could not be bettered is no failure.
            self._post.delivered(self, self._stored)
            return
        attempts = self._attempts or []
        if not attempts or attempts[-1].problem is not problem:
            attempts = [
                *attempts,
                SendAttempt("" if self.queue is None else self.queue.broker, problem),
            ]
        self._post.undeliverable(self, attempts_told(attempts))

    def drop(self) -> None:
        """Nobody wants to know any more; what is sent is sent."""
        self.stop_waiting()
        if self._connection is not None:
            self._connection.break_off(self._opaque)
            self._connection = None
        self._post.dropped(self)


def attempts_told(attempts: list[SendAttempt]) -> TxmqError:
    """The last attempt's error, which says what came before, and whether any may have worked."""
    last = attempts[-1].problem
    if len(attempts) == 1:
        return last
    ways = ", ".join(
        f"{each.broker or 'no broker'}: {type(each.problem).__name__}" for each in attempts
    )
    text = f"{last} (the last of {len(attempts)} attempts; {ways})"
    effects = {each.problem.effect for each in attempts}
    if Effect.APPLIED in effects:
        effect = Effect.APPLIED
    else:
        effect = Effect.MAYBE if Effect.MAYBE in effects else Effect.NONE
    found = retold(last, text, effect)
    chain = found
    for each in reversed(attempts[:-1]):
        chain.__cause__ = retold(each.problem, str(each.problem), each.problem.effect)
        chain = chain.__cause__
    return found


def retold(problem: TxmqError, text: str, effect: Effect) -> TxmqError:
    """The same error in other words; errors are shared where one loss is that of many."""
    again = type(problem).__new__(type(problem))
    again.__dict__.update(problem.__dict__)
    again.args = (text,)
    again.effect = effect
    return again
