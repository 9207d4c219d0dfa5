"""Whether brokers understand what a group wants, and whether all its members want the same."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from txmq.client.cluster_client import ClusterClient
from txmq.client.consume.subscription import ANY_TAG, TopicSubscription
from txmq.client.routes import Route
from txmq.errors import (
    FilterUnsupported,
    InternalError,
    TopicNotFound,
    TransportError,
    TxmqError,
)
from txmq.protocol import bodies
from txmq.protocol.bodies import ConsumerConnections, SubscriptionCheck
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import GroupHeader
from txmq.protocol.topics import RETRY

__all__ = ["Agreement"]

log = logging.getLogger(__name__)


class Agreement:
    """What one member of a group finds out before it consumes, and when others come and go."""

    def __init__(self, client: ClusterClient, group: str) -> None:
        self._client = client
        self._group = group
        self._told = ""
        self._is_looking = False

    async def check(self, wanted: Collection[TopicSubscription]) -> None:
        """Have the brokers read the conditions among these, each broker of the topic.

        Tags are understood by all. What nobody can say now is left to the pulls.

        Raises:
            SubscriptionInvalid: A condition is none; tells where, if the broker does.
            FilterUnsupported: A broker takes no conditions.
            BrokerRefused: A broker refuses to look at it.
        """
        session = self._client.session
        for each in wanted:
            route = session.known_route(each.topic)
            if not each.sql or route is None:
                continue
            version = session.clock.wall_ms()
            body = SubscriptionCheck(self._client.id, self._group, each.registration(version))
            for broker in route.brokers:
                await self._ask(route, broker, body.write())

    async def _ask(self, route: Route, broker: str, body: bytes) -> None:
        try:
            address = route.reader(broker)
            await self._client.session.request(address, RequestCode.CHECK_CLIENT_CONFIG, body=body)
        except (TransportError, TopicNotFound) as problem:
            log.warning("%s: %s has not read the condition: %s", self._group, broker, problem)
        except InternalError as problem:
            raise FilterUnsupported(f"{broker}: {problem.remark}") from problem

    async def look(self, wanted: Mapping[str, TopicSubscription]) -> None:
        """Warn where other members of the group want something else of its topics.

        Brokers know one subscription of a group, that of whoever spoke last, and share out the
        queues as if all had it: each member misses a part, and nobody is told.
        """
        route = self._client.session.known_route(next(iter(wanted), ""))
        if route is None or not route.brokers or self._is_looking:
            return
        self._is_looking = True
        try:
            # Any broker will do: members say the same to all of them.
            address = route.reader(route.brokers[0])
            answer = await self._client.session.request(
                address, RequestCode.GET_CONSUMER_CONNECTION_LIST, GroupHeader(self._group)
            )
            found = ConsumerConnections.read(answer.body)
        except TxmqError as problem:
            log.debug("%s: what others want is not known: %s", self._group, problem)
            return
        finally:
            self._is_looking = False
        if {each.client_id for each in found.connection_set} - {self._client.id}:
            self._compare(wanted, found.subscription_table)

    def _compare(
        self,
        wanted: Mapping[str, TopicSubscription],
        theirs: Mapping[str, bodies.SubscriptionData],
    ) -> None:
        ours = {each.topic: _told(each.kind, each.expression) for each in wanted.values()}
        others = {
            topic: _told(each.expression_type, each.sub_string)
            for topic, each in theirs.items()
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
    """An expression, written in one way."""
    if kind not in {"", "TAG"}:
        return f"{kind} {expression.strip()}"
    words = {each.strip() for each in expression.split("||")} - {""}
    return " || ".join(sorted(words)) if words and ANY_TAG not in words else ANY_TAG
