"""Deliveries that callers share until each has got through: whose turn it is, and what came of it.

Nothing here waits or calls anybody, so it serves threads and tasks alike.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from traceback import format_exception_only
from types import TracebackType
from typing import Any, Final, Self

from txmq.errors import KeyConflict, KeyInProgress, VersionGap
from txmq.message import DEAD_LETTER, Later, ReceivedMessage
from txmq.testing.entropy import SeededEntropy
from txmq.testing.killing import Killed, Point, mortal, points_of
from txmq.testing.reports import Attempted, End, Report

__all__ = ["Call", "Delivery", "Rounds"]

RETRIES_MAX: Final = 16
"""How often a delivery may fail and come again: as often as a group's messages do."""

REST_S: Final = 0.002
"""The first rest of a delivery; each further one is twice as long."""

TURN_REST_MAX_S: Final = 0.25
"""The longest rest where it is not its turn: nobody waits much longer than for the end of a lease.
"""

RETRY_REST_MAX_S: Final = 0.05
"""The longest rest after a failure: what a moment does not heal is told soon."""

LOOK_S: Final = 0.002
"""When to look again while others have all that is left."""


@dataclass(slots=True)
class Delivery:
    """A message on its way; it has one caller at a time."""

    message: Any
    key: Hashable
    number: int
    copy: int
    attempts: int = 0
    retries: int = 0
    turns: int = 0
    rested_s: float = 0.0

    def rest_s(self, end: End, patience_s: float) -> float | None:
        """When it comes again after such an end; never where there is no sense in it."""
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


class Rounds:
    """All deliveries.

    Args:
        handler: Who gets them.
        deliveries: In which order.
        seed: Decides who is killed where.
        crashes: How many are.
        patience_s: How long a delivery may rest in all because it is not its turn.
    """

    def __init__(
        self,
        handler: Callable[..., Any],
        deliveries: list[Delivery],
        *,
        seed: int,
        crashes: float,
        patience_s: float,
    ) -> None:
        self._handler = handler
        self._points = points_of(handler)
        self._seed = seed
        self._crashes = crashes
        self._patience_s = patience_s
        self._keys = tuple(dict.fromkeys(delivery.key for delivery in deliveries))
        self._ready = deque(deliveries)
        self._resting: list[tuple[float, int, Delivery]] = []
        self._at_work = 0
        self._attempts: list[Attempted] = []
        self._stuck: list[Attempted] = []
        self._problem: BaseException | None = None
        self._lock = threading.Lock()

    def take(self, caller: int) -> Call | float | None:
        """What a caller has to do: a call, or to rest so many seconds, or nothing any more."""
        with self._lock:
            if self._problem is not None:
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

    def _call(self, delivery: Delivery, caller: int) -> Call:
        named = f"{self._seed}/{delivery.number}/{delivery.copy}/{delivery.attempts}"
        chance, point = SeededEntropy(named), None
        if chance.chance(self._crashes):
            point = self._points[chance.below(len(self._points))]
        return Call(self, self._handler, delivery, caller, point)

    def ended(self, delivery: Delivery, caller: int, end: End, words: str) -> None:
        """Note what came of a call."""
        with self._lock:
            attempted = Attempted(
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
        """Deliver nothing more, for a reason that no consumer survives."""
        with self._lock:
            self._at_work -= 1
            self._problem = self._problem or error

    def report(self) -> Report:
        """What came of it all.

        Raises:
            BaseException: What no consumer survives.
        """
        if self._problem is not None:
            raise self._problem
        return Report(self._seed, self._keys, tuple(self._attempts), tuple(self._stuck))


class Call:
    """``with``: one attempt; whatever comes out of the block is noted, and goes no further."""

    def __init__(
        self,
        rounds: Rounds,
        handler: Callable[..., Any],
        delivery: Delivery,
        caller: int,
        point: Point | None,
    ) -> None:
        self._rounds = rounds
        self._handler = handler
        self._delivery = delivery
        self._caller = caller
        self._point = point
        self._end, self._words = End.ACKNOWLEDGED, ""

    @property
    def message(self) -> Any:
        """What the handler is called with."""
        message = self._delivery.message
        if isinstance(message, ReceivedMessage):
            return replace(message, attempts=self._delivery.attempts)
        return message

    def handler(self) -> Callable[..., Any]:
        """Who is called, if the caller lives to do it."""
        if self._point is Point.CALLED:
            raise Killed(Point.CALLED)
        return mortal(self._handler, self._point)

    def said(self, said: object) -> None:
        """Take what the handler has returned."""
        if self._point is Point.ENDED:
            raise Killed(Point.ENDED)
        if said is Later:
            said = Later()  # As consumers take it.
        if isinstance(said, Later):
            self._end = End.REFUSED if said.level == DEAD_LETTER else End.LATER
            self._words = said.reason

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Note how it ended."""
        if error is not None:
            if not _is_survived(error):
                self._rounds.stop(error)
                # Whoever cancels or interrupts us is told by the usual way.
                return not isinstance(error, asyncio.CancelledError)
            self._end, self._words = _judged(error)
        self._rounds.ended(self._delivery, self._caller, self._end, self._words)
        return True


def _is_survived(error: BaseException) -> bool:
    """Whether a consumer goes on after it; the end of a killed one is that of its message alone."""
    if isinstance(error, asyncio.CancelledError):
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return True  # In a thread nobody is cancelled but what the handler has waited for.
        return task is not None and not task.cancelling()
    return isinstance(error, Exception | Killed)


def _judged(error: BaseException) -> tuple[End, str]:
    words = "".join(format_exception_only(error)).strip()
    if isinstance(error, Killed):
        return End.KILLED, str(error)
    if isinstance(error, KeyInProgress | VersionGap):
        return End.LATER, words
    if isinstance(error, KeyConflict):
        return End.REFUSED, words
    return End.RAISED, words


def _rest_s(times: int) -> float:
    return REST_S * 2.0 ** min(times - 1, RETRIES_MAX)
