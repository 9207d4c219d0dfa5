"""The connected producers and consumers by group, and the rules for their names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from txmq.errors import InternalError, ServiceUnavailable
from txmq.limits import (
    CLIENT_ID_CHARS_MAX,
    GROUP_CHARS_MAX,
    GROUPS_PER_CLIENT_MAX,
    GROUPS_SPARED,
    MEMBERS_MAX,
    SUBSCRIPTIONS_MAX,
    SUBSCRIPTIONS_PER_CLIENT_MAX,
)
from txmq.protocol.bodies import ConsumerRegistration, Heartbeat, SubscriptionData

__all__ = [
    "SILENCE_S",
    "Clients",
    "ConsumerGroup",
    "Member",
    "check_client_id",
    "check_consumer_group",
    "check_producer_group",
    "producer_group_fault",
]

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
        members: The number of group memberships of all connections together.
        subscriptions: The number of subscriptions of all connected groups.
        refused: The number of heartbeats that exceeded a limit.
    """

    def __init__(self) -> None:
        self._consumers: dict[str, ConsumerGroup[C]] = {}
        self.producer_groups: dict[str, dict[C, Member[C]]] = {}
        self.members = self.subscriptions = self.refused = 0
        self._groups_of: dict[C, tuple[dict[str, None], dict[str, None]]] = {}
        """Producer and consumer groups by connection, to handle a lost connection fast."""

    def figures(self) -> dict[str, int]:
        """What the broker keeps for clients, and what it refused them since the start."""
        return {
            "members": self.members,
            "subscriptions": self.subscriptions,
            "heartbeats_refused": self.refused,
        }

    def consumer_group(self, name: str) -> ConsumerGroup[C] | None:
        """A connected consumer group, or ``None``."""
        return self._consumers.get(name)

    def consumer_groups(self) -> list[ConsumerGroup[C]]:
        """All connected consumer groups."""
        return list(self._consumers.values())

    def producers(self, group: str) -> list[Member[C]]:
        """The producers of a group."""
        return list(self.producer_groups.get(group, {}).values())

    def producer_id(self, group: str, connection: C) -> str:
        """The client id of a group's producer at a connection; empty if it is not connected."""
        members = self.producer_groups.get(group)
        member = members.get(connection) if members else None
        return member.client_id if member else ""

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
        """Record a heartbeat; returns the consumer groups whose members or topics changed.

        Call :meth:`check` first.
        """
        if not (beat.producer_data_set or beat.consumer_data_set):
            return []
        produces, consumes = self._groups_of.setdefault(connection, ({}, {}))
        self.members -= len(produces) + len(consumes)
        member = Member(connection, beat.client_id, language, version, now)
        for producer in beat.producer_data_set:
            produces[producer.group_name] = None
            self.producer_groups.setdefault(producer.group_name, {})[connection] = member
        changed: list[str] = []
        for consumer in beat.consumer_data_set:
            consumes[consumer.group_name] = None
            if self._consumes(consumer, member):
                changed.append(consumer.group_name)
        self.members += len(produces) + len(consumes)
        return changed

    def check(self, connection: C, beat: Heartbeat) -> None:
        """Refuse a heartbeat that exceeds a limit, before any of it is recorded.

        Raises:
            InternalError: The client exceeds its own limit.
            ServiceUnavailable: All clients together would exceed a limit.
        """
        try:
            self._check(connection, beat)
        except (InternalError, ServiceUnavailable):
            self.refused += 1
            raise

    def _check(self, connection: C, beat: Heartbeat) -> None:
        produces, consumes = self._groups_of.get(connection, ({}, {}))
        producers = produces.keys() | {group.group_name for group in beat.producer_data_set}
        consumers = consumes.keys() | {group.group_name for group in beat.consumer_data_set}
        wanted = {
            group.group_name: len(group.subscription_data_set) for group in beat.consumer_data_set
        }
        for kind, names in (("producer", producers), ("consumer", consumers)):
            if len(names) > GROUPS_PER_CLIENT_MAX:
                raise InternalError(
                    f"a client has at most {GROUPS_PER_CLIENT_MAX} {kind} groups on one "
                    f"connection, not {len(names)}; nothing of the heartbeat was recorded; use "
                    "fewer groups, or several clients"
                )
        total = sum(len(group.subscription_data_set) for group in beat.consumer_data_set)
        if total > SUBSCRIPTIONS_PER_CLIENT_MAX:
            raise InternalError(
                f"a heartbeat has at most {SUBSCRIPTIONS_PER_CLIENT_MAX} subscriptions, not "
                f"{total}; nothing of it was recorded; use several clients"
            )
        groups = len(producers) + len(consumers)
        if groups <= GROUPS_SPARED and all(count <= GROUPS_SPARED for count in wanted.values()):
            return
        members = self.members + groups - len(produces) - len(consumes)
        subscriptions = self.subscriptions + sum(wanted.values()) - self._subscribed(wanted)
        for what, now, then, limit in (
            ("groups", self.members, members, MEMBERS_MAX),
            ("subscriptions", self.subscriptions, subscriptions, SUBSCRIPTIONS_MAX),
        ):
            # Heartbeats of small clients are always accepted, so the sum may exceed the limit; a
            # client that adds nothing must not be refused for that.
            if then > max(limit, now):
                raise ServiceUnavailable(
                    f"the clients of this broker would have {then} {what} together, and {limit} "
                    "is the limit; nothing of the heartbeat was recorded; it is accepted once "
                    "other clients have left"
                )

    def _subscribed(self, names: Iterable[str]) -> int:
        groups = [group for name in names if (group := self._consumers.get(name)) is not None]
        return sum(len(group.subscriptions) for group in groups)

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
        self.subscriptions += len(wanted) - len(group.subscriptions)
        group.subscriptions = wanted
        return is_new or topics_changed

    def leave(self, connection: C, producer_group: str | None, consumer_group: str | None) -> bool:
        """Remove a client from the groups it names; returns whether the consumer group changed."""
        produces, consumes = self._groups_of.get(connection, ({}, {}))
        self.members -= (producer_group in produces) + (consumer_group in consumes)
        if producer_group is not None:
            produces.pop(producer_group, None)
            self._leave_producers(connection, producer_group)
        if consumer_group is None:
            return False
        consumes.pop(consumer_group, None)
        return self._leave_consumers(connection, consumer_group)

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
            self.subscriptions -= len(group.subscriptions)
        return True

    def drop(self, connection: C) -> list[str]:
        """Remove a lost connection from all groups; returns the consumer groups that changed."""
        produces, consumes = self._groups_of.pop(connection, ({}, {}))
        self.members -= len(produces) + len(consumes)
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


