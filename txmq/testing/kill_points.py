"""Consumers that die in the middle of a message: the points, and a guard that meets one of them.

No process dies: an attempt is abandoned, which leaves behind what a killed process leaves, and
:class:`Killed` goes out through the handler, so that nothing after the point is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

from txmq.idempotent.guard import Attempt, Guarded, Payload

__all__ = ["Killed", "Point", "guarded_of", "mortal", "points_of"]


class Point(Enum):
    """Where a consumer dies."""

    CALLED = "before its handler was called"
    CLAIMED = "after the claim, before the function"
    """The faults P15 and P17, by where the claim is: in the database, or in Redis."""
    WORKED = "after the function, before its end was committed"
    """P15."""
    ENDED = "after its handler, before the acknowledgement"
    """P16."""


# Not an error of the program but the end of it: code that catches Exception must not survive it.
class Killed(BaseException):
    """A consumer dies, right here."""

    def __init__(self, point: Point) -> None:
        super().__init__(point.value)
        self.point = point


def guarded_of(handler: object) -> Guarded | None:
    """The function of a handler and its guard, if it has one."""
    found = getattr(handler, "__idempotent__", None)
    return found if isinstance(found, Guarded) else None


def points_of(handler: object) -> tuple[Point, ...]:
    """Where a handler can be made to die; inside only if it has a guard that can be told."""
    if guarded_of(handler) is None:
        return Point.CALLED, Point.ENDED
    return Point.CLAIMED, Point.WORKED, Point.ENDED


def mortal(handler: Callable[..., Any], point: Point | None) -> Callable[..., Any]:
    """The handler, such that it dies at a point inside; what is outside is its caller's affair."""
    guarded = guarded_of(handler)
    if guarded is None or point not in {Point.CLAIMED, Point.WORKED}:
        return handler
    return guarded.under(_MortalGuard(guarded.guard, point))


@dataclass(frozen=True, slots=True)
class _MortalGuard:
    guard: Any
    point: Point

    @property
    def is_blocking(self) -> bool:
        return bool(self.guard.is_blocking)

    @property
    def has_session(self) -> bool:
        return bool(self.guard.has_session)

    def attempt(self, key: Any, *, scope: str = "", payload: Payload = None) -> Attempt[Any]:
        return _MortalAttempt(self.guard.attempt(key, scope=scope, payload=payload), self.point)


class _MortalAttempt(Attempt[Any]):
    """Another attempt, until its point comes."""

    def __init__(self, inner: Attempt[Any], point: Point) -> None:
        super().__init__()
        self._inner = inner
        self._point = point

    @property
    def is_blocking(self) -> bool:
        return self._inner.is_blocking

    @property
    def session(self) -> Any:
        return self._inner.session

    async def begin(self) -> Self:
        await self._inner.begin()
        self.found = self._inner.found
        if self._point is Point.CLAIMED:
            await self._die()
        return self

    async def end(self, error: BaseException | None) -> None:
        # Whoever is cancelled or interrupted does not live on to be killed.
        if error is None or isinstance(error, Exception):
            await self._die()
        await self._inner.end(error)

    async def _die(self) -> None:
        killed = Killed(self._point)
        self._inner.abandon()
        await self._inner.end(killed)
        raise killed
