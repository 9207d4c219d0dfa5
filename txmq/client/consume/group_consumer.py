"""A member of a consumer group, and the checks of its subscriptions."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, Generic, TypeVar

from txmq.client.cluster_client import ClusterClient, client_of
from txmq.client.consume.assignment import QueueAssignment
from txmq.client.consume.subscription import ANY_TAG, TopicSubscription
from txmq.client.lifecycle import Lifecycle, not_open
from txmq.client.names import check_name
from txmq.client.routes import Route
from txmq.client.settings import ConsumerSettings
from txmq.errors import FilterUnsupported, InternalError, TopicNotFound, TransportError, TxmqError
from txmq.limits import GROUP_CHARS_MAX
from txmq.message import Queue
from txmq.protocol import bodies
from txmq.protocol.bodies import (
    ConsumerConnections,
    ConsumerRegistration,
    HeldQueue,
    SubscriptionCheck,
)
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import GroupHeader
from txmq.protocol.topics import RETRY
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network
from txmq.settings.values import settings_or

__all__ = ["GroupConsumer"]

log = logging.getLogger(__name__)

A = TypeVar("A", bound=QueueAssignment)


class GroupConsumer(Lifecycle, Generic[A]):
    """A member of a consumer group, with its own client or a shared one."""

    _consume_type: ClassVar[str]

    def __init__(
        self,
        group: str,
        names: str | ClusterClient,
        settings: ConsumerSettings | None,
        network: Network | None,
        clock: Clock | None,
        entropy: Entropy | None,
    ) -> None:
        check_name("group", group, GROUP_CHARS_MAX)
        self.group = group
        self.settings: ConsumerSettings = settings_or(ConsumerSettings, settings)
        self.client: ClusterClient
        self.client, self._is_own = client_of(names, network, clock, entropy)
        self._subscription_checks = SubscriptionChecks(self.client, group)
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._version = 0
        self._assignment: A | None = None

    @property
    def is_open(self) -> bool:
        """Whether it runs."""
        return self._assignment is not None

    @property
    def needs(self) -> Sequence[Lifecycle]:
        """The shared client, if it uses one."""
        return () if self._is_own else (self.client,)

    def rebalance_soon(self) -> None:
        """Rebalance soon."""
        if self._assignment is not None:
            self._assignment.rebalance_soon()
            work = self._subscription_checks.look(self._subscriptions)
            self.client.tasks.start(work, f"a look at group {self.group}")

    def held(self) -> dict[Queue, HeldQueue]:
        """The queues that it holds, for operators."""
        return {} if self._assignment is None else self._assignment.shown()

    def registration(self) -> ConsumerRegistration:
        """What it registers with brokers."""
        return ConsumerRegistration(
            self.group,
            self._consume_type,
            "BROADCASTING" if self.settings.is_broadcast else "CLUSTERING",
            self.settings.start.value,
            [wanted.registration(self._version) for wanted in self._wanted().values()],
        )

    def subscribed(self) -> list[bodies.SubscriptionData]:
        """Its subscriptions, as brokers register them."""
        return self.registration().subscription_data_set

    def _wanted(self) -> dict[str, TopicSubscription]:
        """The subscriptions by topic, including that of the group's retry topic, if it has one."""
        return self._subscriptions

    def _running(self) -> A:
        if self._assignment is None:
            raise not_open("this consumer is not running")
        self.client.session.owner.check()
        return self._assignment

    # Queues

    def pause(self, queues: Sequence[Queue] | None = None) -> None:
        """Pause fetching, for some queues, or for all current and future ones.

        A push consumer still handles the fetched messages; a pull consumer does not deliver them.
        """
        if self._assignment is not None:
            self._assignment.hold_back(queues, is_paused=True)

    def resume(self, queues: Sequence[Queue] | None = None) -> None:
        """Resume fetching and delivery."""
        if self._assignment is not None:
            self._assignment.hold_back(queues, is_paused=False)

    async def move(self, offsets: Mapping[Queue, int]) -> None:
        """Seek in queues that it holds; brokers request it when an operator resets offsets.

        An orderly queue moves after its running handler has ended, so that handler must not wait
        for this.
        """
        if self._assignment is not None:
            await self._assignment.move(offsets)


