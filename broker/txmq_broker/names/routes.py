"""The live brokers and their topics: a pure table; callers pass the time.

The replicas of a broker share its name and have distinct ids; 0 is the master. A topic belongs to a
broker's name, so it stays while any replica with that name lives. A name and id belong to the
broker that registered them first, until it is gone. A master's topics are merged into the known
ones; a topic is removed only by a deletion or with its last replica. RocketMQ's counterpart is
``RouteInfoManager``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from txmq.errors import LimitExceeded, NoPermission, TopicNotFound
from txmq.limits import ROUTE_BROKERS_MAX, ROUTE_TOPICS_MAX
from txmq.protocol.bodies import (
    BrokerRoute,
    ClusterView,
    DataVersion,
    QueueRoute,
    TopicConfig,
    TopicConfigs,
    TopicNames,
    TopicRoute,
)
from txmq.protocol.codes import Perm
from txmq.protocol.headers import BrokerRegistration, RegistrationAnswer
from txmq.protocol.topics import topics_of_brokers

__all__ = ["LIFETIME_S", "MASTER", "Replica", "RouteRegistry"]

LIFETIME_S: Final = 120.0
"""How long a broker may be silent before it counts as dead; a registration may override this."""

MASTER: Final = 0
"""The id of the replica that takes writes."""

_READ_WRITE: Final = int(Perm.READ | Perm.WRITE)

_CHANGED_AT_ONCE: Final = 1_000
"""The number of topics whose permissions change in one go, within a millisecond."""


@dataclass(slots=True, eq=False)
class Replica:
    """One broker process, according to its last registration."""

    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    version: DataVersion
    holder: object
    """The connection of its registration; the replica is removed when it closes."""

    seen_at: float
    lifetime_s: float
    proof: str | None = None
    """The proof in its registration; ``None`` for brokers that send none."""


@dataclass(slots=True, eq=False)
class _Broker:
    name: str
    cluster: str
    replicas: dict[int, Replica] = field(default_factory=dict)

    def at(self, address: str) -> Replica | None:
        return next(
            (replica for replica in self.replicas.values() if replica.address == address), None
        )

    def route(self) -> BrokerRoute:
        addresses = {number: self.replicas[number].address for number in sorted(self.replicas)}
        return BrokerRoute(broker_name=self.name, broker_addrs=addresses, cluster=self.cluster)


class RouteRegistry:
    """The brokers and their topics, by name."""

    def __init__(self, topics_max: int = ROUTE_TOPICS_MAX) -> None:
        self._topics_max = topics_max
        self._brokers: dict[str, _Broker] = {}
        self._topics: dict[str, dict[str, QueueRoute]] = {}
        self._refused = 0
        self.changes = 0
        """The number of times that a topic or a broker was added or removed."""

    def figures(self) -> dict[str, int]:
        """The registered brokers and topics, and the number of refused registrations."""
        return {
            "brokers": self._replica_count(),
            "topics": len(self._topics),
            "registrations_refused": self._refused,
        }

    def brokers(self) -> Counter[tuple[str, str]]:
        """The number of registered brokers, by cluster and by leader or follower."""
        return Counter(
            (self._brokers[replica.broker_name].cluster, role_of(replica))
            for replica in self._replicas()
        )

    def _replica_count(self) -> int:
        return sum(len(broker.replicas) for broker in self._brokers.values())

    # Requests of brokers

    def register(
        self, who: BrokerRegistration, offer: TopicConfigs, holder: object, now: float
    ) -> RegistrationAnswer:
        """Register a broker and its topics; a replica's answer has its master's address.

        Raises:
            NoPermission: Another broker has this name and id. Nothing was registered.
            LimitExceeded: The limit of topics or brokers is exceeded. Nothing was registered.
        """
        self._check_claim(who, holder)
        known = self._known(who)
        # A replica's topics are its master's. Known topics must not be merged again, because an
        # operator may have changed them here since.
        changed = who.broker_id == MASTER and (known is None or known.version != offer.data_version)
        topics = list(offer.topic_config_table.values()) if changed else []
        self._check_room(known is None, topics)
        broker = self._brokers.setdefault(
            who.broker_name, _Broker(name=who.broker_name, cluster=who.cluster_name)
        )
        if known is None or broker.cluster != who.cluster_name:
            self.changes += 1
        broker.cluster = who.cluster_name
        # A replica that became master, or the reverse, registers from its old address.
        old = broker.at(who.broker_addr)
        if old is not None and old.broker_id != who.broker_id:
            del broker.replicas[old.broker_id]
        millis = who.heartbeat_timeout_millis or 0
        broker.replicas[who.broker_id] = Replica(
            broker_name=who.broker_name,
            broker_id=who.broker_id,
            address=who.broker_addr,
            ha_address=who.ha_server_addr,
            version=offer.data_version,
            holder=holder,
            seen_at=now,
            lifetime_s=millis / 1000 if millis > 0 else LIFETIME_S,
            proof=who.proof,
        )
        for topic in topics:
            self._put(topic.topic_name, _queues(who.broker_name, topic))
        return _master_of(broker, who.broker_id)

    def refresh(self, broker_name: str, address: str, now: float) -> None:
        """Note that a registered broker is alive."""
        found = self._replica(broker_name, address)
        if found is not None:
            found.seen_at = now

    def version(self, broker_name: str, address: str) -> DataVersion | None:
        """The version of a broker's registered topics, or ``None``."""
        found = self._replica(broker_name, address)
        return found.version if found is not None else None

    def unregister(self, broker_name: str, address: str, proof: str | None = None) -> list[Replica]:
        """Remove the broker at an address; another replica may already have its id.

        Raises:
            NoPermission: The broker registered with a proof, and this one differs.
        """
        known = self._replica(broker_name, address)
        if known is not None and known.proof not in (None, proof):
            raise NoPermission(
                f"broker {broker_name} at {address} is another one, and stays registered"
            )
        return self._remove(
            lambda replica: replica.broker_name == broker_name and replica.address == address
        )

    def disconnect(self, holder: object) -> list[Replica]:
        """Remove the brokers whose last registration came over a closed connection."""
        return self._remove(lambda replica: replica.holder is holder)

    def expire(self, now: float) -> list[Replica]:
        """Remove the brokers that have been silent for longer than their lifetime."""
        return self._remove(lambda replica: now - replica.seen_at > replica.lifetime_s)

    def add_topic(self, topic: str, queues: Iterable[QueueRoute]) -> None:
        """Add a topic's queues from a tool; stops at the first unknown broker, as RocketMQ does.

        Raises:
            LimitExceeded: The limit of topics is reached.
        """
        for route in queues:
            if route.broker_name not in self._brokers:
                return
            if topic not in self._topics:
                self._check_topics(1)
            self._put(topic, route)

    # Requests of clients

    def route(self, topic: str) -> TopicRoute:
        """The route of a topic.

        Raises:
            TopicNotFound: No live broker has the topic.
        """
        queues = self._topics.get(topic, {})
        brokers = [self._brokers[name].route() for name in queues if name in self._brokers]
        if not brokers:
            raise TopicNotFound(f"No topic route info in name server for the topic: {topic}")
        return TopicRoute(queue_datas=list(queues.values()), broker_datas=brokers)

    def members(self, cluster: str, broker_name: str) -> BrokerRoute:
        """The replicas of a broker; empty if the broker is unknown."""
        broker = self._brokers.get(broker_name)
        if broker is None:
            return BrokerRoute(broker_name=broker_name, broker_addrs={}, cluster=cluster)
        return broker.route()

    # Requests of operators

    def clusters(self) -> ClusterView:
        """All brokers, by name and by cluster."""
        names: dict[str, list[str]] = {}
        for broker in self._brokers.values():
            names.setdefault(broker.cluster, []).append(broker.name)
        routes = {name: broker.route() for name, broker in self._brokers.items()}
        return ClusterView(broker_addr_table=routes, cluster_addr_table=names)

    def topics(self) -> TopicNames:
        """All topics."""
        return TopicNames(topic_list=list(self._topics))

    def topics_of_cluster(self, cluster: str) -> TopicNames:
        """The topics of a cluster's brokers."""
        names = self._names_in(cluster)
        found = [topic for topic, queues in self._topics.items() if not names.isdisjoint(queues)]
        return TopicNames(topic_list=found)

    def topics_by_flag(self, accepts: Callable[[int], bool]) -> TopicNames:
        """The topics whose system flag is accepted; the first broker's flag decides."""
        found = [
            topic
            for topic, queues in self._topics.items()
            if accepts(next(iter(queues.values())).topic_sys_flag)
        ]
        return TopicNames(topic_list=found)

    def system_topics(self) -> TopicNames:
        """The topics named after clusters and brokers, and a master to ask for the others."""
        view = self.clusters()
        names = [
            name for cluster, own in view.cluster_addr_table.items() for name in (cluster, *own)
        ]
        masters = (
            broker.replicas[MASTER].address
            for broker in self._brokers.values()
            if MASTER in broker.replicas
        )
        return TopicNames(topic_list=names, broker_addr=next(masters, None))

    def forbid_writing(self, broker_name: str) -> Generator[None, None, int]:
        """Forbid writes to all topics of one broker, in parts; returns the number of its topics."""
        return self._set_permission(broker_name, lambda perm: perm & ~int(Perm.WRITE))

    def allow_writing(self, broker_name: str) -> Generator[None, None, int]:
        """Allow reads and writes of all topics of one broker, in parts; returns their number."""
        return self._set_permission(broker_name, lambda _: _READ_WRITE)

    def __len__(self) -> int:
        return len(self._topics)

    def names(self) -> Iterable[str]:
        """All topics."""
        return self._topics

    def topics_of_brokers(self) -> set[str]:
        """The topics for the brokers' own use."""
        return topics_of_brokers((broker.name, broker.cluster) for broker in self._brokers.values())

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic, in one cluster or in all; harmless if it does not exist."""
        if cluster is None:
            self._topics.pop(topic, None)
            self.changes += 1
            return
        names = self._names_in(cluster)
        for broker_name in [name for name in self._topics.get(topic, {}) if name in names]:
            self._take(topic, broker_name)

    # Internals

    def _check_claim(self, who: BrokerRegistration, holder: object) -> None:
        broker = self._brokers.get(who.broker_name)
        if broker is None:
            return
        first = broker.replicas.get(who.broker_id)
        if first is None:
            # A new replica needs the proof of the others; if they have none, the same cluster.
            others = [other for other in broker.replicas.values() if other.holder is not holder]
            first = next((other for other in others if other.proof is not None), None)
            if first is None and broker.cluster != who.cluster_name:
                first = next(iter(others), None)
        elif first.proof is None and broker.at(who.broker_addr) is not None:
            return  # The same stock broker, or a replica of its set that became master.
        if first is None or first.holder is holder or (first.proof or "") == who.proof:
            return
        raise NoPermission(
            f"the name {who.broker_name} (id {who.broker_id}) belongs to the broker at "
            f"{first.address}, which is alive, so {who.broker_addr} was not registered; give one "
            "of them another name, or wait until the first is gone"
        )

    def _replica(self, broker_name: str, address: str) -> Replica | None:
        broker = self._brokers.get(broker_name)
        return broker.at(address) if broker is not None else None

    def _known(self, who: BrokerRegistration) -> Replica | None:
        found = self._replica(who.broker_name, who.broker_addr)
        return found if found is not None and found.broker_id == who.broker_id else None

    def _names_in(self, cluster: str) -> set[str]:
        return {name for name, broker in self._brokers.items() if broker.cluster == cluster}

    def _check_room(self, fresh: bool, topics: list[TopicConfig]) -> None:
        count = self._replica_count()
        if fresh and count >= ROUTE_BROKERS_MAX:
            raise self._full("brokers", ROUTE_BROKERS_MAX, count + 1)
        known = self._topics
        self._check_topics(sum([topic.topic_name not in known for topic in topics]))

    def _check_topics(self, fresh: int) -> None:
        count = len(self._topics) + fresh
        if fresh and count > self._topics_max:
            raise self._full("topics", self._topics_max, count)

    def _full(self, what: str, limit: int, count: int) -> LimitExceeded:
        self._refused += 1
        return LimitExceeded(
            f"nothing was registered, because the number of {what} of a name server", limit, count
        )

    def _put(self, topic: str, queues: QueueRoute) -> None:
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = {}
            self.changes += 1
        known[queues.broker_name] = queues

    def _take(self, topic: str, broker_name: str) -> None:
        queues = self._topics[topic]
        queues.pop(broker_name, None)
        if not queues:
            del self._topics[topic]
            self.changes += 1

    def _remove(self, is_removed: Callable[[Replica], bool]) -> list[Replica]:
        removed = [replica for replica in self._replicas() if is_removed(replica)]
        for replica in removed:
            broker = self._brokers[replica.broker_name]
            del broker.replicas[replica.broker_id]
            if not broker.replicas:
                del self._brokers[broker.name]
                for topic in list(self._topics):
                    self._take(topic, broker.name)
        return removed

    def _replicas(self) -> Iterator[Replica]:
        for broker in self._brokers.values():
            yield from broker.replicas.values()

    def _set_permission(
        self, broker_name: str, change: Callable[[int], int]
    ) -> Generator[None, None, int]:
        count = 0
        for number, queues in enumerate(list(self._topics.values()), 1):
            if number % _CHANGED_AT_ONCE == 0:
                yield
            route = queues.get(broker_name)
            if route is not None:
                # A copy: a route that was already returned must not change.
                queues[broker_name] = replace(route, perm=change(route.perm))
                count += 1
        return count


def role_of(replica: Replica) -> str:
    """``leader`` or ``follower``."""
    return "leader" if replica.broker_id == MASTER else "follower"


def _queues(broker_name: str, config: TopicConfig) -> QueueRoute:
    return QueueRoute(
        broker_name=broker_name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_sys_flag=config.topic_sys_flag,
    )


def _master_of(broker: _Broker, broker_id: int) -> RegistrationAnswer:
    master = broker.replicas.get(MASTER)
    if broker_id == MASTER or master is None:
        return RegistrationAnswer()
    return RegistrationAnswer(ha_server_addr=master.ha_address, master_addr=master.address)
