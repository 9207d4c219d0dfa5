"""The requests of a producer that no broker has answered yet, through all their attempts.

If the route is known and a connection is open, a request is written at once. Requests that first
need a route or a connection wait in line while one task gets it, and leave in the order they came,
so requests for one queue arrive there in order. Callbacks drive a pending send; it needs no task.

A failed attempt is repeated at once if another broker can take it. If not, it pauses; requests that
fail at the same broker share a pause and leave it in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from txmq.client.routes import TEMPLATE, FaultTable, QueueRotation, Route
from txmq.client.send_request import Envelope, result_of, results_of
from txmq.client.session import Session
from txmq.client.settings import ProducerSettings
from txmq.client.values import SendResult, SendStatus
from txmq.errors import (
    BrokerRefused,
    ConnectFailed,
    ConnectionLost,
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
from txmq.protocol.templates import SendHeaderTemplate
from txmq.remoting.connection import Connection
from txmq.runtime.backoff import Backoff
from txmq.runtime.clock import Clock
from txmq.runtime.tasks import Tasks

__all__ = ["PendingSend", "PendingSends", "SendAttempt", "copy_error"]

_UNSENT: Final = "this producer was closed before the message was sent"
_UNANSWERED: Final = "this producer was closed before the message was answered"

RETRIED_CODES: Final = frozenset({17, 14, 1, 2, 16, 204, 205})
"""Refusals after which stock producers try another broker."""

ROUTE_IS_WRONG: Final = (ConnectFailed, NoPermission, InvalidParameter)

FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 1.0
SHORTEST_PAUSE_S: Final = 0.02
"""A pause takes at most half of the time left. If that is less than this, the send fails."""


class PendingSends:
    """All pending sends of one producer, and the bytes they hold.

    Args:
        session: The session with the cluster.
        group: The producer group.
        settings: How the producer sends.
    """

    def __init__(self, session: Session, group: str, settings: ProducerSettings) -> None:
        self.session = session
        self.settings = settings
        self.clock: Clock = session.clock
        self.timeout_s: float = settings.timeout
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.faults: FaultTable | None = FaultTable() if settings.avoid_slow_brokers else None
        self.bytes_in_flight: int = 0
        self.on_answer: Callable[[str, Command], None] | None = None
        """Receives each answer to a send, with the broker's name."""
        self._bytes_max = settings.in_flight_max
        self._group = group
        self._routes = session.routes
        self._connections = session.pool.connections
        self._rotation = QueueRotation()
        self._first = session.entropy.below(1 << 16)
        self._forms: dict[tuple[str, str], SendHeaderTemplate] = {}
        self._live: dict[PendingSend, None] = {}
        self._at_routes: dict[str, dict[PendingSend, None]] = {}
        self._at_connections: dict[str, dict[PendingSend, None]] = {}
        self._pauses: dict[str, _Pause] = {}
        """By broker."""
        self._tasks = Tasks()
        self._room_line: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._is_closing = False
        self._idle: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._live)

    # Bytes in flight

    def take(self, size: int) -> bool:
        """Count these bytes as in flight, if there is room for them.

        A request of any size has room while nothing else is in flight.
        """
        before = self.bytes_in_flight
        if self._room_line or (before and before + size > self._bytes_max):
            return False
        self.bytes_in_flight = before + size
        return True

    async def take_later(self, size: int) -> None:
        """Wait for room, and count these bytes as in flight; first come, first served.

        Raises:
            UsageError: The producer closes.
        """
        turn: asyncio.Future[None] = self.loop.create_future()
        self._room_line.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release(size)
            else:
                self._room_line = deque(place for place in self._room_line if place[1] is not turn)
                self._admit()
            raise
        if self._is_closing:
            self.release(size)
            raise UsageError(_UNSENT)

    def release(self, size: int) -> None:
        """Release bytes in flight; the next in line may have room now."""
        self.bytes_in_flight -= size
        assert self.bytes_in_flight >= 0, "more bytes were released than were taken"
        if self._room_line:
            self._admit()

    def _admit(self) -> None:
        while self._room_line:
            size, turn = self._room_line[0]
            if self.bytes_in_flight and self.bytes_in_flight + size > self._bytes_max:
                return
            self._room_line.popleft()
            if not turn.done():
                self.bytes_in_flight += size
                turn.set_result(None)

    # From a request to the wire

    async def run(
        self, envelope: Envelope, queue: Queue | None, size: int, *, is_once: bool = False
    ) -> Any:
        """Send a request as soon as there is room, and return its result.

        Args:
            envelope: The message or batch.
            queue: Its queue; ``None`` lets each attempt take the next queue in rotation.
            size: The bytes that it counts as in flight.
            is_once: Whether to retry only while it is certain that nothing is stored.

        Returns:
            The :class:`SendResult` of a message, or the list of results of a batch.

        Raises:
            TxmqError: No attempt succeeded.
            UsageError: The producer closes.
        """
        if not self.take(size):
            await self.take_later(size)
        retries = self.settings.retries if queue is None else 0
        future = self.loop.create_future()
        send = PendingSend(self, envelope, queue, retries, size, future, is_once=is_once)
        self.advance(send)
        try:
            return await future
        except asyncio.CancelledError:
            send.drop()
            raise

    def retry_soon(self, send: PendingSend) -> None:
        """Retry in the loop's next iteration: an error may come from deep within a connection."""
        self.loop.call_soon(self._retry, send)

    def retry_later(self, send: PendingSend, broker: str, pause_s: float) -> bool:
        """Retry after a pause; returns False if the broker's current pause outlasts the send's
        deadline.

        If other requests to the broker already pause, the send joins their pause, so that they stay
        in order.
        """
        now = self.clock.monotonic()
        pause = self._pauses.get(broker)
        if pause is None:
            pause = self._pauses[broker] = _Pause(now + pause_s, [])
            self.loop.call_later(pause_s, self._end_pause, broker)
        elif pause.ends >= send.deadline:
            return False
        pause.sends.append(send)
        return True

    def _end_pause(self, broker: str) -> None:
        for send in self._pauses.pop(broker).sends:
            self._retry(send)

    def _retry(self, send: PendingSend) -> None:
        if send in self._live:
            self.advance(send)

    def advance(self, send: PendingSend, route: Route | None = None) -> None:
        """Find a route, a queue and a connection, and write the request.

        If the route or the connection is missing, the request waits in line for it. The bytes of a
        new request are already counted; its end releases them.
        """
        now = self.clock.monotonic()
        if not send.deadline:
            self._live[send] = None
            send.deadline, send.queue = now + self.timeout_s, send.chosen
        topic = send.envelope.topic
        if route is None and topic not in self._at_routes:
            route = self._routes.get(topic, now)
        if route is None:
            send.is_spread = False
            self._wait(self._at_routes, topic, send, self._find_route)
            return
        queue = send.chosen
        try:
            if queue is None:
                send.is_spread = route.is_spread
                if self.faults is None:  # Inlined from next_queue, to save a call per send.
                    queue = self._rotation.next_queue(route, self._first, send.avoid)
                else:
                    queue = self.next_queue(route, send.avoid)
            else:
                send.is_spread = False
                if queue.broker not in route.addresses and not send.has_looked_again:
                    self.session.forget(topic)
                    self._wait(self._at_routes, topic, send, self._find_route)
                    return
            send.queue = queue
            address = route.masters.get(queue.broker) or route.master(queue.broker)
        except TxmqError as error:
            self._has_no_way(send, error)
            return
        connection = self._connections.get(address)
        if connection is None or address in self._at_connections:
            self._wait(self._at_connections, address, send, self._open_connection)
        else:
            self._write(send, queue, address, connection, now)

    def _has_no_way(self, send: PendingSend, error: TxmqError) -> None:
        """Handle a route that leads to no broker."""
        if isinstance(error, ConnectFailed):
            send.lost(error)
        elif isinstance(error, NoPermission) and not send.has_looked_again:
            # Permission may have returned since the route was cached.
            self._wait(self._at_routes, send.envelope.topic, send, self._find_route)
        else:
            send.end(error)

    def _write(
        self, send: PendingSend, queue: Queue, address: str, connection: Connection, now: float
    ) -> None:
        if send.attempts and now >= send.deadline:
            send.late()
            return
        send.began = now
        envelope, opaque = send.envelope, connection.number()
        try:
            form = self._forms.get((queue.topic, queue.broker)) or self.form(queue)
            head = form.head(
                opaque, queue.number, envelope.sys_flag, self.clock.wall_ms(), envelope.flag,
                envelope.properties, envelope.body, code=envelope.code,
            )  # fmt: skip
            ends = send.attempt_ends(now) if send.is_spread else send.deadline
            connection.post(opaque, send, ends, head, envelope.body)
        except ConnectionLost:
            # It closed before the write, so nothing was sent.
            self._wait(self._at_connections, address, send, self._open_connection)
        except TxmqError as error:
            send.end(error)
        else:
            send.connection, send.opaque = connection, opaque

    def next_queue(self, route: Route, avoid: str | None = None) -> Queue:
        """The next queue in rotation.

        Raises:
            NoPermission: The topic exists, but has no writable queue.
        """
        if self.faults is None:
            return self._rotation.next_queue(route, self._first, avoid)
        now = self.clock.monotonic()
        return self._rotation.next_available(route, self._first, self.faults, now, avoid)

    def form(self, queue: Queue) -> SendHeaderTemplate:
        """The prepared header of sends to this queue's topic at its broker."""
        key = queue.topic, queue.broker
        found = self._forms.get(key)
        if found is None:
            if len(self._forms) >= FORMS_MAX:
                del self._forms[next(iter(self._forms))]
            found = self._forms[key] = SendHeaderTemplate(
                self._group,
                queue.topic,
                TEMPLATE,
                self.settings.queues_of_new_topics,
                queue.broker,
                self.session.credentials,
            )
        return found

    def note_latency(self, broker: str, latency_s: float, *, failed: bool = False) -> None:
        """Remember how fast a broker answered, if slow brokers are to be avoided."""
        if self.faults is not None:
            self.faults.note(broker, latency_s, self.clock.monotonic(), failed=failed)

    # Lines that wait for a route or a connection

    def _wait(
        self,
        lines: dict[str, dict[PendingSend, None]],
        key: str,
        send: PendingSend,
        find: Callable[[str], object],
    ) -> None:
        line = lines.get(key)
        if line is None:
            line = lines[key] = {}
            find(key)
        send.wait(line)

    def _find_route(self, topic: str) -> None:
        self._tasks.start(self._ask_route(topic), f"route of {topic}")

    async def _ask_route(self, topic: str) -> None:
        found: Route | TxmqError
        try:
            found = await self.session.route_to_write(topic, self.settings.queues_of_new_topics)
        except TxmqError as error:
            found = error
        for send in self._leave_line(self._at_routes, topic):
            if isinstance(found, TxmqError):
                send.end(found)
            else:
                send.has_looked_again = True
                self.advance(send, found)

    def _open_connection(self, address: str) -> None:
        self._tasks.start(self._connect(address), f"connection to {address}")

    async def _connect(self, address: str) -> None:
        found: Connection | TxmqError
        try:
            found = await self.session.connection(address)
            if not found.is_open:
                # A port without a server behind it opens and closes at once. Count that as a failed
                # attempt: waiting in line again would reconnect in a loop.
                lost = ConnectionLost(f"{address} closed the connection")
                lost.effect = Effect.NONE
                raise lost
        except TxmqError as error:
            found = error
        for send in self._leave_line(self._at_connections, address):
            assert send.queue is not None, "a send that waits for a connection has a queue"
            if isinstance(found, Connection):
                self._write(send, send.queue, address, found, self.clock.monotonic())
            elif isinstance(found, TransportError):
                send.lost(found)
            else:
                send.end(found)

    def _leave_line(self, lines: dict[str, dict[PendingSend, None]], key: str) -> list[PendingSend]:
        leaving = [send for send in lines.pop(key) if send in self._live]
        for send in leaving:
            send.stop_waiting()
        return leaving

    # The end of a send

    def finish(self, send: PendingSend, outcome: list[SendResult] | TxmqError | None) -> None:
        """Release the bytes of a send that has ended, and resolve its future."""
        if self._live.pop(send, self) is self:
            return  # It has ended already.
        self.bytes_in_flight -= send.size
        if self._room_line:
            self._admit()
        if not self._live and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        if outcome is None or send.future.done():
            return
        if isinstance(outcome, TxmqError):
            send.future.set_exception(outcome)
        else:
            send.future.set_result(outcome if send.envelope.ids else outcome[0])

    async def drain(self) -> None:
        """Wait until nothing is pending; each send has its deadline, so this ends."""
        while self._live:
            self._idle = self.loop.create_future()
            await self._idle

    def refuse_waiting(self) -> None:
        """Fail the calls that wait for room, because the producer closes."""
        self._is_closing = True
        line, self._room_line = self._room_line, deque()
        for _, turn in line:
            if not turn.done():
                turn.set_exception(UsageError(_UNSENT))

    async def close(self) -> None:
        """Give up the sends that are still pending."""
        for send in list(self._live):
            send.abandon()
        await self._tasks.stop()


