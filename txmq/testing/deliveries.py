"""Tests for handlers: each message arrives several times, out of order and concurrently, and
consumers die halfway.

A test of a handler and its database::

    from txmq.testing import Deliveries, received

    def test_an_order_is_billed_once():
        orders = [received("Orders", b"tea", key=f"order-{number}") for number in range(100)]
        report = Deliveries(orders, times=5, seed=7).run(bill)
        report.see_once(bills_by_order())

Where a handler has a guard (:func:`txmq.idempotent.guard.idempotent`), consumers die inside it too:
between the claim and the function, and between the function and the commit. This skips further
decorators around the guard, so pass the function as ``idempotent`` returned it.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from traceback import format_exception_only
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from txmq.client.consume.handler_arguments import arguments_of
from txmq.errors import (
    ConfigError,
    KeyConflict,
    KeyInProgress,
    PayloadInvalid,
    UsageError,
    VersionGap,
)
from txmq.message import DEAD_LETTER, Later, LogPosition, Queue, QueueOffset, ReceivedMessage
from txmq.runtime.signatures import is_async
from txmq.testing.entropy import SeededEntropy
from txmq.testing.kill_points import Killed, Point, guarded_of, mortal, points_of
from txmq.testing.reports import DeliveryAttempt, End, Report

__all__ = [
    "Call",
    "Deliveries",
    "DeliveryAttempt",
    "End",
    "Killed",
    "Point",
    "Report",
    "Rounds",
    "ScheduledDelivery",
    "argument_maker",
    "received",
]

M = TypeVar("M")

CRASHES_MAX: Final = 0.9
"""With a larger share a message could be retried forever."""

_TOGETHER: Final = 0.5
"""The share of a message's deliveries that are adjacent, so that callers get them concurrently."""


def received(
    topic: str, body: bytes, key: str = "", *, tags: str = "", **properties: str
) -> ReceivedMessage:
    """A message as a handler receives it; the same arguments make the same message."""
    head = "\0".join([topic, key, tags, *(f"{name}={properties[name]}" for name in properties)])
    digest = blake2b(body, digest_size=16, key=blake2b(head.encode()).digest())
    message_id = digest.hexdigest().upper()
    return ReceivedMessage(
        topic=topic,
        body=body,
        tags=tags,
        keys=(key,) if key else (),
        properties=properties,
        queue=Queue(topic, "test", 0),
        offset=QueueOffset(0),
        position=LogPosition(0),
        id=message_id,
        offset_id=message_id,
        born_ms=0,
        stored_ms=0,
        attempts=0,
    )


