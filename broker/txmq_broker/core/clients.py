"""The connected producers and consumers by group, according to their heartbeats."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from txmq.protocol.bodies import ConsumerRegistration, Heartbeat, SubscriptionData

__all__ = ["SILENCE_S", "Clients", "ConsumerGroup", "Member"]

C = TypeVar("C")

SILENCE_S: Final = 120.0
"""A client without a heartbeat for this long counts as gone."""


@dataclass(slots=True)
class Member(Generic[C]):
    """One client of a group on one connection."""

    connection: C
    client_id: str
    language: str
    version: int
    seen_at: float


@dataclass(slots=True)
class ConsumerGroup(Generic[C]):
    """The consumers of one group, and the subscriptions of its latest heartbeat."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    members: dict[C, Member[C]] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    attempts_max: int | None = None
    """The maximum number of retries, if a member stated one."""

    def client_ids(self) -> list[str]:
        """The distinct client ids; a client may have several connections."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))


class Clients(Generic[C]):
    """All groups with connected clients.

    Attributes:
        producer_groups: All producers by connection, by group.
    """

    def __init__(self) -> None:
        self._consumers: dict[str, ConsumerGroup[C]] = {}
        self.producer_groups: dict[str, dict[C, Member[C]]] = {}
        self._groups_of: dict[C, tuple[dict[str, None], dict[str, None]]] = {}
        """Producer and consumer groups by connection, to handle a lost connection fast."""

    def consumer_group(self, name: str) -> ConsumerGroup[C] | None:
        """A connected consumer group, or ``None``."""
        return self._consumers.get(name)

    def consumer_groups(self) -> list[ConsumerGroup[C]]:
        """All connected consumer groups."""
        return list(self._consumers.values())

    def producers(self, group: str) -> list[Member[C]]:
        """The producers of a group."""
        return list(self.producer_groups.get(group, {}).values())

    def consumer(self, group: str, client_id: str | None) -> Member[C] | None:
        """The group's consumer with this client id, or any consumer if it is ``None``."""
        found = self._consumers.get(group)
        if found is None:
            return None
        for member in found.members.values():
            if client_id is None or member.client_id == client_id:
                return member
        return None

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """A connected group's subscription to a topic."""
        found = self._consumers.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def lacks_subscription(self, group: str, topic: str) -> bool:
        """Return true if a connected group has subscriptions, but none to this topic."""
        found = self._consumers.get(group)
        return found is not None and bool(found.subscriptions) and topic not in found.subscriptions

    def find_client(self, client_id: str) -> C | None:
        """A connection of the producer with this client id."""
        for members in self.producer_groups.values():
            for member in members.values():
                if member.client_id == client_id:
                    return member.connection
        return None

    def beat(
        self, connection: C, beat: Heartbeat, language: str, version: int, now: float
    ) -> list[str]:
        """Record a heartbeat; returns the consumer groups whose members or topics changed."""
        produces, consumes = self._groups_of.setdefault(connection, ({}, {}))
        for producer in beat.producer_data_set:
            produces[producer.group_name] = None
            members = self.producer_groups.setdefault(producer.group_name, {})
            members[connection] = Member(connection, beat.client_id, language, version, now)
        changed: list[str] = []
        for consumer in beat.consumer_data_set:
            consumes[consumer.group_name] = None
            member = Member(connection, beat.client_id, language, version, now)
            if self._consumes(consumer, member):
                changed.append(consumer.group_name)
        return changed

    def _consumes(self, registration: ConsumerRegistration, member: Member[C]) -> bool:
        group = self._consumers.get(registration.group_name)
        if group is None:
            group = self._consumers[registration.group_name] = ConsumerGroup(
                registration.group_name
            )
        group.consume_type = str(registration.consume_type)
        group.message_model = str(registration.message_model)
        group.consume_from_where = str(registration.consume_from_where)
        is_new = member.connection not in group.members
        group.members[member.connection] = member
        wanted = {
            subscription.topic: subscription for subscription in registration.subscription_data_set
        }
        topics_changed = wanted.keys() != group.subscriptions.keys()
        for topic, subscription in wanted.items():
            known = group.subscriptions.get(topic)
            if known is not None and known.sub_version > subscription.sub_version:
                wanted[topic] = known
        group.subscriptions = wanted
        return is_new or topics_changed

    def leave(self, connection: C, producer_group: str | None, consumer_group: str | None) -> bool:
        """Remove a client from the groups it names; returns whether the consumer group changed."""
        if producer_group is not None:
            self._leave_producers(connection, producer_group)
        return consumer_group is not None and self._leave_consumers(connection, consumer_group)

    def _leave_producers(self, connection: C, name: str) -> None:
        members = self.producer_groups.get(name)
        if members is not None and members.pop(connection, None) is not None and not members:
            del self.producer_groups[name]

    def _leave_consumers(self, connection: C, name: str) -> bool:
        group = self._consumers.get(name)
        if group is None or group.members.pop(connection, None) is None:
            return False
        if not group.members:
            del self._consumers[name]
        return True

    def drop(self, connection: C) -> list[str]:
        """Remove a lost connection from all groups; returns the consumer groups that changed."""
        produces, consumes = self._groups_of.pop(connection, ({}, {}))
        for name in produces:
            self._leave_producers(connection, name)
        return [name for name in consumes if self._leave_consumers(connection, name)]

    def silent_connections(self, now: float) -> list[C]:
        """The connections without recent heartbeats."""
        quiet: dict[C, None] = {}
        for group in self._consumers.values():
            quiet |= {
                member.connection: None for member in group.members.values() if _silent(member, now)
            }
        for members in self.producer_groups.values():
            quiet |= {
                member.connection: None for member in members.values() if _silent(member, now)
            }
        return list(quiet)


def _silent(member: Member[C], now: float) -> bool:
    return now - member.seen_at > SILENCE_S
