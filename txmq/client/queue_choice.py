"""Choose a message's queue: by rotation, by key, and around slow brokers. Pure.

Each topic has a counter that advances with every chosen queue. A retry chooses another broker if
there is one. With a fault table, rotation also skips brokers that failed or answered late. There
are no separate probes: the next message sent to such a broker is the probe. Times are monotonic, in
seconds.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from txmq.client.routes import Route
from txmq.errors import NoPermission
from txmq.limits import FAULTS_MAX, TURNS_MAX
from txmq.message import Queue
from txmq.protocol.java import string_hash

__all__ = ["FAILED_S", "FaultTable", "QueueRotation", "queue_of_key"]

FAILED_S: Final = 30.0
"""The latency that a failure counts as."""

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
    """Each broker's last latency, and the time until which it is skipped.

    Args:
        limit: The maximum number of brokers.
    """

    def __init__(self, limit: int = FAULTS_MAX) -> None:
        self._limit = limit
        self._faults: dict[str, _Fault] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._faults)

    def note(self, broker: str, latency_s: float, now: float, *, failed: bool = False) -> None:
        """Record a broker's latency.

        Args:
            broker: Its name.
            latency_s: Its latency.
            now: The time.
            failed: It did not answer, or another broker might answer better.
        """
        latency_s = FAILED_S if failed else latency_s
        at = bisect_right(_LATENCIES_S, latency_s)
        pause_s = _PAUSES_S[at - 1] if at else 0.0
        self._faults[broker] = _Fault(broker, latency_s, now + pause_s)
        if len(self._faults) > self._limit:
            # Drop the one that is available longest or soonest: it carries the least information.
            del self._faults[min(self._faults.values(), key=lambda fault: fault.until).broker]

    def is_available(self, broker: str, now: float) -> bool:
        """Whether a broker is available; an unknown one is."""
        found = self._faults.get(broker)
        return found is None or now >= found.until

    def least_bad(self, now: float) -> str | None:
        """A broker to try if all are unavailable: one of the better half, in turn.

        The order is: available, then lower latency, then available again sooner.
        """
        ranked = sorted(self._faults.values(), key=lambda fault: fault.rank(now))
        if not ranked:
            return None
        at = self._turn % max(1, len(ranked) // 2)
        self._turn += 1
        return ranked[at].broker

    def remove(self, broker: str) -> None:
        """Forget a broker, which makes it available."""
        self._faults.pop(broker, None)


class QueueRotation:
    """The counters of topics, in order of last use.

    Args:
        limit: The maximum number of topics; the least recently used one is dropped.
    """

    def __init__(self, limit: int = TURNS_MAX) -> None:
        self._limit = limit
        self._counters: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._counters)

    def next_queue(self, route: Route, first: int, avoid: str | None = None) -> Queue:
        """The next writable queue in rotation.

        Args:
            route: The topic's route.
            first: The start for an unknown topic; random, so that clients which start together
                begin with different queues.
            avoid: The broker that just failed; chosen only if there is no other.

        Raises:
            NoPermission: The topic exists and is not writable.
        """
        topic, queues, counters = route.topic, route.writable or _writable(route), self._counters
        if avoid is not None:
            for _ in queues:
                queue = queues[self._count(topic, first) % len(queues)]
                if queue.broker != avoid:
                    return queue
        # The same as _count, inlined because every send runs this.
        turn = counters.pop(topic, first)
        counters[topic] = turn + 1
        if len(counters) > self._limit:
            del counters[next(iter(counters))]
        return queues[turn % len(queues)]

    def next_available(
        self, route: Route, first: int, faults: FaultTable, now: float, avoid: str | None = None
    ) -> Queue:
        """The next queue of an available broker, or of one of the least bad.

        Args:
            route: The topic's route.
            first: The start for an unknown topic.
            faults: The fault table; a broker without any of these queues is removed when picked.
            now: The time, on the fault table's clock.
            avoid: The broker that just failed; chosen only if no other is available.

        Raises:
            NoPermission: The topic exists and is not writable.
        """
        queues = _writable(route)
        turn = self._count(route.topic, first)
        spare: Queue | None = None
        for step in range(len(queues)):
            queue = queues[(turn + step) % len(queues)]
            if faults.is_available(queue.broker, now):
                if queue.broker != avoid:
                    return queue
                spare = spare or queue
        if spare is not None:
            return spare
        broker = faults.least_bad(now)
        assert broker is not None, "a broker that is not available is in the table"
        theirs = [queue for queue in queues if queue.broker == broker]
        if not theirs:
            faults.remove(broker)
        among = theirs or queues
        return among[turn % len(among)]

    def _count(self, topic: str, first: int) -> int:
        turn = self._counters.pop(topic, first)
        self._counters[topic] = turn + 1
        if len(self._counters) > self._limit:
            del self._counters[next(iter(self._counters))]
        return turn


def _writable(route: Route) -> tuple[Queue, ...]:
    if not route.writable:
        raise NoPermission(f"topic {route.topic} has no queue that can be written to")
    return route.writable


def queue_of_key(queues: Sequence[Queue], key: str | bytes | int) -> Queue:
    """The queue of a key; it stays the same while the topic's number of queues does.

    Text is hashed as in Java's ``SelectMessageQueueByHash``, an integer is taken modulo the queues,
    so that producers in either language agree.

    Raises:
        NoPermission: The topic has no writable queue.
    """
    if not queues:
        raise NoPermission("the topic has no queue that can be written to")
    if isinstance(key, str):
        number = abs(string_hash(key))
    elif isinstance(key, bytes):
        number = zlib.crc32(key)
    else:
        number = key
    return queues[number % len(queues)]
