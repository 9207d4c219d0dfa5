"""The deliveries that callers share until each has succeeded: the order, and the ends of attempts.

This module neither waits nor calls handlers, so threads and tasks can use it alike.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from traceback import format_exception_only
from types import TracebackType
from typing import Any, Final, Self

from txmq.client.consume.handler_arguments import arguments_of
from txmq.errors import KeyConflict, KeyInProgress, PayloadInvalid, VersionGap
from txmq.message import DEAD_LETTER, Later, ReceivedMessage
from txmq.testing.entropy import SeededEntropy
from txmq.testing.kill_points import Killed, Point, mortal, points_of
from txmq.testing.reports import DeliveryAttempt, End, Report

__all__ = ["Call", "Rounds", "ScheduledDelivery", "argument_maker"]

RETRIES_MAX: Final = 16
"""The maximum number of repeats of a failed delivery, as for a group's messages."""

REST_S: Final = 0.002
"""The first rest of a delivery; each further one is twice as long."""

TURN_REST_MAX_S: Final = 0.25
"""The longest rest of a delivery that waits for its turn: a little longer than a lease."""

RETRY_REST_MAX_S: Final = 0.05
"""The longest rest after a failure: an error that persists is reported soon."""

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
        """The rest after such an end; ``None`` if it does not come again."""
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
    """How a handler is called with a message: as by a consumer, or with another value as it is."""
    of_message = None
    if any(isinstance(message, ReceivedMessage) for message in messages):
        of_message = arguments_of(handler)

    def make(message: Any) -> tuple[object, ...]:
        if of_message is None or not isinstance(message, ReceivedMessage):
            return (message,)
        return of_message(message)

    return make


class Rounds:
    """All deliveries.

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
    """``with``: one attempt; an error of the block is recorded, and not raised."""

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
        """The handler to call, unless the caller dies before."""
        if self._point is Point.CALLED:
            raise Killed(Point.CALLED)
        return mortal(self._handler, self._point)

    def returned(self, result: object) -> None:
        """Take the result of the handler."""
        if self._point is Point.ENDED:
            raise Killed(Point.ENDED)
        if result is Later:
            result = Later()  # As consumers take it.
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
                # The cancelled task itself raises CancelledError on.
                return not isinstance(error, asyncio.CancelledError)
            self._end, self._words = _end_of(error)
        self._rounds.ended(self._delivery, self._caller, self._end, self._words)
        return True


def _is_survived(error: BaseException) -> bool:
    """True if a consumer survives an error; a killed one ends only this delivery."""
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
