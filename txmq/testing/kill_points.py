"""The points at which consumers die while they handle a message, and a guard that dies at one.

No process dies: the attempt is abandoned, which leaves the same state as a killed process, and
:class:`Killed` is raised through the handler, so that no code after the point runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import MethodType
from typing import Any, Self

from txmq.idempotent.guard import Attempt, Guarded, Payload

__all__ = ["Killed", "Point", "guarded_of", "mortal", "points_of"]


class Point(Enum):
    """A point at which a consumer dies."""

    CALLED = "before its handler was called"
    CLAIMED = "after the claim, before the function"
    """The faults P15 and P17: P15 if the claim is in the database, P17 if it is in Redis."""
    WORKED = "after the function, before its end was committed"
    """P15."""
    ENDED = "after its handler, before the acknowledgement"
    """P16."""


# Derives from BaseException, because code that catches Exception must not survive it.
class Killed(BaseException):
    """A consumer dies at this point."""

    def __init__(self, point: Point) -> None:
        super().__init__(point.value)
        self.point = point


def guarded_of(handler: object) -> Guarded | None:
    """A handler's function and guard, if the handler has a guard."""
    found = getattr(handler, "__idempotent__", None)
    return found if isinstance(found, Guarded) else None


def points_of(handler: object) -> tuple[Point, ...]:
    """The points at which a handler can die; inside it only if it has a guard."""
    if guarded_of(handler) is None:
        return Point.CALLED, Point.ENDED
    return Point.CLAIMED, Point.WORKED, Point.ENDED


def mortal(handler: Callable[..., Any], point: Point | None) -> Callable[..., Any]:
    """The handler, made to die at a point inside it; the caller handles points outside."""
    guarded = guarded_of(handler)
    if guarded is None or point not in {Point.CLAIMED, Point.WORKED}:
        return handler
    dying = guarded.under(_MortalGuard(guarded.guard, point))
    owner = getattr(handler, "__self__", None)
    return MethodType(dying, owner) if guarded.is_method and owner is not None else dying


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
    """Wraps an attempt, and dies at its point."""

    def __init__(self, inner: Attempt[Any], point: Point) -> None:
        super().__init__()
        self._inner = inner
        self._point = point
        self.is_blocking = inner.is_blocking

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
        # A cancelled or interrupted attempt ends before it can be killed.
        if error is None or isinstance(error, Exception):
            await self._die()
        await self._inner.end(error)

    async def _die(self) -> None:
        killed = Killed(self._point)
        self._inner.abandon()
        await self._inner.end(killed)
        raise killed
