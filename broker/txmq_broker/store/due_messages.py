"""Delayed messages in memory: eight bytes each, so that millions may wait.

A message waits in a line, which is a queue of one of the broker's own topics. Its entry there holds
its due time, so a start can read the lines and rebuild this table. Messages leave a line in the
order of their due times, and in the order of arrival if these are equal. So if the last message
that left is known, all earlier ones have left too, and a restart is exact. That is also why a
message must not join a line that a message with a later due time has already left.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

__all__ = [
    "LINES_MAX",
    "NOWHERE",
    "Due",
    "DueMessages",
    "FoundDue",
    "LinePlace",
    "ListPlace",
    "split_where",
    "where_of",
]

_OFFSET_BITS: Final = 45
_LINE_BITS: Final = 8
_WHERE_BITS: Final = _OFFSET_BITS + _LINE_BITS

_OFFSET_MASK: Final = (1 << _OFFSET_BITS) - 1
_WHERE_MASK: Final = (1 << _WHERE_BITS) - 1
_MS: Final = 1000

_WALKED: Final = 200
"""How many seconds to try one by one for the next message before searching all of them."""
_STEP_COST: Final = 20
_SEARCHED_AT_ONCE: Final = 10
"""The cost of finding the next second, against the budget of :meth:`DueMessages.found_from`: a step
costs 20, a search of all seconds costs 1 for every 10 of them."""

LINES_MAX: Final = 1 << _LINE_BITS
"""The maximum number of lines."""


def where_of(line: int, offset: int) -> int:
    """Pack the number of a line and a place in its queue into one number."""
    return line << _OFFSET_BITS | offset


def split_where(where: int) -> tuple[int, int]:
    """Unpack the number of a line and the place in its queue."""
    return where >> _OFFSET_BITS, where & _OFFSET_MASK


class LinePlace(NamedTuple):
    """The last message that left a line: its due time and its offset."""

    due_ms: int
    offset: int


NOWHERE: Final = LinePlace(-1, -1)
"""A place before all others."""


class Due(NamedTuple):
    """A delayed message: its due time, its line, and its offset there."""

    due_ms: int
    line: int
    offset: int

    @property
    def place(self) -> LinePlace:
        """Its place in its line."""
        return LinePlace(self.due_ms, self.offset)


class ListPlace(NamedTuple):
    """A place in a list of all waiting messages: a second, and the index of a message in it."""

    second: int
    number: int


class FoundDue(NamedTuple):
    """Waiting messages, each with its place, and the place to continue at."""

    messages: list[tuple[ListPlace, Due]]
    next: ListPlace | None
    """``None`` after the last message."""


class DueMessages:
    """Every delayed message by its due time.

    The messages of one second are kept together, unsorted; they are sorted when it begins.
    """

    def __init__(self) -> None:
        self._later: dict[int, array[int]] = {}
        self._seconds: list[int] = []
        self._now: list[int] = []
        self._begun = -1
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, due_ms: int, line: int, offset: int) -> None:
        """Add a message."""
        second, ms = divmod(due_ms, _MS)
        where = where_of(line, offset)
        self._count += 1
        if self._now and second <= self._begun:
            heapq.heappush(self._now, due_ms << _WHERE_BITS | where)
            return
        bucket = self._later.get(second)
        if bucket is None:
            bucket = self._later[second] = array("q")
            heapq.heappush(self._seconds, second)
        bucket.append(ms << _WHERE_BITS | where)

    def next_ms(self) -> int | None:
        """Return the time at which to look again: the first due time, or up to a second before."""
        if self._now:
            return self._now[0] >> _WHERE_BITS
        return self._seconds[0] * _MS if self._seconds else None

    def first(self, now_ms: int) -> Due | None:
        """The first message that is due now, or ``None``."""
        if not self._now:
            # A later second begins only when the current one has no messages left.
            if not self._seconds or self._seconds[0] * _MS > now_ms:
                return None
            self._begin(heapq.heappop(self._seconds))
        value = self._now[0]
        due_ms = value >> _WHERE_BITS
        if due_ms > now_ms:
            return None
        where = value & _WHERE_MASK
        return Due(due_ms, *split_where(where))

    def _begin(self, second: int) -> None:
        # Both forms have the time above the bits of the place, so adding is enough.
        base = second * _MS << _WHERE_BITS
        self._now = [base + value for value in self._later.pop(second)]
        heapq.heapify(self._now)
        self._begun = second

    def found_from(
        self, start: ListPlace, is_wanted: Callable[[int], bool], count: int, budget: int
    ) -> FoundDue:
        """Some waiting messages, in order of the seconds in which they are due.

        Within a second they come in order of arrival, because sorting a second with a million
        messages would hold up the broker.

        Args:
            start: The place to begin at.
            is_wanted: Returns whether to include the messages of a line, given its number.
            count: The maximum number of messages.
            budget: How many messages to examine; finding each next second also uses up some of it.
        """
        found: list[tuple[ListPlace, Due]] = []
        second, index = start
        while budget > 0:
            at, cost = self._second_from(second)
            if at is None:
                return FoundDue(found, None)
            budget -= cost
            if at != second:
                index = 0
            is_now = bool(self._now) and at == self._begun
            bucket: Sequence[int] = self._now if is_now else self._later[at]
            base = 0 if is_now else at * _MS << _WHERE_BITS
            stop = min(len(bucket), index + max(1, budget))
            for place in range(index, stop):
                value = base + bucket[place]
                line, offset = split_where(value & _WHERE_MASK)
                if not is_wanted(line):
                    continue
                if len(found) == count:
                    return FoundDue(found, ListPlace(at, place))
                found.append((ListPlace(at, place), Due(value >> _WHERE_BITS, line, offset)))
            if stop < len(bucket):
                return FoundDue(found, ListPlace(at, stop))
            budget -= stop - index
            second, index = at + 1, 0
        return FoundDue(found, ListPlace(second, index))

    def _second_from(self, second: int) -> tuple[int | None, int]:
        """The first second from this one on that has messages, and the cost of finding it."""
        if self._now and second <= self._begun:
            return self._begun, _STEP_COST
        if not self._seconds or second <= self._seconds[0]:
            return (self._seconds[0] if self._seconds else None), _STEP_COST
        for near in range(second, second + _WALKED):
            if near in self._later:
                return near, _STEP_COST
        cost = len(self._later) // _SEARCHED_AT_ONCE
        return min((one for one in self._later if one >= second), default=None), cost

    def drop_first(self) -> None:
        """Remove the message of :meth:`first`."""
        heapq.heappop(self._now)
        self._count -= 1
