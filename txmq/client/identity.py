"""The unique ids that a client gives its messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from txmq.protocol.record import unique_id
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy

__all__ = ["UniqueIds"]

_TIME_AND_COUNT_CHARS: Final = 12
_COUNT_CHARS: Final = 4
_OF_ONE_MOMENT: Final = 1024


class UniqueIds:
    """Ids that no other client generates.

    RocketMQ puts address, process and class loader into an id to distinguish clients. Here these
    bits are random: containers share addresses and process ids, and 79 random bits do not collide.
    The time stays where tools look for it, but in UTC. Tools that use local time start their search
    13 hours earlier, which covers the difference.
    """

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self._clock = clock
        random = entropy.token(4), entropy.below(1 << 16), entropy.below(1 << 31)
        self._begin = unique_id(*random, 0, 0)[:-_TIME_AND_COUNT_CHARS]
        self._count = 0
        self._month = (0, 0)

    def next(self) -> str:
        """A new id."""
        count = self._count
        self._count = count + 1
        now_ms = self._clock.wall_ms()
        begins, ends = self._month
        if not begins <= now_ms < ends:
            begins, _ = self._month = _month_of(now_ms)
        return f"{self._begin}{now_ms - begins & 0x7FFFFFFF:08X}{count & 0xFFFF:04X}"

    def several(self, count: int) -> list[str]:
        """New ids for messages that are sent together."""
        found: list[str] = []
        while len(found) < count:
            begin = self.next()[:-_COUNT_CHARS]
            first = self._count - 1
            # An id's count has 16 bits, so take a new time before the count wraps.
            self._count = end = first + min(count - len(found), _OF_ONE_MOMENT)
            found += [f"{begin}{number & 0xFFFF:04X}" for number in range(first, end)]
        return found


def _month_of(now_ms: int) -> tuple[int, int]:
    """The first millisecond of the month and of the next one."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    # No month has more than 31 days, so the 1st plus 31 days always lies in the next month.
    following = (first + timedelta(days=31)).replace(day=1)
    return int(first.timestamp()) * 1000, int(following.timestamp()) * 1000
