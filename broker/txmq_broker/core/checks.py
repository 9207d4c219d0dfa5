"""The schedule of transaction checks, in monotonic time, for any number of transactions.

Transactions that come due together share a bucket, so a round costs only what is due. A transaction
that was decided meanwhile stays in its bucket until the bucket is emptied.
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
"""The resolution of due times."""

_AT_ONCE: Final = 4096
"""Keys that one call takes from the buckets; bounds the time after a restart with a million."""


_CELLS: Final = 1 << 14
"""Cells of the hash table of waiting keys; a look-up reads one cell."""

_TIDIED: Final = 4
"""Keys of the queue that each removal tidies."""


class OpenCheck(NamedTuple, Generic[C]):
    """A check that was sent and is not answered."""

    connection: C
    at: float


class _KeyQueue:
    """A first-in-first-out queue of keys, eight bytes each.

    Attributes:
        keys: The keys, after some that were taken; empty once all were taken.
    """

    def __init__(self) -> None:
        self.keys = array("q")
        self._gone = 0

    def take(self, count: int) -> array[int]:
        taken = self.keys[self._gone : self._gone + count]
        self._gone += len(taken)
        if self._gone * 2 > len(self.keys):
            del self.keys[: self._gone]
            self._gone = 0
        return taken


class _KeySet:
    """A first-in-first-out queue of distinct keys with removal; some twenty bytes each.

    Finding a key in the queue would cost its length. A removed key stays in the queue and is
    skipped; each removal also tidies a few keys of the queue.
    """

    def __init__(self) -> None:
        self._cells: dict[int, array[int]] = {}
        self._count = 0
        self._tidy = _KeyQueue()
        """The tidied front of the queue."""
        self._queue = _KeyQueue()

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: int) -> bool:
        return key in self._cells.get(key % _CELLS, ())

    def add(self, key: int) -> None:
        if key not in self:
            self._cells.setdefault(key % _CELLS, array("q")).append(key)
            self._count += 1
            self._queue.keys.append(key)

    def discard(self, key: int) -> None:
        if self._left(key):
            self._tidy.keys.extend([key for key in self._queue.take(_TIDIED) if key in self])
            if not self._queue.keys:
                self._queue, self._tidy = self._tidy, self._queue

    def take(self, count: int) -> list[int]:
        taken: list[int] = []
        while self._count and len(taken) < count:
            some = (self._tidy if self._tidy.keys else self._queue).take(count - len(taken))
            taken += [key for key in some if self._left(key)]
        return taken

    def _left(self, key: int) -> bool:
        if key not in self:
            return False
        cell = self._cells[key % _CELLS]
        cell.remove(key)
        if not cell:
            del self._cells[key % _CELLS]
        self._count -= 1
        return True


class Checks(Generic[C]):
    """The checks of one broker: waiting, due, or open.

    Attributes:
        asked: The open checks.
        current: The valid bucket of transactions that were rescheduled before they came due.
        stranded: The transactions that wait for a producer, by group.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, _KeyQueue] = {}
        self._order: list[int] = []
        self.current: dict[int, int] = {}
        self._again = _KeyQueue()
        """Due again while their check is still open; they need no further slot."""
        self._ready = _KeyQueue()
        self.asked: dict[int, OpenCheck[C]] = {}
        self._at: dict[C, dict[int, None]] = {}
        self.stranded: dict[str, _KeySet] = {}

    # Waiting

    def arm(self, key: int, due: float) -> bool:
        """Schedule a check, not before a time; returns true like :meth:`arm_all`."""
        if key in self.current:
            self.current[key] = math.ceil(due / _WIDTH_S)
        return self.arm_all((key,), due)

    def arm_instead(self, key: int, due: float) -> None:
        """Schedule a check and cancel any earlier schedule of it."""
        self.current[key] = -1
        self.arm(key, due)

    def forget(self, key: int) -> None:
        """Forget the schedule of a decided transaction."""
        self.current.pop(key, None)

    def wait_behind(self, key: int) -> bool:
        """Queue a due transaction behind those without a free slot; false if there are none."""
        if not self._ready.keys:
            return False
        self._ready.keys.append(key)
        return True

    def arm_all(self, keys: Iterable[int], due: float) -> bool:
        """Schedule checks of transactions that were never scheduled before.

        Returns:
            True if the time of the next check has changed.
        """
        number = math.ceil(due / _WIDTH_S)
        bucket = self._buckets.get(number)
        if bucket is not None:
            bucket.keys.extend(keys)
            return False
        bucket = self._buckets[number] = _KeyQueue()
        bucket.keys.extend(keys)
        heapq.heappush(self._order, number)
        return self._order[0] == number

    def next_due(self) -> float | None:
        """The time of the next due check, or ``None``."""
        if self._again.keys or (self._ready.keys and len(self.asked) < CHECKS_MAX):
            return 0.0
        return self._order[0] * _WIDTH_S if self._order else None

    def take_due(self, now: float, count_max: int) -> list[int]:
        """The next due transactions, as many as have free slots."""
        left = max(count_max, _AT_ONCE)
        while left > 0 and self._order and self._order[0] * _WIDTH_S <= now:
            left -= self._empty(self._order[0], left)
        again = self._again.take(count_max)
        free = max(0, CHECKS_MAX - len(self.asked))
        return [*again, *self._ready.take(min(count_max - len(again), free))]

    def _empty(self, number: int, count: int) -> int:
        bucket, current, asked = self._buckets[number], self.current, self.asked
        keys = bucket.take(count)
        if not bucket.keys:
            del self._buckets[number]
            heapq.heappop(self._order)
        if not current and not asked:
            self._ready.keys.extend(keys)
            return len(keys)
        for key in keys:
            if key in current:
                if current[key] != number:
                    continue
                current[key] = -1
            (self._again if key in asked else self._ready).keys.append(key)
        return len(keys)

    # Open checks

    def may_ask(self, connection: C) -> bool:
        """Return true if a producer has room for one more open check."""
        return len(self._at.get(connection, ())) < CHECKS_PER_PRODUCER_MAX

    def ask(self, key: int, connection: C, now: float) -> None:
        """Record a check sent to a producer."""
        self.asked[key] = OpenCheck(connection, now)
        self._at.setdefault(connection, {})[key] = None

    def settle(self, key: int) -> OpenCheck[C] | None:
        """End a transaction's open check and return it."""
        asked = self.asked.pop(key, None)
        if asked is not None:
            there = self._at[asked.connection]
            del there[key]
            if not there:
                del self._at[asked.connection]
        return asked

    def lost(self, connection: C) -> list[int]:
        """End all open checks at a lost connection; returns their keys."""
        keys = list(self._at.pop(connection, ()))
        for key in keys:
            del self.asked[key]
        return keys

    # Waiting for a producer

    def strand(self, group: str, key: int) -> bool:
        """Keep a transaction until its group has a producer; true if it is the group's first."""
        waiting = self.stranded.get(group)
        is_first = waiting is None
        if waiting is None:
            waiting = self.stranded[group] = _KeySet()
        waiting.add(key)
        return is_first

    def unstrand(self, group: str, key: int) -> None:
        """Stop waiting for a producer to check a transaction."""
        waiting = self.stranded.get(group)
        if waiting is not None:
            waiting.discard(key)
            if not waiting:
                del self.stranded[group]

    def found(self, group: str, count_max: int = CHECKS_MAX) -> int:
        """Make stranded checks due, because a producer has room for them; returns how many.

        ``count_max`` is that room: further checks would come back here at once.
        """
        waiting = self.stranded.get(group)
        if waiting is None:
            return 0
        keys = waiting.take(count_max)
        self._ready.keys.extend(keys)
        if not waiting:
            del self.stranded[group]
        return len(keys)
