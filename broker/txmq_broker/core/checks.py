"""When which transaction is to be checked, and whom was asked: on monotonic time, for any number.

What comes due together lies in one bucket, so a round costs by what is due and not by what waits.
A transaction that was decided meanwhile stays in its bucket until that is emptied.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Hashable, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

from txmq.limits import CHECKS_MAX, CHECKS_PER_PRODUCER_MAX

__all__ = ["Checks", "OpenCheck"]

C = TypeVar("C", bound=Hashable)

_WIDTH_S: Final = 0.05
"""How exactly a time to check is kept."""

_AT_ONCE: Final = 4096
"""Of how many is found out in one go what becomes of them, after a restart of a million."""


_ROOMS: Final = 1 << 14
"""Among so many rooms a million keys are spread; to look for one, its room is read."""

_TIDIED: Final = 4
"""For each who leaves, so many of the line are looked at."""


class OpenCheck(NamedTuple, Generic[C]):
    """A check that is under way."""

    connection: C
    at: float


class _Line:
    """Keys that wait their turn, eight bytes each."""

    def __init__(self) -> None:
        self._keys = array("q")
        self._gone = 0

    def __len__(self) -> int:
        return len(self._keys) - self._gone

    def extend(self, keys: Iterable[int]) -> None:
        self._keys.extend(keys)

    def take(self, count: int) -> array[int]:
        taken = self._keys[self._gone : self._gone + count]
        self._gone += len(taken)
        if self._gone * 2 > len(self._keys):
            del self._keys[: self._gone]
            self._gone = 0
        return taken


class _Crowd:
    """Keys that wait their turn, each once, or leave; some twenty bytes each.

    To find one in the line would cost by how many wait: who left stays in it, and is skipped until
    the line is tidied, which goes on by a few with each who leaves.
    """

    def __init__(self) -> None:
        self._rooms: dict[int, array[int]] = {}
        self._count = 0
        self._tidy = _Line()
        """The front of the line, as far as it is tidied."""
        self._line = _Line()

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: int) -> bool:
        return key in self._rooms.get(key % _ROOMS, ())

    def add(self, key: int) -> None:
        if key not in self:
            self._rooms.setdefault(key % _ROOMS, array("q")).append(key)
            self._count += 1
            self._line.extend((key,))

    def discard(self, key: int) -> None:
        if self._left(key):
            self._tidy.extend([key for key in self._line.take(_TIDIED) if key in self])
            if not self._line:
                self._line, self._tidy = self._tidy, self._line

    def take(self, count: int) -> list[int]:
        taken: list[int] = []
        while self._count and len(taken) < count:
            some = (self._tidy or self._line).take(count - len(taken))
            taken += [key for key in some if self._left(key)]
        return taken

    def _left(self, key: int) -> bool:
        if key not in self:
            return False
        room = self._rooms[key % _ROOMS]
        room.remove(key)
        if not room:
            del self._rooms[key % _ROOMS]
        self._count -= 1
        return True


class Checks(Generic[C]):
    """The checks of one broker that wait, are due, or are under way."""

    def __init__(self) -> None:
        self._buckets: dict[int, _Line] = {}
        self._order: list[int] = []
        self._current: dict[int, int] = {}
        """For those armed anew before they came due: the only bucket that counts."""
        self._again = _Line()
        """Due though still under way; these need no room of their own."""
        self._ready = _Line()
        self._asked: dict[int, OpenCheck[C]] = {}
        self._at: dict[C, dict[int, None]] = {}
        self._stranded: dict[str, _Crowd] = {}

    # Waiting

    def arm(self, key: int, due: float) -> None:
        """Have a transaction checked at a time, and not before it."""
        if key in self._current:
            self._current[key] = math.ceil(due / _WIDTH_S)
        self.arm_all((key,), due)

    def arm_instead(self, key: int, due: float) -> None:
        """The same, in place of whatever time it was armed for before."""
        self._current[key] = -1
        self.arm(key, due)

    def forget(self, key: int) -> None:
        """A transaction was decided."""
        self._current.pop(key, None)

    def wait_behind(self, key: int) -> bool:
        """Have one that is due wait behind those that found no room; whether there are any."""
        if not self._ready:
            return False
        self._ready.extend((key,))
        return True

    def arm_all(self, keys: Iterable[int], due: float) -> None:
        """The same for many that were never armed before."""
        number = math.ceil(due / _WIDTH_S)
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = _Line()
            heapq.heappush(self._order, number)
        bucket.extend(keys)

    def next_due(self) -> float | None:
        """When the next one is due, or ``None`` where none is."""
        if self._again or (self._ready and len(self._asked) < CHECKS_MAX):
            return 0.0
        return self._order[0] * _WIDTH_S if self._order else None

    def take_due(self, now: float, count_max: int) -> list[int]:
        """The next transactions that are due, no more than may be under way."""
        left = max(count_max, _AT_ONCE)
        while left > 0 and self._order and self._order[0] * _WIDTH_S <= now:
            left -= self._empty(self._order[0], left)
        again = self._again.take(count_max)
        room = max(0, CHECKS_MAX - len(self._asked))
        return [*again, *self._ready.take(min(count_max - len(again), room))]

    def _empty(self, number: int, count: int) -> int:
        bucket, current, asked = self._buckets[number], self._current, self._asked
        keys = bucket.take(count)
        if not bucket:
            del self._buckets[number]
            heapq.heappop(self._order)
        if not current and not asked:
            self._ready.extend(keys)
            return len(keys)
        for key in keys:
            if key in current:
                if current[key] != number:
                    continue
                current[key] = -1
            (self._again if key in asked else self._ready).extend((key,))
        return len(keys)

    # Under way

    @property
    def is_busy(self) -> bool:
        """Whether more is remembered of any transaction than when it is due."""
        return bool(self._asked or self._current or self._stranded)

    @property
    def under_way(self) -> int:
        """How many producers have been asked and have not answered."""
        return len(self._asked)

    def may_ask(self, connection: C) -> bool:
        """Whether a producer has few enough questions open."""
        return len(self._at.get(connection, ())) < CHECKS_PER_PRODUCER_MAX

    def ask(self, key: int, connection: C, now: float) -> None:
        """Note that a producer was asked."""
        self._asked[key] = OpenCheck(connection, now)
        self._at.setdefault(connection, {})[key] = None

    def settle(self, key: int) -> OpenCheck[C] | None:
        """The check that was under way, which counts as over from now on."""
        asked = self._asked.pop(key, None)
        if asked is not None:
            there = self._at[asked.connection]
            del there[key]
            if not there:
                del self._at[asked.connection]
        return asked

    def lost(self, connection: C) -> list[int]:
        """Give up on a producer that is gone; returns what it was asked about."""
        keys = list(self._at.pop(connection, ()))
        for key in keys:
            del self._asked[key]
        return keys

    # Waiting for somebody to ask

    def strand(self, group: str, key: int) -> bool:
        """Keep a transaction until its group has a producer; whether it is the group's first."""
        waiting = self._stranded.get(group)
        is_first = waiting is None
        if waiting is None:
            waiting = self._stranded[group] = _Crowd()
        waiting.add(key)
        return is_first

    def unstrand(self, group: str, key: int) -> None:
        """Nobody has to be asked about a transaction any more."""
        waiting = self._stranded.get(group)
        if waiting is not None:
            waiting.discard(key)
            if not waiting:
                del self._stranded[group]

    def found(self, group: str, count_max: int = CHECKS_MAX) -> int:
        """The group has a producer with time for so many; returns how many are due because of it.

        No more than can be asked: were all of them due, most would come back here at once.
        """
        waiting = self._stranded.get(group)
        if waiting is None:
            return 0
        keys = waiting.take(count_max)
        self._ready.extend(keys)
        if not waiting:
            del self._stranded[group]
        return len(keys)

    @property
    def stranded(self) -> dict[str, int]:
        """How many wait for a producer, by group."""
        return {group: len(waiting) for group, waiting in self._stranded.items()}