class SubscriptionChecks:
    """Checks one member's subscriptions, before it consumes and when other members come and go."""

    def __init__(self, client: ClusterClient, group: str) -> None:
        self._client = client
        self._group = group
        self._warned = ""
        self._is_looking = False

    async def check(self, wanted: Collection[TopicSubscription]) -> None:
        """Find the brokers of each topic, and make them parse the SQL conditions.

        All brokers support tags. If a broker cannot answer now, the pulls will fail later.

        Raises:
            SubscriptionInvalid: A condition does not parse; the text says where, if the broker
                does.
            FilterUnsupported: A broker does not support conditions.
            BrokerRefused: A broker refuses to check it.
        """
        session = self._client.session
        for subscription in wanted:
            # Retried in every round: the topic may be created later.
            with suppress(TxmqError):
                await session.route(subscription.topic)
        for subscription in wanted:
            route = session.known_route(subscription.topic)
            if not subscription.sql or route is None:
                continue
            version = session.clock.wall_ms()
            body = SubscriptionCheck(
                self._client.id, self._group, subscription.registration(version)
            )
            for broker in route.brokers:
                await self._ask(route, broker, body.write())

    async def _ask(self, route: Route, broker: str, body: bytes) -> None:
        try:
            address = route.reader(broker)
            await self._client.session.request(address, RequestCode.CHECK_CLIENT_CONFIG, body=body)
        except (TransportError, TopicNotFound) as error:
            log.warning("%s: %s could not check the condition: %s", self._group, broker, error)
        except InternalError as error:
            raise FilterUnsupported(f"{broker}: {error.remark}") from error

    async def look(self, wanted: Mapping[str, TopicSubscription]) -> None:
        """Warn if other members of the group have different subscriptions.

        A broker keeps one subscription for a group, from the member that registered last. The
        queues are shared as if all members had it, so each member silently misses some messages.
        """
        route = self._client.session.known_route(next(iter(wanted), ""))
        if route is None or not route.brokers or self._is_looking:
            return
        self._is_looking = True
        try:
            # Any broker will do: members register the same subscriptions with all of them.
            address = route.reader(route.brokers[0])
            answer = await self._client.session.request(
                address, RequestCode.GET_CONSUMER_CONNECTION_LIST, GroupHeader(self._group)
            )
            found = ConsumerConnections.read(answer.body)
        except TxmqError as error:
            log.debug("%s: cannot read the subscriptions of other members: %s", self._group, error)
            return
        finally:
            self._is_looking = False
        if {connection.client_id for connection in found.connection_set} - {self._client.id}:
            self._compare(wanted, found.subscription_table)

    def _compare(
        self, wanted: Mapping[str, TopicSubscription], theirs: Mapping[str, bodies.SubscriptionData]
    ) -> None:
        ours = {
            subscription.topic: _canonical(subscription.kind, subscription.expression)
            for subscription in wanted.values()
        }
        others = {
            topic: _canonical(subscription.expression_type, subscription.sub_string)
            for topic, subscription in theirs.items()
            if not topic.startswith(RETRY)
        }
        text = "; ".join(
            f"{topic}: {ours.get(topic, 'nothing')} here, {others.get(topic, 'nothing')} there"
            for topic in sorted(ours.keys() | others.keys())
            if ours.get(topic) != others.get(topic)
        )
        if text and text != self._warned:
            log.warning(
                "members of group %s want different messages, so that each misses a part (%s)",
                self._group,
                text,
            )
        self._warned = text


def _canonical(kind: str, expression: str) -> str:
    """An expression in its canonical form."""
    if kind not in {"", "TAG"}:
        return f"{kind} {expression.strip()}"
    words = {word.strip() for word in expression.split("||")} - {""}
    return " || ".join(sorted(words)) if words and ANY_TAG not in words else ANY_TAG
