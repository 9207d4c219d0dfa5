"""Routes, and the choice of a message's queue. Pure.

A route holds the queues of a topic and the addresses of their brokers, taken from a name server's
answer. Routes are immutable; the table caches fresh ones. If the table has no fresh route, the
session queries a name server and stores the answer.

A message's queue is chosen by rotation, by key, and around slow brokers. Each topic has a counter
that advances with every chosen queue. A retry chooses another broker if there is one. With a fault
table, rotation also skips brokers that failed or answered late. There are no separate probes: the
next message sent to such a broker is the probe. Times are monotonic, in seconds.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from txmq.errors import ConnectFailed, NoPermission, TopicNotFound
from txmq.limits import FAULTS_MAX, TURNS_MAX
from txmq.message import Queue
from txmq.protocol.bodies import QueueRoute, TopicRoute
from txmq.protocol.codes import Perm
from txmq.protocol.java import string_hash
from txmq.protocol.topics import DLQ

__all__ = [
    "FAILED_S",
    "MASTER",
    "TEMPLATE",
    "FaultTable",
    "QueueRotation",
    "Route",
    "RouteTable",
    "queue_of_key",
    "route_of",
]

MASTER: Final = 0
"""The replica number of the master."""

TEMPLATE: Final = "TBW102"
"""The topic whose brokers create unknown topics on their first message."""

TEMPLATE_QUEUES_MAX: Final = 4
"""The number of queues of a topic created by use, as in stock clients."""

FRESH_S: Final = 30.0
"""How long a route is fresh, as in stock clients."""

WAITING_FRESH_S: Final = 1.0
"""How long a route is fresh if one of its brokers has no master: it may have one soon."""

IDLE_S: Final = 600.0
"""How long an unused route is kept: a program may use any number of topics once."""


@dataclass(frozen=True, slots=True)
class Route:
    """The queues of one topic, and the addresses of their brokers."""

    topic: str
    writable: tuple[Queue, ...]
    readable: tuple[Queue, ...]
    addresses: Mapping[str, Mapping[int, str]]
    """By broker and replica number."""
    waiting: tuple[str, ...] = ()
    """The brokers whose queues take messages as soon as they have a master."""
    dead: tuple[Queue, ...] = ()
    """The queues of dead letters that permit writing only. txmq's brokers show their messages to a
    pull that asks for dead letters."""
    is_spread: bool = field(init=False, compare=False)
    """Whether several brokers have writable queues of it."""
    masters: Mapping[str, str] = field(init=False, compare=False)
    """The addresses of the brokers that have a master."""

    def __post_init__(self) -> None:
        """Compute what every send needs."""
        first = self.writable[0].broker if self.writable else ""
        is_spread = any(queue.broker != first for queue in self.writable)
        object.__setattr__(self, "is_spread", is_spread)
        masters = {name: at[MASTER] for name, at in self.addresses.items() if MASTER in at}
        object.__setattr__(self, "masters", masters)

    @property
    def brokers(self) -> tuple[str, ...]:
        """The names of the brokers that have queues of the topic, sorted."""
        queues = self.readable + self.writable + self.dead
        return tuple(sorted({queue.broker for queue in queues}))

    @property
    def queues_to_read(self) -> tuple[Queue, ...]:
        """The readable queues, and the write-only queues of dead letters."""
        return self.readable + self.dead

    def queues_to_write(self) -> tuple[Queue, ...]:
        """The writable queues.

        Raises:
            ConnectFailed: The brokers with writable queues have no master now.
            NoPermission: The topic has no writable queue.
        """
        if self.writable:
            return self.writable
        for broker in self.waiting:
            self.master(broker)
        raise NoPermission(f"topic {self.topic} has no queue that can be written to")

    def master(self, broker: str) -> str:
        """The address of a broker's master.

        Raises:
            TopicNotFound: The topic is not on this broker.
            ConnectFailed: The broker has no master now.
        """
        if broker in self.masters:
            return self.masters[broker]
        self._replicas(broker)
        raise ConnectFailed(f"broker {broker} has no master now")

    def reader(self, broker: str) -> str:
        """The address to read from: the master, or the first replica if no master exists.

        Raises:
            TopicNotFound: The topic is not on this broker.
        """
        replicas = self._replicas(broker)
        return replicas[min(replicas)]

    def without(self, broker: str) -> Route:
        """The same route without the queues and addresses of one broker."""
        return replace(
            self,
            writable=tuple(queue for queue in self.writable if queue.broker != broker),
            readable=tuple(queue for queue in self.readable if queue.broker != broker),
            dead=tuple(queue for queue in self.dead if queue.broker != broker),
            addresses={name: at for name, at in self.addresses.items() if name != broker},
        )

    def _replicas(self, broker: str) -> Mapping[int, str]:
        replicas = self.addresses.get(broker)
        if not replicas:
            raise TopicNotFound(f"topic {self.topic} has nothing at broker {broker!r}")
        return replicas


def route_of(
    topic: str, body: TopicRoute, *, template: bool = False, queues_max: int = TEMPLATE_QUEUES_MAX
) -> Route:
    """The route that a name server's answer describes.

    Args:
        topic: The topic.
        body: The answer.
        template: Whether the answer describes :data:`TEMPLATE`, because the topic does not exist
            yet.
        queues_max: The maximum number of queues on each broker once it exists.
    """
    addresses = {entry.broker_name: dict(entry.broker_addrs) for entry in body.broker_datas}
    known = [entry for entry in body.queue_datas if addresses.get(entry.broker_name)]
    known.sort(key=lambda entry: entry.broker_name)

    def queues(entry: QueueRoute, count: int) -> list[Queue]:
        most = min(count, queues_max) if template else count
        return [Queue(topic, entry.broker_name, number) for number in range(most)]

    return Route(
        topic=topic,
        writable=tuple(
            queue
            for entry in known
            if entry.perm & Perm.WRITE and MASTER in addresses[entry.broker_name]
            for queue in queues(entry, entry.write_queue_nums)
        ),
        readable=tuple(
            queue
            for entry in known
            if entry.perm & Perm.READ
            for queue in queues(entry, entry.read_queue_nums)
        ),
        addresses=addresses,
        waiting=tuple(
            entry.broker_name
            for entry in known
            if entry.perm & Perm.WRITE and MASTER not in addresses[entry.broker_name]
        ),
        dead=tuple(
            queue
            for entry in known
            if topic.startswith(DLQ) and entry.perm & Perm.WRITE and not entry.perm & Perm.READ
            for queue in queues(entry, entry.read_queue_nums)
        ),
    )


class RouteTable:
    """The known routes."""

    def __init__(self, fresh_s: float = FRESH_S) -> None:
        self._fresh_s = fresh_s
        self._routes: dict[str, tuple[Route, float]] = {}
        self._used: dict[str, float] = {}

    def get(self, topic: str, now: float) -> Route | None:
        """The topic's route, unless it is unknown or expired."""
        found = self._routes.get(topic)
        self._used[topic] = now
        if found is None or now - found[1] > self._fresh_s:
            return None
        return found[0]

    def last(self, topic: str) -> Route | None:
        """The topic's last known route, for when no name server answers."""
        found = self._routes.get(topic)
        return None if found is None else found[0]

    def put(self, route: Route, now: float) -> None:
        """Store the current route."""
        early_s = max(0.0, self._fresh_s - WAITING_FRESH_S) if route.waiting else 0.0
        self._routes[route.topic] = (route, now - early_s)

    def in_use(self, now: float) -> list[str]:
        """The recently used topics; the others are dropped."""
        for topic in [used_topic for used_topic, at in self._used.items() if now - at > IDLE_S]:
            del self._used[topic]
            self._routes.pop(topic, None)
        return list(self._used)

    def brokers(self) -> dict[str, dict[int, str]]:
        """The addresses of all brokers in known routes, by name and replica number."""
        found: dict[str, dict[int, str]] = {}
        for route, _ in self._routes.values():
            for name, replicas in route.addresses.items():
                found.setdefault(name, {}).update(replicas)
        return found

    def forget(self, topic: str) -> None:
        """Expire a topic's route because it was wrong, so that the next use queries again."""
        found = self._routes.get(topic)
        if found is not None:
            self._routes[topic] = (found[0], -inf)

    def remove(self, topic: str, broker: str | None = None) -> None:
        """Drop a deleted topic, on one broker or entirely."""
        known = self.last(topic)
        if known is None:
            return
        left = None if broker is None else known.without(broker)
        if left is None or not left.addresses:
            del self._routes[topic]
        else:
            self._routes[topic] = (left, -inf)


FAILED_S: Final = 30.0
"""A failure counts as this latency."""

_LATENCIES_S: Final = (0.05, 0.1, 0.55, 1.0, 2.0, 3.0, 15.0)
_PAUSES_S: Final = (0.0, 0.0, 30.0, 60.0, 120.0, 180.0, 600.0)
"""How long a broker is skipped from each of these latencies on, as in RocketMQ 4.9."""


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
            failed: The broker did not answer, or another broker might answer better.
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
            ConnectFailed: No broker of the topic has a master now.
        """
        topic, queues, counters = (
            route.topic,
            route.writable or route.queues_to_write(),
            self._counters,
        )
        if avoid is not None:
            for _ in queues:
                queue = queues[self._count(topic, first) % len(queues)]
                if queue.broker != avoid:
                    return queue
        # Inlined from _count, to save a call per send.
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
            ConnectFailed: No broker of the topic has a master now.
        """
        queues = route.queues_to_write()
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
