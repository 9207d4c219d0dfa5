"""Which brokers to leave alone for a while, judged by how long they took. Pure.

A broker that answered late, or not at all, is not sent to until its time is over; the later it was,
the longer that is. Nothing is probed: the next message sent to it is the probe. Times are
monotonic, in seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from txmq.limits import FAULTS_MAX

__all__ = ["FAILED_S", "FaultTable"]

FAILED_S: Final = 30.0
"""What a failure counts as, however soon it came."""

_LATENCIES_S: Final = (0.05, 0.1, 0.55, 1.0, 2.0, 3.0, 15.0)
_PAUSES_S: Final = (0.0, 0.0, 30.0, 60.0, 120.0, 180.0, 600.0)
"""For a latency of at least so much, and less than the next: the table of RocketMQ 4.9."""


@dataclass(frozen=True, slots=True)
class _Fault:
    broker: str
    latency_s: float
    until: float

    def rank(self, now: float) -> tuple[bool, float, float]:
        return now < self.until, self.latency_s, self.until


class FaultTable:
    """How long each broker took last, and until when it is left alone.

    Args:
        limit: How many brokers are remembered.
    """

    def __init__(self, limit: int = FAULTS_MAX) -> None:
        self._limit = limit
        self._faults: dict[str, _Fault] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._faults)

    def note(self, broker: str, latency_s: float, now: float, *, failed: bool = False) -> None:
        """A broker took so long to answer.

        Args:
            broker: Its name.
            latency_s: How long it took.
            now: The time.
            failed: There was no answer, or one that another broker might not give.
        """
        latency_s = FAILED_S if failed else latency_s
        at = bisect_right(_LATENCIES_S, latency_s)
        pause_s = _PAUSES_S[at - 1] if at else 0.0
        self._faults[broker] = _Fault(broker, latency_s, now + pause_s)
        if len(self._faults) > self._limit:
            # The one that is back longest, or is back first: forgetting it says the least.
            del self._faults[min(self._faults.values(), key=lambda each: each.until).broker]

    def is_available(self, broker: str, now: float) -> bool:
        """Whether a broker may be sent to; one that nothing is known of may."""
        found = self._faults.get(broker)
        return found is None or now >= found.until

    def least_bad(self, now: float) -> str | None:
        """A broker to try where none is available: one of the better half, each in its turn.

        Better is one that is available, then one that took less time, then one that is back sooner.
        """
        ranked = sorted(self._faults.values(), key=lambda each: each.rank(now))
        if not ranked:
            return None
        at = self._turn % max(1, len(ranked) // 2)
        self._turn += 1
        return ranked[at].broker

    def remove(self, broker: str) -> None:
        """Forget a broker, which makes it available."""
        self._faults.pop(broker, None)
