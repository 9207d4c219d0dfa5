"""Pulls that found no message and wait for one."""

from __future__ import annotations

import heapq
from typing import Final, Generic, TypeVar

from txmq.limits import HELD_PULLS_MAX

__all__ = ["HeldPulls"]

P = TypeVar("P")

_STALE_MAX: Final = 1024


class HeldPulls(Generic[P]):
    """Held pulls by queue and by deadline.

    Attributes:
        held: The queue and the pull, by number.
    """

    def __init__(self, limit: int = HELD_PULLS_MAX) -> None:
        self._limit = limit
        self.held: dict[int, tuple[tuple[str, int], P]] = {}
        self._by_queue: dict[tuple[str, int], dict[int, None]] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._next = 0

    @property
    def is_full(self) -> bool:
        """True if the limit is reached; a further pull is answered at once."""
        return len(self.held) >= self._limit

    def hold(self, topic: str, queue: int, pull: P, deadline: float) -> None:
        """Hold a pull until its queue grows or its deadline passes."""
        number = self._next
        self._next += 1
        key = (topic, queue)
        self.held[number] = (key, pull)
        self._by_queue.setdefault(key, {})[number] = None
        heapq.heappush(self._deadlines, (deadline, number))
        if len(self._deadlines) > 2 * len(self.held) + _STALE_MAX:
            # Woken pulls leave stale deadlines in the heap.
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self.held]
            heapq.heapify(self._deadlines)

    def wake(self, topic: str, queue: int) -> list[P]:
        """Remove and return the pulls of a queue, oldest first."""
        numbers = self._by_queue.pop((topic, queue), None)
        if numbers is None:
            return []
        return [self.held.pop(number)[1] for number in numbers]

    def queues(self) -> list[tuple[str, int]]:
        """The queues at which pulls wait."""
        return list(self._by_queue)

    def expired(self, now: float) -> list[P]:
        """Remove and return the pulls whose deadline has passed, earliest first."""
        over: list[P] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            number = heapq.heappop(self._deadlines)[1]
            held = self.held.pop(number, None)
            if held is not None:
                self._forget(held[0], number)
                over.append(held[1])
        return over

    def release_all(self) -> list[P]:
        """Remove and return all pulls."""
        held = [pull for _, pull in self.held.values()]
        self.held.clear()
        self._by_queue.clear()
        self._deadlines.clear()
        return held

    def next_deadline(self) -> float | None:
        """The earliest deadline, or ``None`` without held pulls."""
        while self._deadlines and self._deadlines[0][1] not in self.held:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _forget(self, key: tuple[str, int], number: int) -> None:
        numbers = self._by_queue[key]
        del numbers[number]
        if not numbers:
            del self._by_queue[key]