class _Pause(NamedTuple):
    """The requests that wait before they are sent to a broker again, and until when."""

    ends: float
    sends: list[PendingSend]


class SendAttempt(NamedTuple):
    """Attempts that failed in the same way: their broker, the last error, and how many."""

    broker: str
    error: TxmqError
    times: int = 1


class PendingSend(msgspec.Struct, eq=False):
    """One request, through all its attempts.

    The connection calls it when an answer comes or fails to come.
    """

    # A Struct, because its constructor takes a fifth of the time of one written in Python.

    pending: PendingSends
    envelope: Envelope
    chosen: Queue | None
    """Its queue; ``None`` lets each attempt take the next queue in rotation."""
    retries: int
    """The number of further attempts."""
    size: int
    """The bytes that it counts as in flight."""
    future: asyncio.Future[Any]
    """Receives the result of a message, or the list of results of a batch."""
    is_nowait: bool = False
    """True for `send_nowait`: a retry goes to the same queue, and only if no answer came."""
    is_once: bool = False
    """Whether to retry only while it is certain that nothing is stored."""
    deadline: float = 0.0
    """The end of its last attempt; 0 before its first one."""
    began: float = 0.0
    """The start of this attempt."""
    queue: Queue | None = None
    """The queue of this attempt."""
    avoid: str | None = None
    """The broker of the previous attempt, which the rotation avoids."""
    has_looked_again: bool = False
    """Whether this attempt has asked for a new route."""
    is_spread: bool = False
    """Whether its next attempt could go to another broker."""
    attempts: list[SendAttempt] | None = None
    backoff: Backoff | None = None
    stored: list[SendResult] | None = None
    """The results of an attempt that stored the message, but not safely."""
    connection: Connection | None = None
    """The connection that will answer this attempt."""
    opaque: int = 0
    timer: asyncio.TimerHandle | None = None
    line: dict[PendingSend, None] | None = None

    __repr__ = object.__repr__  # A log line must not hold a message's body.

    # Waiting

    def wait(self, line: dict[PendingSend, None]) -> None:
        """Wait in line for a route or a connection, no longer than this attempt may take."""
        line[self] = None
        self.line = line
        if self.timer is None:
            now = self.pending.clock.monotonic()
            left = max(0.0, self.attempt_ends(now) - now)
            self.timer = self.pending.loop.call_later(left, self.late)

    def stop_waiting(self) -> None:
        """End the wait: the route or connection is ready, or failed."""
        self.line = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def attempt_ends(self, now: float) -> float:
        """The deadline of this attempt.

        If a later attempt can use another broker, this one gets only its share of the remaining
        time, so that a silent broker costs no more.
        """
        if not self.is_spread or self.retries <= 0 or self.is_nowait or self.is_once:
            return self.deadline
        return now + max(0.0, self.deadline - now) / (self.retries + 1)

    def late(self) -> None:
        """Fail this attempt: no broker could be reached in time."""
        self.timer = None
        if self.line is not None:
            del self.line[self]
            self.line = None
        error = RequestTimeout("no broker could be reached within the time for sending")
        error.effect = Effect.NONE  # This attempt sent nothing.
        self.lost(error)

    # Answers and failures

    def answered(self, answer: Command) -> None:
        """See :meth:`txmq.remoting.connection.Waiter.answered`."""
        self.connection = None
        queue, pending = self.queue, self.pending
        assert queue is not None, "an answered request was sent to a queue"
        try:
            ids = self.envelope.ids
            if ids:
                results = results_of(answer, queue, ids)
            else:
                results = [result_of(answer, queue, self.envelope.id)]
        except BrokerRefused as error:
            self._refused(error)
            return
        except RemoteProtocolError as error:
            pending.note_latency(queue.broker, 0.0, failed=True)
            error.effect = Effect.MAYBE
            self.end(error)
            return
        if pending.on_answer is not None:
            pending.on_answer(queue.broker, answer)
        if pending.faults is not None:
            pending.note_latency(queue.broker, pending.clock.monotonic() - self.began)
        if (
            results[0].status is not SendStatus.OK
            and pending.settings.retry_not_safe
            and not self.is_nowait
            and not self.is_once
            and self.retries > 0
        ):
            self.stored = results
            self._leave_broker()
            pending.retry_soon(self)
            return
        pending.finish(self, results)

    def failed(self, problem: TransportError) -> None:
        """See :meth:`txmq.remoting.connection.Waiter.failed`."""
        self.connection = None
        self.lost(problem)

    def lost(self, error: TransportError) -> None:
        """Handle an attempt without an answer: retry, or end."""
        self._note_attempt(error)
        if self._may_retry(error):
            if self.is_nowait:
                self.chosen = self.queue
            if isinstance(error, ConnectFailed):
                self.retries += 1  # It reached no broker, so only the deadline limits retries.
            self._retry(error)
        else:
            self.end(error)

    def _refused(self, error: BrokerRefused) -> None:
        self._note_attempt(error)
        code = error.response_code if isinstance(error, UnknownRefusal) else error.code
        if not self.is_nowait and code in RETRIED_CODES and self._may_retry(error):
            self._retry(error)
        else:
            self.end(error)

    def _may_retry(self, error: TxmqError) -> bool:
        if self.is_once and error.effect is not Effect.NONE:
            return False
        return self.retries > 0 and self.pending.clock.monotonic() < self.deadline

    def _note_attempt(self, error: TxmqError) -> None:
        broker = "" if self.queue is None else self.queue.broker
        if broker:
            self.pending.note_latency(broker, 0.0, failed=True)
        if isinstance(error, TopicNotFound):
            self.pending.session.remove(self.envelope.topic, broker)
        elif isinstance(error, ROUTE_IS_WRONG):
            self.pending.session.forget(self.envelope.topic)
        self.attempts = with_attempt(self.attempts or [], broker, error)

    def _retry(self, error: TxmqError) -> None:
        """Send it again: at once if another broker or a new route may help, else after a pause."""
        pending, backoff = self.pending, self.backoff
        is_first = backoff is None
        if backoff is None:
            entropy = pending.session.entropy
            backoff = self.backoff = Backoff(entropy, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        broker = self._leave_broker()
        may_help = is_first and self.is_spread and not self.is_nowait
        # A timeout was already a pause.
        if may_help or not error.retryable or isinstance(error, RequestTimeout):
            pending.retry_soon(self)
            return
        left_s = self.deadline - pending.clock.monotonic()
        pause_s = min(backoff.next_pause(), left_s / 2)
        if pause_s < SHORTEST_PAUSE_S or not pending.retry_later(self, broker, pause_s):
            self.end(error)

    def _leave_broker(self) -> str:
        self.retries -= 1
        self.has_looked_again = False
        if self.queue is None:
            return ""
        self.avoid = self.queue.broker
        return self.avoid

    # The end

    def end(self, error: TxmqError) -> None:
        """Fail with this error, unless an earlier attempt stored the message."""
        self.stop_waiting()
        if self.stored is not None:
            # A broker has stored the message, but not safely; a failed retry does not make it a
            # failure.
            self.pending.finish(self, self.stored)
            return
        attempts = self.attempts or []
        if not attempts or attempts[-1].error is not error:
            broker = "" if self.queue is None else self.queue.broker
            attempts = [*attempts, SendAttempt(broker, error)]
        found = join_attempts(attempts)
        # One lost connection fails many sends; each raises its own error.
        own = copy_error(found, str(found), found.effect)
        own.__cause__ = found.__cause__
        self.pending.finish(self, own)

    def abandon(self) -> None:
        """Fail because the producer closes."""
        error: TxmqError = UsageError(_UNANSWERED)
        if self.connection is not None:
            self.connection.break_off(self.opaque)
            self.connection = None
            error.effect = Effect.MAYBE
        self.end(error)

    def drop(self) -> None:
        """Ignore the answer, because the caller was cancelled. A sent message stays sent."""
        self.stop_waiting()
        if self.connection is not None:
            self.connection.break_off(self.opaque)
            self.connection = None
        self.pending.finish(self, None)


def with_attempt(attempts: list[SendAttempt], broker: str, error: TxmqError) -> list[SendAttempt]:
    """These attempts plus one at the end; attempts that failed in the same way share one entry."""
    times = 1
    others: list[SendAttempt] = []
    for attempt in attempts:
        other = attempt.error
        if (attempt.broker, type(other), other.effect) == (broker, type(error), error.effect):
            times += attempt.times
        else:
            others.append(attempt)
    return [*others, SendAttempt(broker, error, times)]


def join_attempts(attempts: list[SendAttempt]) -> TxmqError:
    """The last attempt's error, which names the earlier ones and carries their combined effect."""
    last = attempts[-1].error
    total = sum(attempt.times for attempt in attempts)
    if total == 1:
        return last
    ways = ", ".join(
        f"{attempt.broker or 'no broker'}: {type(attempt.error).__name__}"
        + (f" {attempt.times} times" if attempt.times > 1 else "")
        for attempt in attempts
    )
    text = f"{last} (the last of {total} attempts; {ways})"
    effects = {attempt.error.effect for attempt in attempts}
    if Effect.APPLIED in effects:
        effect = Effect.APPLIED
    else:
        effect = Effect.MAYBE if Effect.MAYBE in effects else Effect.NONE
    found = copy_error(last, text, effect)
    chain = found
    for attempt in reversed(attempts[:-1]):
        error = attempt.error
        chain.__cause__ = copy_error(error, str(error), error.effect)
        chain = chain.__cause__
    return found


def copy_error(error: TxmqError, text: str, effect: Effect) -> TxmqError:
    """A copy of an error with another text and effect: raising writes a traceback into an error."""
    again = type(error).__new__(type(error))
    again.__dict__.update(error.__dict__)
    again.args = (text,)
    again.effect = effect
    return again
