"""Checks that brokers support a group's subscriptions and that all members have the same ones."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress

from txmq.client.cluster_client import ClusterClient
from txmq.client.consume.subscription import ANY_TAG, TopicSubscription
from txmq.client.routes import Route
from txmq.errors import FilterUnsupported, InternalError, TopicNotFound, TransportError, TxmqError
from txmq.protocol import bodies
from txmq.protocol.bodies import ConsumerConnections, SubscriptionCheck
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import GroupHeader
from txmq.protocol.topics import RETRY

__all__ = ["SubscriptionChecks"]

log = logging.getLogger(__name__)


class SubscriptionChecks:
    """The checks of one member: before it consumes, and when other members come and go."""

    def __init__(self, client: ClusterClient, group: str) -> None:
        self._client = client
        self._group = group
        self._told = ""
        self._is_looking = False

    async def check(self, wanted: Collection[TopicSubscription]) -> None:
        """Find the brokers of each topic, and make them parse the SQL conditions.

        All brokers support tags. If a broker cannot answer now, the pulls will fail later.

        Raises:
            SubscriptionInvalid: A condition does not parse; the text says where, if the broker
                does.
            FilterUnsupported: A broker does not support conditions.
            BrokerRefused: A broker refuses to look at it.
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
            log.warning("%s: %s has not read the condition: %s", self._group, broker, error)
        except InternalError as error:
            raise FilterUnsupported(f"{broker}: {error.remark}") from error

    async def look(self, wanted: Mapping[str, TopicSubscription]) -> None:
        """Warn if other members of the group have other subscriptions.

        A broker keeps one subscription for a group, from the member that registered last. The
        queues are shared as if all members had it, so each member silently misses some messages.
        """
        route = self._client.session.known_route(next(iter(wanted), ""))
        if route is None or not route.brokers or self._is_looking:
            return
        self._is_looking = True
        try:
            # Any broker is enough: members register the same with all of them.
            address = route.reader(route.brokers[0])
            answer = await self._client.session.request(
                address, RequestCode.GET_CONSUMER_CONNECTION_LIST, GroupHeader(self._group)
            )
            found = ConsumerConnections.read(answer.body)
        except TxmqError as error:
            log.debug("%s: what others want is not known: %s", self._group, error)
            return
        finally:
            self._is_looking = False
        if {connection.client_id for connection in found.connection_set} - {self._client.id}:
            self._compare(wanted, found.subscription_table)

    def _compare(
        self, wanted: Mapping[str, TopicSubscription], theirs: Mapping[str, bodies.SubscriptionData]
    ) -> None:
        ours = {
            subscription.topic: _told(subscription.kind, subscription.expression)
            for subscription in wanted.values()
        }
        others = {
            topic: _told(subscription.expression_type, subscription.sub_string)
            for topic, subscription in theirs.items()
            if not topic.startswith(RETRY)
        }
        text = "; ".join(
            f"{topic}: {ours.get(topic, 'nothing')} here, {others.get(topic, 'nothing')} there"
            for topic in sorted(ours.keys() | others.keys())
            if ours.get(topic) != others.get(topic)
        )
        if text and text != self._told:
            log.warning(
                "members of group %s want different messages, so that each misses a part (%s)",
                self._group,
                text,
            )
        self._told = text


def _told(kind: str, expression: str) -> str:
    """An expression in its canonical form."""
    if kind not in {"", "TAG"}:
        return f"{kind} {expression.strip()}"
    words = {word.strip() for word in expression.split("||")} - {""}
    return " || ".join(sorted(words)) if words and ANY_TAG not in words else ANY_TAG
