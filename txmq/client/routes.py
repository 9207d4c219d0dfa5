"""Routes: a name server's answer as the queues of a topic and the addresses of brokers. Pure.

A route is a value; the table caches fresh ones. If the table has no fresh route, the session
queries a name server and stores the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from txmq.errors import ConnectFailed, TopicNotFound
from txmq.message import Queue
from txmq.protocol.bodies import QueueRoute, TopicRoute
from txmq.protocol.codes import Perm

__all__ = ["MASTER", "TEMPLATE", "Route", "RouteTable", "route_of"]

MASTER: Final = 0
"""The replica number of the master."""

TEMPLATE: Final = "TBW102"
"""The topic whose brokers create unknown topics on their first message."""

TEMPLATE_QUEUES_MAX: Final = 4
"""The number of queues of a topic created by use, as in stock clients."""

FRESH_S: Final = 30.0
"""How long a route is fresh, as in stock clients."""

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
        """The brokers that have queues of it, by name."""
        return tuple(sorted({queue.broker for queue in self.readable + self.writable}))

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
        self._routes[route.topic] = (route, now)

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
