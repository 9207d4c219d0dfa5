"""The unanswered requests of one connection. Pure."""

from __future__ import annotations

import heapq
from typing import Final, Generic, TypeVar

__all__ = ["Exchange"]

W = TypeVar("W")

_OPAQUE_MAX: Final = 2**31 - 1
_STALE_MAX: Final = 256
"""Deadlines of answered requests that may pile up before they are removed."""


class Exchange(Generic[W]):
    """The numbers, waiters and deadlines of the requests."""

    def __init__(self) -> None:
        self.waiting: dict[int, W] = {}
        """The waiters by number, in the order of their requests."""
        self._deadlines: list[tuple[float, int]] = []
        self._next = 0

    def number(self) -> int:
        """A number without a waiter; one-way requests carry one too."""
        opaque = self._next
        while opaque in self.waiting:
            opaque = (opaque + 1) & _OPAQUE_MAX
        self._next = (opaque + 1) & _OPAQUE_MAX
        return opaque

    def add(self, opaque: int, waiter: W, deadline: float) -> None:
        """Add a waiter under a :meth:`number` that was just assigned."""
        self.waiting[opaque] = waiter
        heapq.heappush(self._deadlines, (deadline, opaque))
        if len(self._deadlines) > 2 * len(self.waiting) + _STALE_MAX:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self.waiting]
            heapq.heapify(self._deadlines)

    def expired(self, now: float) -> list[W]:
        """Remove and return the waiters whose deadline has passed, earliest first."""
        late: list[W] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            waiter = self.waiting.pop(heapq.heappop(self._deadlines)[1], None)
            if waiter is not None:
                late.append(waiter)
        return late

    def next_deadline(self) -> float | None:
        """The earliest deadline, or ``None`` without waiters."""
        while self._deadlines and self._deadlines[0][1] not in self.waiting:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def close(self) -> list[W]:
        """Remove and return all waiters, in the order of their requests."""
        waiters = list(self.waiting.values())
        self.waiting.clear()
        self._deadlines.clear()
        return waiters
