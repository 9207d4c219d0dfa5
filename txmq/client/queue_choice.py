"""Which queue a message goes to: by rotation, by key, and around brokers that are slow. Pure.

Each topic has a counter that advances with every queue it gives. A retry goes to another broker if
there is one. With a fault table, rotation also passes over brokers that failed or answered late;
nothing probes them: the next message sent to one is the probe. Times are monotonic, in seconds.
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
            del self._faults[min(self._faults.values(), key=lambda fault: fault.until).broker]

    def is_available(self, broker: str, now: float) -> bool:
        """Whether a broker may be sent to; one that nothing is known of may."""
        found = self._faults.get(broker)
        return found is None or now >= found.until

    def least_bad(self, now: float) -> str | None:
        """A broker to try where none is available: one of the better half, each in its turn.

        Better is one that is available, then one that took less time, then one that is back sooner.
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
    """The counters of topics, the one used last at the end.

    Args:
        limit: How many topics are remembered; the one used longest ago begins anew.
    """

    def __init__(self, limit: int = TURNS_MAX) -> None:
        self._limit = limit
        self._counters: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._counters)

    def next_queue(self, route: Route, first: int, avoid: str | None = None) -> Queue:
        """The queue whose turn it is to be written to.

        Args:
            route: The topic's route.
            first: Where to begin with a topic that is not remembered; chance, so that many
                clients which start together do not all begin with the same queue.
            avoid: The broker that failed just now; used only where there is no other.

        Raises:
            NoPermission: The topic is there and cannot be written to.
        """
        topic, queues, counters = route.topic, route.writable or _writable(route), self._counters
        if avoid is not None:
            for _ in queues:
                queue = queues[self._count(topic, first) % len(queues)]
                if queue.broker != avoid:
                    return queue
        # As _count does, without the call: each send comes by here.
        turn = counters.pop(topic, first)
        counters[topic] = turn + 1
        if len(counters) > self._limit:
            del counters[next(iter(counters))]
        return queues[turn % len(queues)]

    def next_available(
        self, route: Route, first: int, faults: FaultTable, now: float, avoid: str | None = None
    ) -> Queue:
        """The next queue of a broker that is available, or of one of those that are least bad.

        Args:
            route: The topic's route.
            first: Where to begin with a topic that is not remembered.
            faults: What is known of the brokers; one that has none of these queues is removed
                where it would be picked.
            now: The time, as the fault table has it.
            avoid: The broker that failed just now; used only where no other is available.

        Raises:
            NoPermission: The topic is there and cannot be written to.
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
    """The queue of a key, as long as the topic keeps its number of queues.

    Text goes where Java's ``SelectMessageQueueByHash`` sends it, a whole number where the remainder
    says, so that producers in either language agree.

    Raises:
        NoPermission: There is no queue.
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