class Deliveries(Generic[M]):
    """Delivers every message several times, in random order, to several concurrent callers.

    A delivery is over when the handler has returned and its caller has survived. If the caller
    died, or the handler raised or returned :class:`txmq.Later`, the message comes again after
    others, with ``attempts`` counted up. If another caller works on its key, or an earlier version
    is missing, the delivery waits a little longer each time. After 16 failures it counts as stuck,
    because a consumer would give up.

    The seed decides the order of messages and where callers die. Threads and databases add their
    own timing, so a repeated run may differ in detail.

    Args:
        messages: The messages to deliver, see :func:`received`, or other arguments of your
            function.
        times: The number of deliveries of each message.
        seed: Decides all random choices.
        callers: The number of concurrent callers.
        crashes: The share of attempts in which the caller dies, from 0 to 0.9.
        patience_s: The total time that a delivery may wait for its turn. If your guard has leases,
            it must be longer than the lease of a consumer that died.
        key: Returns the key that must have exactly one effect; by default the key of the handler's
            guard, or the message's ``key`` without a guard.

    Raises:
        ConfigError: There is nothing to deliver, or a number is out of range.
    """

    def __init__(
        self,
        messages: Iterable[M],
        *,
        times: int = 5,
        seed: int = 0,
        callers: int = 8,
        crashes: float = 0.2,
        patience_s: float = 45.0,
        key: Callable[[M], Hashable] | None = None,
    ) -> None:
        self._messages = list(messages)
        self._times = times
        self._seed = seed
        self._callers = callers
        self._crashes = crashes
        self._patience_s = patience_s
        self._key = key
        if not self._messages or times < 1 or callers < 1:
            raise ConfigError("give at least one message, and at least 1 for times and callers")
        if not 0 <= crashes <= CRASHES_MAX:
            raise ConfigError(f"crashes is a share from 0 to {CRASHES_MAX}, not {crashes}")

    def run(
        self, handler: Callable[[M], object], *, pause: Callable[[float], object] = time.sleep
    ) -> Report:
        """Deliver to a blocking function, with threads.

        Args:
            handler: The function.
            pause: Called with seconds when a caller must wait.

        Returns:
            The report, whose methods check the effects.

        Raises:
            UsageError: It is an async function.
            BaseException: The handler raised an error that no consumer survives.
        """
        if is_async(handler):
            raise UsageError("the handler is an async function; use run_async()")
        rounds = self._rounds(handler)

        def call(caller: int) -> None:
            while (found := rounds.take(caller)) is not None:
                if not isinstance(found, Call):
                    pause(found)
                    continue
                with found:
                    found.returned(found.handler()(*found.arguments))

        with ThreadPoolExecutor(self._callers, "caller") as threads:
            list(threads.map(call, range(1, self._callers + 1)))
        return rounds.report()

    async def run_async(
        self,
        handler: Callable[[M], Awaitable[object]],
        *,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> Report:
        """Deliver to an async function, with tasks.

        Raises:
            UsageError: It is a blocking function.
            BaseException: The handler raised an error that no consumer survives.
        """
        if not is_async(handler):
            raise UsageError("the handler is a blocking function; use run()")
        rounds = self._rounds(handler)

        async def call(caller: int) -> None:
            while (found := rounds.take(caller)) is not None:
                if not isinstance(found, Call):
                    await pause(found)
                    continue
                with found:
                    found.returned(await found.handler()(*found.arguments))

        async with asyncio.TaskGroup() as callers:
            for caller in range(1, self._callers + 1):
                callers.create_task(call(caller))
        return rounds.report()

    def _rounds(self, handler: Callable[[M], object]) -> Rounds:
        return Rounds(
            handler,
            self._shuffle(handler),
            seed=self._seed,
            crashes=self._crashes,
            patience_s=self._patience_s,
        )

    def _shuffle(self, handler: Callable[[M], object]) -> list[ScheduledDelivery]:
        """All deliveries in order: some of a message's deliveries are adjacent, the others
        anywhere.
        """
        key = self._key or _key_of(handler, argument_maker(handler, self._messages))
        chance = SeededEntropy(self._seed).fork("order")
        placed: list[tuple[float, ScheduledDelivery]] = []
        for number, message in enumerate(self._messages):
            home, of = chance.fraction(), key(message)
            for copy in range(1, self._times + 1):
                place = home if chance.chance(_TOGETHER) else chance.fraction()
                placed.append((place, ScheduledDelivery(message, of, number, copy)))
        placed.sort(key=lambda pair: pair[0])
        return [delivery for _, delivery in placed]


def _key_of(
    handler: object, arguments: Callable[[Any], tuple[object, ...]]
) -> Callable[[Any], Hashable]:
    guarded = guarded_of(handler)

    def key(message: Any) -> Hashable:
        with suppress(PayloadInvalid):
            if guarded is not None:
                found: Hashable = guarded.key(*arguments(message))
                return found
        own: Hashable = getattr(message, "key", message)
        return own

    return key


RETRIES_MAX: Final = 16
"""The maximum number of repeats of a failed delivery, as for a group's messages."""

REST_S: Final = 0.002
"""The first rest of a delivery; each further one is twice as long."""

TURN_REST_MAX_S: Final = 0.25
"""The longest rest of a delivery that waits for its turn: a little longer than a lease."""

RETRY_REST_MAX_S: Final = 0.05
"""The longest rest after a failure; short, so that a persistent error is reported soon."""

LOOK_S: Final = 0.002
"""The pause while other callers have all remaining deliveries."""


@dataclass(slots=True)
class ScheduledDelivery:
    """A delivery of a message; it has one caller at a time."""

    message: Any
    key: Hashable
    number: int
    copy: int
    attempts: int = 0
    retries: int = 0
    turns: int = 0
    rested_s: float = 0.0

    def rest_s(self, end: End, patience_s: float) -> float | None:
        """The rest after an attempt with this end; ``None`` if the message does not come again."""
        if end is End.KILLED:
            return 0.0
        if end is End.RAISED:
            self.retries += 1
            rest_s = min(_rest_s(self.retries), RETRY_REST_MAX_S)
            return None if self.retries > RETRIES_MAX else rest_s
        if end is not End.LATER or self.rested_s >= patience_s:
            return None
        self.turns += 1
        rest_s = min(_rest_s(self.turns), TURN_REST_MAX_S, patience_s - self.rested_s)
        self.rested_s += rest_s
        return rest_s


def argument_maker(
    handler: Callable[..., Any], messages: Sequence[Any]
) -> Callable[[Any], tuple[object, ...]]:
    """Make a function that returns a handler's arguments: those that a consumer passes for a
    message, or any other value unchanged.
    """
    of_message = None
    if any(isinstance(message, ReceivedMessage) for message in messages):
        of_message = arguments_of(handler)

    def make(message: Any) -> tuple[object, ...]:
        if of_message is None or not isinstance(message, ReceivedMessage):
            return (message,)
        return of_message(message)

    return make


class Rounds:
    """All deliveries of a run.

    Args:
        handler: Receives the messages.
        deliveries: The deliveries in their order.
        seed: Decides which callers are killed, and where.
        crashes: The share of attempts that are killed.
        patience_s: The total time that a delivery may wait for its turn.
    """

    def __init__(
        self,
        handler: Callable[..., Any],
        deliveries: list[ScheduledDelivery],
        *,
        seed: int,
        crashes: float,
        patience_s: float,
    ) -> None:
        self._handler = handler
        self._points = points_of(handler)
        self._arguments = argument_maker(handler, [delivery.message for delivery in deliveries])
        self._seed = seed
        self._crashes = crashes
        self._patience_s = patience_s
        self._keys = tuple(dict.fromkeys(delivery.key for delivery in deliveries))
        self._ready = deque(deliveries)
        self._resting: list[tuple[float, int, ScheduledDelivery]] = []
        self._at_work = 0
        self._attempts: list[DeliveryAttempt] = []
        self._stuck: list[DeliveryAttempt] = []
        self._fatal: BaseException | None = None
        self._lock = threading.Lock()

    def take(self, caller: int) -> Call | float | None:
        """The next work of a caller: a call, or the seconds to rest, or None if all is done."""
        with self._lock:
            if self._fatal is not None:
                return None
            now = time.monotonic()
            while self._resting and self._resting[0][0] <= now:
                self._ready.append(heapq.heappop(self._resting)[2])
            if self._ready:
                self._at_work += 1
                return self._call(self._ready.popleft(), caller)
            if self._resting:
                return self._resting[0][0] - now
            return LOOK_S if self._at_work else None

    def _call(self, delivery: ScheduledDelivery, caller: int) -> Call:
        named = f"{self._seed}/{delivery.number}/{delivery.copy}/{delivery.attempts}"
        chance, point = SeededEntropy(named), None
        if chance.chance(self._crashes):
            point = self._points[chance.below(len(self._points))]
        return Call(self, self._handler, self._arguments, delivery, caller, point)

    def ended(self, delivery: ScheduledDelivery, caller: int, end: End, words: str) -> None:
        """Record the end of a call."""
        with self._lock:
            attempted = DeliveryAttempt(
                delivery.key, delivery.number, delivery.copy, delivery.attempts, caller, end, words
            )
            self._attempts.append(attempted)
            self._at_work -= 1
            delivery.attempts += 1
            rest_s = delivery.rest_s(end, self._patience_s)
            if rest_s is not None:
                due = time.monotonic() + rest_s, len(self._attempts), delivery
                heapq.heappush(self._resting, due)
            elif end in {End.LATER, End.RAISED}:
                self._stuck.append(attempted)

    def stop(self, error: BaseException) -> None:
        """Stop all deliveries because of an error that no consumer survives."""
        with self._lock:
            self._at_work -= 1
            self._fatal = self._fatal or error

    def report(self) -> Report:
        """The report of all deliveries.

        Raises:
            BaseException: The error that no consumer survives.
        """
        if self._fatal is not None:
            raise self._fatal
        return Report(self._seed, self._keys, tuple(self._attempts), tuple(self._stuck))


class Call:
    """One attempt, as a ``with`` block whose errors are recorded and not raised."""

    def __init__(
        self,
        rounds: Rounds,
        handler: Callable[..., Any],
        arguments: Callable[[Any], tuple[object, ...]],
        delivery: ScheduledDelivery,
        caller: int,
        point: Point | None,
    ) -> None:
        self._rounds = rounds
        self._handler = handler
        self._arguments = arguments
        self._delivery = delivery
        self._caller = caller
        self._point = point
        self._end, self._words = End.ACKNOWLEDGED, ""

    @property
    def arguments(self) -> tuple[object, ...]:
        """The arguments of the handler.

        Raises:
            PayloadInvalid: The body does not fit the type that the handler declares.
        """
        message = self._delivery.message
        if isinstance(message, ReceivedMessage):
            message = replace(message, attempts=self._delivery.attempts)
        return self._arguments(message)

    def handler(self) -> Callable[..., Any]:
        """The handler to call, unless the caller dies first."""
        if self._point is Point.CALLED:
            raise Killed(Point.CALLED)
        return mortal(self._handler, self._point)

    def returned(self, result: object) -> None:
        """Take the result of the handler."""
        if self._point is Point.ENDED:
            raise Killed(Point.ENDED)
        if result is Later:
            result = Later()  # Consumers accept the class as well.
        if isinstance(result, Later):
            self._end = End.REFUSED if result.level == DEAD_LETTER else End.LATER
            self._words = result.reason

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Record its end."""
        if error is not None:
            if not _is_survived(error):
                self._rounds.stop(error)
                # A cancelled task must raise CancelledError itself.
                return not isinstance(error, asyncio.CancelledError)
            self._end, self._words = _end_of(error)
        self._rounds.ended(self._delivery, self._caller, self._end, self._words)
        return True


def _is_survived(error: BaseException) -> bool:
    """True if the run survives an error; a killed consumer ends only this delivery."""
    if isinstance(error, asyncio.CancelledError):
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return True  # In a thread, only work that the handler waited for was cancelled.
        return task is not None and not task.cancelling()
    return isinstance(error, Exception | Killed)


def _end_of(error: BaseException) -> tuple[End, str]:
    words = "".join(format_exception_only(error)).strip()
    if isinstance(error, Killed):
        return End.KILLED, str(error)
    if isinstance(error, KeyInProgress | VersionGap):
        return End.LATER, words
    if isinstance(error, KeyConflict | PayloadInvalid):
        return End.REFUSED, words
    return End.RAISED, words


def _rest_s(times: int) -> float:
    return REST_S * 2.0 ** min(times - 1, RETRIES_MAX)
