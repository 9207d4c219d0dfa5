"""Topics made, shown and removed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from txmq.client.cluster import ClusterCalls
from txmq.client.envelope import check_name
from txmq.client.routes import TEMPLATE, Route
from txmq.client.values import QueueStatus
from txmq.errors import RequestTimeout, TopicNotFound
from txmq.message import Queue, QueueOffset
from txmq.protocol.bodies import Groups, QueueStats, TopicNames, read_queue_map
from txmq.protocol.codes import Perm, RequestCode
from txmq.protocol.headers import TopicHeader, TopicSettings

__all__ = ["TopicCalls"]

READ_WRITE: Final = Perm.READ | Perm.WRITE

SHOWN_S: Final = 10.0
"""How long a name server may take to show a topic that a broker has just told it of."""

LOOK_AGAIN_S: Final = (0.01, 0.5)
"""The first and the longest pause between two looks."""


class TopicCalls(ClusterCalls):
    """Orders and questions about topics, over a session."""

    async def create_topic(
        self,
        name: str,
        queues: int = 8,
        broker: str | None = None,
        *,
        cluster: str | None = None,
        perm: int = READ_WRITE,
        order: bool = False,
    ) -> Route:
        """Make a topic, or change it, and return when the name server shows it.

        Args:
            name: The topic.
            queues: Its queues at each broker.
            broker: The broker to make it at; all of the cluster where none is named.
            cluster: The cluster, where there are several.
            perm: What it allows.
            order: Whether its queues must not change while a broker is away.

        Raises:
            LocalProtocolError: It is no name for a topic.
            ConfigError: Broker or cluster is unknown, or several clusters leave the choice open.
            TransportError: No answer came; the topic may have been made at some brokers.
            BrokerRefused: A broker refuses; the topic may have been made at others.
        """
        check_name("topic", name)
        header = TopicSettings(
            topic=name,
            default_topic=TEMPLATE,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=int(perm),
            topic_sys_flag=0,
            order=order,
        )
        masters = await self._masters(broker=broker, cluster=cluster)
        for address in masters.values():
            await self._session.request(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        return await self._shown(name, masters, queues, perm)

    async def delete_topic(self, name: str) -> None:
        """Remove a topic and its messages from every broker and name server.

        Raises:
            TopicNotFound: No broker has it.
            TransportError: Somebody does not answer; others may have removed it.
            BrokerRefused: Somebody refuses; others may have removed it.
        """
        route = await self._session.fresh_route(name)
        for broker in sorted(route.addresses):
            await self._session.request(
                route.master(broker), RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(name)
            )
        await self._session.tell_names(RequestCode.DELETE_TOPIC_IN_NAMESRV, TopicHeader(name))
        self._session.forget(name)

    async def topics(self) -> list[str]:
        """The names of all topics, those of the system too.

        Raises:
            TransportError: No name server answers.
        """
        answer = await self._session.ask_names(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(TopicNames.read(answer.body).topic_list)

    async def route(self, name: str) -> Route:
        """Where a topic lives.

        Raises:
            TopicNotFound: No broker has it.
            TransportError: No name server answers.
        """
        return await self._session.fresh_route(name)

    async def topic_status(self, name: str) -> list[QueueStatus]:
        """The queues of a topic and what is in them.

        Raises:
            TopicNotFound: No broker has it.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        route = await self._session.fresh_route(name)
        found: list[QueueStatus] = []
        for broker in route.brokers:
            answer = await self._session.request(
                route.reader(broker), RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(name)
            )
            table = read_queue_map(answer.body, "offsetTable", QueueStats)
            found += [
                QueueStatus(
                    Queue(each.topic, each.broker_name, each.queue_id),
                    QueueOffset(stats.min_offset),
                    QueueOffset(stats.max_offset),
                    stats.last_update_timestamp,
                )
                for each, stats in table.items()
            ]
        return sorted(found, key=lambda each: each.queue)

    async def topic_groups(self, name: str) -> list[str]:
        """The consumer groups that consume a topic or have done so.

        Raises:
            TopicNotFound: No broker has it.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        route = await self._session.fresh_route(name)
        found: set[str] = set()
        for broker in route.brokers:
            answer = await self._session.request(
                route.reader(broker), RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader(name)
            )
            found.update(Groups.read(answer.body).group_list)
        return sorted(found)

    async def _shown(self, name: str, brokers: Collection[str], queues: int, perm: int) -> Route:
        # Brokers tell their name servers one-way, so the order that came first may be served last.
        writable = _numbered(name, brokers, queues if perm & Perm.WRITE else 0)
        readable = _numbered(name, brokers, queues if perm & Perm.READ else 0)
        clock = self._session.clock
        deadline = clock.monotonic() + SHOWN_S
        pause, longest = LOOK_AGAIN_S
        while True:
            try:
                route = await self._session.fresh_route(name)
            except TopicNotFound:
                route = None
            if (
                route is not None
                and all(each in route.addresses for each in brokers)
                and writable == {each for each in route.writable if each.broker in brokers}
                and readable == {each for each in route.readable if each.broker in brokers}
            ):
                return route
            if clock.monotonic() + pause > deadline:
                raise RequestTimeout(f"topic {name} is made, but no name server shows it yet")
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)


def _numbered(name: str, brokers: Collection[str], queues: int) -> set[Queue]:
    return {Queue(name, broker, number) for broker in brokers for number in range(queues)}
