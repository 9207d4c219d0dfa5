"""Delayed messages in memory: eight bytes for each message, so that millions may wait.

A message waits in a line, which is a queue of one of the broker's own topics. Its entry there holds
its due time, so a start can read the lines and rebuild this table. Messages leave a line in the
order of their due times; equal ones leave in the order of arrival. So the place of the last message
that left shows that all earlier ones have left too, which makes a restart exact. For the same
reason a message must not join a line from which a later one has already left.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

__all__ = ["LINES_MAX", "NOWHERE", "Due", "DueMessages", "LinePlace", "split_where", "where_of"]

_OFFSET_BITS: Final = 45
_LINE_BITS: Final = 8
_WHERE_BITS: Final = _OFFSET_BITS + _LINE_BITS

_OFFSET_MASK: Final = (1 << _OFFSET_BITS) - 1
_WHERE_MASK: Final = (1 << _WHERE_BITS) - 1
_MS: Final = 1000

LINES_MAX: Final = 1 << _LINE_BITS
"""The highest number of lines."""


def where_of(line: int, offset: int) -> int:
    """A line's number and a place in its queue as one number."""
    return line << _OFFSET_BITS | offset


def split_where(where: int) -> tuple[int, int]:
    """The line's number and the place in its queue again."""
    return where >> _OFFSET_BITS, where & _OFFSET_MASK


class LinePlace(NamedTuple):
    """The last message that left a line: its due time and its offset."""

    due_ms: int
    offset: int


NOWHERE: Final = LinePlace(-1, -1)
"""A place before all others."""


class Due(NamedTuple):
    """A message whose time has come."""

    due_ms: int
    line: int
    offset: int

    @property
    def place(self) -> LinePlace:
        """Its place in its line."""
        return LinePlace(self.due_ms, self.offset)


class DueMessages:
    """Every delayed message by its due time.

    The messages of one second lie together, unsorted; they are sorted when that second begins.
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
        """Return the time of the next look: the first due time, or up to a second before."""
        if self._now:
            return self._now[0] >> _WHERE_BITS
        return self._seconds[0] * _MS if self._seconds else None

    def first(self, now_ms: int) -> Due | None:
        """The first message that is due now, or ``None``."""
        if not self._now:
            # Messages of a second that has not begun are due after all others.
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
        # The milliseconds stand above the place in either form, so adding is enough.
        base = second * _MS << _WHERE_BITS
        self._now = [base + value for value in self._later.pop(second)]
        heapq.heapify(self._now)
        self._begun = second

    def seconds_from(self, start: Due, most: int) -> Iterator[tuple[int, list[Due]]]:
        """The waiting messages from a place on: those of some seconds, each with its number.

        A second is sorted as a whole, however many messages it has.
        """
        first = start.due_ms << _WHERE_BITS | where_of(start.line, start.offset)
        if self._now:
            yield self._begun, _sorted(self._now, first)
        second = start.due_ms // _MS
        for number in heapq.nsmallest(most, (one for one in self._later if one >= second)):
            base = number * _MS << _WHERE_BITS
            yield number, _sorted((base + value for value in self._later[number]), first)

    def drop_first(self) -> None:
        """Remove the message of :meth:`first`."""
        heapq.heappop(self._now)
        self._count -= 1


def _sorted(values: Iterable[int], first: int) -> list[Due]:
    chosen = sorted(value for value in values if value >= first)
    return [Due(value >> _WHERE_BITS, *split_where(value & _WHERE_MASK)) for value in chosen]
