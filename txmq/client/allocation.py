"""Strategies that divide queues among a group's consumers, as in stock clients. Pure.

No coordinator assigns queues. Every member of a group computes its own share from the same two
sorted lists, so the shares fit together. That holds only if all members use the same strategy and
the same arithmetic. Stock clients may be members, so every division and hash here equals theirs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Final, Protocol, TypeVar

from txmq.errors import ConfigError
from txmq.message import Queue

__all__ = [
    "Allocation",
    "Average",
    "ByConfig",
    "Circle",
    "ConsistentHash",
    "MachineRoom",
    "NearestRoom",
]

T = TypeVar("T")

VIRTUAL_NODES: Final = 10
"""Virtual nodes of each client on the ring, as in stock clients."""


class Allocation(Protocol):
    """A strategy that computes a client's share of the queues."""

    @property
    def name(self) -> str:
        """What RocketMQ calls it."""

    def __call__(
        self, group: str, client_id: str, queues: Sequence[Queue], clients: Sequence[str], /
    ) -> list[Queue]:
        """The queues of one client; empty if it is not among the clients.

        Args:
            group: The consumer group.
            client_id: The client whose share is computed.
            queues: All queues, sorted.
            clients: The ids of the group's clients, sorted.

        Raises:
            ConfigError: The strategy cannot place a queue or a client.
        """


@dataclass(frozen=True, slots=True)
class Average:
    """Neighbouring queues in equal numbers; the first clients take the remainder."""

    @property
    def name(self) -> str:
        """What RocketMQ calls it."""
        return "AVG"

    def __call__(
        self, _group: str, client_id: str, queues: Sequence[Queue], clients: Sequence[str], /
    ) -> list[Queue]:
        """A contiguous slice of the queues."""
        if client_id not in clients:
            return []
        at = clients.index(client_id)
        size, over = divmod(len(queues), len(clients))
        start = at * size + min(at, over)
        return list(queues[start : start + size + (at < over)])


@dataclass(frozen=True, slots=True)
class Circle:
    """Queues dealt out to the clients in turn."""

    @property
    def name(self) -> str:
        """What RocketMQ calls it."""
        return "AVG_BY_CIRCLE"

    def __call__(
        self, _group: str, client_id: str, queues: Sequence[Queue], clients: Sequence[str], /
    ) -> list[Queue]:
        """Every n-th queue for n clients, starting at the client's own index."""
        if client_id not in clients:
            return []
        return list(queues[clients.index(client_id) :: len(clients)])


@dataclass(frozen=True, slots=True)
class ByConfig:
    """The queues configured for this client that exist.

    Nothing checks that the lists of a group's clients fit together. A topic without a configured
    queue is shared evenly, because lists usually omit the retry topic.
    """

    queues: frozenset[Queue]

    @property
    def name(self) -> str:
        """What RocketMQ calls it."""
        return "CONFIG"

    def __call__(
        self, group: str, client_id: str, queues: Sequence[Queue], clients: Sequence[str], /
    ) -> list[Queue]:
        """The configured queues that exist."""
        if client_id not in clients:
            return []
        if not {queue.topic for queue in self.queues} & {queue.topic for queue in queues}:
            return Average()(group, client_id, queues, clients)
        return [queue for queue in queues if queue in self.queues]


@dataclass(frozen=True, slots=True)
class MachineRoom:
    """Queues of brokers in certain machine rooms; the broker's name is ``room@name``.

    Each client gets the same number; the first clients get one more each from the remainder.
    """

    rooms: frozenset[str]

    @property
    def name(self) -> str:
        """What RocketMQ calls it."""
        return "MACHINE_ROOM"

    def __call__(
        self, _group: str, client_id: str, queues: Sequence[Queue], clients: Sequence[str], /
    ) -> list[Queue]:
        """A slice of the rooms' queues, and perhaps one of the remainder."""
        if client_id not in clients:
            return []
        at = clients.index(client_id)
        ours = [queue for queue in queues if self._holds(queue.broker)]
        size, over = divmod(len(ours), len(clients))
        share = ours[at * size : (at + 1) * size]
        return share + ours[len(clients) * size + at :][:1] if at < over else share

    def _holds(self, broker: str) -> bool:
        # Java's split() ignores trailing separators.
        parts = broker.rstrip("@").split("@")
        return len(parts) == 2 and parts[0] in self.rooms


@dataclass(frozen=True, slots=True)
class NearestRoom:
    """Each machine room's queues are divided among the clients in that room, by another strategy.

    All clients share the queues of rooms without a client.
    """

    inner: Allocation
    room_of_broker: Callable[[str], str]
    room_of_client: Callable[[str], str]

    @property
    def name(self) -> str:
        """What RocketMQ calls it."""
        return f"MACHINE_ROOM_NEARBY-{self.inner.name}"

    def __call__(
        self, group: str, client_id: str, queues: Sequence[Queue], clients: Sequence[str], /
    ) -> list[Queue]:
        """A share of the client's own room, and of the rooms without clients.

        Raises:
            ConfigError: The room of a broker or client is unknown.
        """
        if client_id not in clients:
            return []
        queues_in = _by_room(queues, lambda queue: self.room_of_broker(queue.broker))
        clients_in = _by_room(clients, self.room_of_client)
        here = self.room_of_client(client_id)
        share: list[Queue] = []
        if here in queues_in:
            share += self.inner(group, client_id, queues_in.pop(here), clients_in[here])
        for room, left in sorted(queues_in.items()):
            if room not in clients_in:
                share += self.inner(group, client_id, left, clients)
        return share


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """Each queue belongs to the next client on a consistent-hash ring.

    When a client leaves, only its queues move.

    Raises:
        ConfigError: There are no virtual nodes, so clients would get no queues.
    """

    virtual_nodes: int = VIRTUAL_NODES

    @property
    def name(self) -> str:
        """What RocketMQ calls it."""
        return "CONSISTENT_HASH"

    def __post_init__(self) -> None:
        if self.virtual_nodes < 1:
            raise ConfigError(f"virtual_nodes is {self.virtual_nodes}; it must be 1 or more")

    def __call__(
        self, _group: str, client_id: str, queues: Sequence[Queue], clients: Sequence[str], /
    ) -> list[Queue]:
        """The queues whose next virtual node on the ring is this client's."""
        if client_id not in clients:
            return []
        # If two virtual nodes have the same hash, the later client wins, as in Java's map.
        owners = {
            _ring_hash(f"{item}-{number}"): item
            for item in clients
            for number in range(self.virtual_nodes)
        }
        ring = sorted(owners)

        def owner(queue: Queue) -> str:
            at = bisect_left(ring, _ring_hash(_java_text(queue)))
            return owners[ring[at % len(ring)]]

        return [queue for queue in queues if owner(queue) == client_id]


def _by_room(items: Sequence[T], room_of: Callable[[T], str]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for item in items:
        room = room_of(item)
        if not room:
            # A skipped queue would silently have no consumer.
            raise ConfigError(f"the room of {item} is unknown")
        found.setdefault(room, []).append(item)
    return found


def _java_text(queue: Queue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.number}]"


def _ring_hash(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")
