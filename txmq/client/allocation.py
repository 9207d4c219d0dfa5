"""Who of a group consumes which queues: the strategies stock clients have. Pure.

No coordinator hands queues out. Every member of a group computes its own share, from the same two
lists and by the same rule, so the shares fit together. That holds only while all members use one
strategy and agree to the last digit, stock clients among them; hence every division and every hash
here is theirs. The caller sorts both lists before it asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import ClassVar, Final, Protocol, TypeVar

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
"""Places each client has on the ring, as in stock clients."""


class Allocation(Protocol):
    """A rule that gives a client its share of the queues."""

    @property
    def name(self) -> str:
        """What RocketMQ calls it."""

    def __call__(
        self, group: str, client_id: str, queues: Sequence[Queue], clients: Sequence[str], /
    ) -> list[Queue]:
        """The queues that one client consumes; none where it is not among the clients.

        Args:
            group: The group they all are in.
            client_id: Whose share is wanted.
            queues: All queues to be shared out, sorted.
            clients: The ids of all who share them, sorted.

        Raises:
            ConfigError: The rule does not know what to do with one of them.
        """


@dataclass(frozen=True, slots=True)
class Average:
    """Neighbouring queues, the same number for everybody; the first clients take what is over."""

    name: ClassVar[str] = "AVG"

    def __call__(
        self, _group: str, client_id: str, queues: Sequence[Queue], clients: Sequence[str], /
    ) -> list[Queue]:
        """A page of the queues, as long as everybody else's or longer by one."""
        if client_id not in clients:
            return []
        at = clients.index(client_id)
        size, over = divmod(len(queues), len(clients))
        start = at * size + min(at, over)
        return list(queues[start : start + size + (at < over)])


@dataclass(frozen=True, slots=True)
class Circle:
    """One queue for each client, then one more for each, until there are none left."""

    name: ClassVar[str] = "AVG_BY_CIRCLE"

    def __call__(
        self, _group: str, client_id: str, queues: Sequence[Queue], clients: Sequence[str], /
    ) -> list[Queue]:
        """Its own place in the list of queues, and every place one round of clients on."""
        if client_id not in clients:
            return []
        return list(queues[clients.index(client_id) :: len(clients)])


@dataclass(frozen=True, slots=True)
class ByConfig:
    """The queues configured for this client, as far as they exist.

    The lists of a group's clients are not checked against each other. A topic without a configured
    queue is shared evenly: lists usually forget the topic that brings failed messages again.
    """

    queues: frozenset[Queue]
    name: ClassVar[str] = "CONFIG"

    def __call__(
        self, group: str, client_id: str, queues: Sequence[Queue], clients: Sequence[str], /
    ) -> list[Queue]:
        """Those of the queues that were written down."""
        if client_id not in clients:
            return []
        if not {queue.topic for queue in self.queues} & {queue.topic for queue in queues}:
            return Average()(group, client_id, queues, clients)
        return [queue for queue in queues if queue in self.queues]


@dataclass(frozen=True, slots=True)
class MachineRoom:
    """Only queues of brokers in certain rooms; a broker in a room is called ``room@name``.

    What is left over after everybody had the same goes one by one to the first clients.
    """

    rooms: frozenset[str]
    name: ClassVar[str] = "MACHINE_ROOM"

    def __call__(
        self, _group: str, client_id: str, queues: Sequence[Queue], clients: Sequence[str], /
    ) -> list[Queue]:
        """A page of the rooms' queues, and perhaps one of those that are over."""
        if client_id not in clients:
            return []
        at = clients.index(client_id)
        ours = [queue for queue in queues if self._holds(queue.broker)]
        size, over = divmod(len(ours), len(clients))
        share = ours[at * size : (at + 1) * size]
        return share + ours[len(clients) * size + at :][:1] if at < over else share

    def _holds(self, broker: str) -> bool:
        # Java's split() does not see separators at the end.
        parts = broker.rstrip("@").split("@")
        return len(parts) == 2 and parts[0] in self.rooms


@dataclass(frozen=True, slots=True)
class NearestRoom:
    """The queues of a room for the clients in it, by another strategy.

    Queues of rooms without a client are shared by all clients.
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
        """A share of the own room's queues, and of those that no client is near to.

        Raises:
            ConfigError: The room of one of them is unknown.
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
    """A queue for the client that comes next on a ring of hashes.

    When a client leaves, only its queues move.

    Raises:
        ConfigError: Clients without a place on the ring would get nothing.
    """

    virtual_nodes: int = VIRTUAL_NODES
    name: ClassVar[str] = "CONSISTENT_HASH"

    def __post_init__(self) -> None:
        if self.virtual_nodes < 1:
            raise ConfigError(f"virtual_nodes is {self.virtual_nodes}; it must be 1 or more")

    def __call__(
        self, _group: str, client_id: str, queues: Sequence[Queue], clients: Sequence[str], /
    ) -> list[Queue]:
        """The queues whose next place on the ring is one of this client's."""
        if client_id not in clients:
            return []
        # Where two places fall together, the later client has it, as in Java's map.
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
            # A queue that is passed over would silently have no consumer.
            raise ConfigError(f"the room of {item} is unknown")
        found.setdefault(room, []).append(item)
    return found


def _java_text(queue: Queue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.number}]"


def _ring_hash(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")