_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_SHOWN_CHARS: Final = 60


def check_consumer_group(name: str) -> None:
    """Refuse a consumer group's name that stock clients also refuse.

    Raises:
        InternalError: It is empty, too long, or has characters that a topic's name may not have.
    """
    if len(name) > GROUP_CHARS_MAX:
        raise InternalError(_too_long("consumer group", name, GROUP_CHARS_MAX))
    if not _LEGAL.fullmatch(name):
        raise InternalError(
            f"the consumer group {_start(name)} is empty or holds illegal characters; use letters, "
            "digits, '_', '-', '%' and '|'"
        )


def check_producer_group(name: str) -> None:
    """Refuse a producer group's name that cannot be displayed.

    Raises:
        InternalError: It is too long, or holds characters that are not printable.
    """
    if fault := producer_group_fault(name):
        raise InternalError(fault)


def check_client_id(name: str) -> None:
    """Refuse a client id that cannot be displayed.

    Raises:
        InternalError: It is too long, or holds characters that are not printable.
    """
    if fault := _fault("client id", name, CLIENT_ID_CHARS_MAX):
        raise InternalError(fault)


def producer_group_fault(name: str) -> str:
    """Return why a producer group's name is invalid; empty if it is valid."""
    return _fault("producer group", name, GROUP_CHARS_MAX)


def _fault(kind: str, name: str, chars_max: int) -> str:
    if len(name) > chars_max:
        return _too_long(kind, name, chars_max)
    if not name.isprintable():
        return (
            f"the {kind} {_start(name)} holds control characters, or others that are not printable"
        )
    return ""


def _too_long(kind: str, name: str, chars_max: int) -> str:
    return f"the {kind} {_start(name)} has {len(name)} characters; at most {chars_max} are allowed"


def _start(name: str) -> str:
    return ascii(name[:_SHOWN_CHARS]) + ("..." if len(name) > _SHOWN_CHARS else "")
