"""Create, show, change and delete topics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from txmq.client.admin.cluster import ClusterCalls, queue_of
from txmq.client.names import check_name
from txmq.client.routes import TEMPLATE, Route
from txmq.client.values import QueueStatus
from txmq.errors import RequestNotSupported, RequestTimeout, TopicNotFound
from txmq.limits import QUEUES_OF_NEW_TOPICS
from txmq.message import Queue, QueueOffset
from txmq.protocol.bodies import (
    GroupList,
    QueueStats,
    TopicConfig,
    TopicConfigs,
    TopicCounts,
    TopicNames,
    read_queue_map,
)
from txmq.protocol.codes import Perm, RequestCode
from txmq.protocol.command import Command
from txmq.protocol.headers import TopicHeader, TopicSettings

__all__ = ["TopicCalls"]

READ_WRITE: Final = Perm.READ | Perm.WRITE

SHOWN_S: Final = 10.0
"""How long a name server may take to show a topic that a broker has just registered."""

LOOK_AGAIN_S: Final = (0.01, 0.5)
"""The first and the longest pause between two queries."""


class TopicCalls(ClusterCalls):
    """Requests about topics."""

    async def create_topic(
        self,
        name: str,
        queues: int = QUEUES_OF_NEW_TOPICS,
        broker: str | None = None,
        *,
        cluster: str | None = None,
        perm: int = READ_WRITE,
        order: bool = False,
    ) -> Route:
        """Create or change a topic, and return when the name server shows it.

        Args:
            name: The topic.
            queues: The number of queues on each broker.
            broker: The broker to create it on; by default, all of the cluster.
            cluster: The cluster, if there are several.
            perm: Reading, writing or both.
            order: Whether its queues must stay the same while a broker is down.

        Raises:
            LocalProtocolError: The topic name is invalid.
            ConfigError: Broker or cluster is unknown, or must be named because there are several.
            TransportError: A broker did not answer; it may have created the topic.
            BrokerRefused: A broker refuses. All others were asked as well: if some created the
                topic, a note of the error names them, and its effect is MAYBE.
        """
        check_name("topic", name)
        masters = await self._masters(broker=broker, cluster=cluster)
        config = TopicConfig(name, queues, queues, int(perm), order=order)
        return await self._put_topic(name, masters, dict.fromkeys(masters, config))

    async def update_topic(self, name: str, configs: Mapping[str, TopicConfig]) -> Route:
        """Change a topic on some brokers, and return when the name server shows it.

        Args:
            name: The topic.
            configs: The new settings by broker; :meth:`topic_config` returns the current ones.

        Raises:
            TopicNotFound: A broker does not have it.
            TransportError, BrokerRefused: As for :meth:`create_topic`.
        """
        route = await self._session.fresh_route(name)
        masters = {broker: route.master(broker) for broker in configs}
        return await self._put_topic(name, masters, configs)

    async def topic_config(self, name: str, *, broker: str | None = None) -> dict[str, TopicConfig]:
        """The settings of a topic by broker.

        Args:
            name: The topic.
            broker: The broker to query; by default, all that have the topic.

        Raises:
            TopicNotFound: The named broker does not have it, or no broker has it.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        route = await self._session.fresh_route(name)
        found: dict[str, TopicConfig] = {}
        for chosen in sorted(route.addresses) if broker is None else [broker]:
            config = await self._topic_at(route.reader(chosen), name)
            if config is not None:
                found[chosen] = config
        if not found:
            raise TopicNotFound(
                f"the name server names {', '.join(sorted(route.addresses))} for topic {name!r}, "
                f"but no broker has it; remove its entry with: txmq topic delete {name}"
            )
        return found

    async def topics_of_broker(self, broker: str) -> dict[str, TopicConfig]:
        """The settings of all topics of one broker by name.

        Raises:
            ConfigError: No such broker is known.
            TransportError: It does not answer.
            BrokerRefused: It refuses.
        """
        address = await self._master(broker)
        return await self._topics_at(address)

    async def _topic_at(self, address: str, name: str) -> TopicConfig | None:
        try:
            answer = await self._session.request(
                address, RequestCode.GET_TOPIC_CONFIG, TopicHeader(name)
            )
        except TopicNotFound:
            return None
        except RequestNotSupported:  # RocketMQ before 4.9.
            return (await self._topics_at(address)).get(name)
        return TopicConfig.read(answer.body)

    async def _topics_at(self, address: str) -> dict[str, TopicConfig]:
        answer = await self._session.request(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return TopicConfigs.read(answer.body).topic_config_table

    async def _put_topic(
        self, name: str, masters: Mapping[str, str], configs: Mapping[str, TopicConfig]
    ) -> Route:
        async def put(broker: str, address: str) -> None:
            config = configs[broker]
            header = TopicSettings(
                topic=name,
                default_topic=TEMPLATE,
                read_queue_nums=config.read_queue_nums,
                write_queue_nums=config.write_queue_nums,
                perm=config.perm,
                topic_filter_type=config.topic_filter_type,
                topic_sys_flag=config.topic_sys_flag,
                order=config.order,
            )
            await self._session.request(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

        await self._change_each(masters, put)
        return await self._shown(name, configs)

    async def delete_topic(self, name: str) -> None:
        """Remove a topic and its messages from every broker and name server.

        Raises:
            TopicNotFound: No broker has it.
            TransportError: A server does not answer. All other brokers were asked as well: if some
                removed the topic, a note of the error names them, and its effect is MAYBE.
            BrokerRefused: A server refuses, with the same note and effect.
        """
        route = await self._session.fresh_route(name)
        await self._change_each(
            dict.fromkeys(sorted(route.addresses), ""),
            lambda broker, _: self._session.request(
                route.master(broker), RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(name)
            ),
        )
        await self._session.tell_names(RequestCode.DELETE_TOPIC_IN_NAMESRV, TopicHeader(name))
        self._session.remove(name)

    async def topics(self) -> list[str]:
        """The names of all topics, including system topics.

        Raises:
            TransportError: No name server answers.
        """
        answer = await self._session.ask_names(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(TopicNames.read(answer.body).topic_list)

    async def topic_count(self) -> int:
        """The number of application topics, from a name server.

        Raises:
            RequestNotSupported: The name server is not a txmq name server, or an older one.
            TransportError: No name server answers.
            BrokerRefused: The name server refuses.
        """
        answer = await self._session.ask_names(RequestCode.COUNT_TOPICS)
        return TopicCounts.read(answer.body).topics

    async def route(self, name: str) -> Route:
        """The queues of a topic and the addresses of its brokers.

        Raises:
            TopicNotFound: No broker has it.
            TransportError: No name server answers.
        """
        return await self._session.fresh_route(name)

    async def topic_status(self, name: str) -> list[QueueStatus]:
        """The offset range of every queue of a topic.

        Raises:
            TopicNotFound: No broker has it.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        found: list[QueueStatus] = []
        for answer in await self._ask_readers(name, RequestCode.GET_TOPIC_STATS_INFO):
            table = read_queue_map(answer.body, "offsetTable", QueueStats)
            found += [
                QueueStatus(
                    queue_of(wire_queue),
                    QueueOffset(stats.min_offset),
                    QueueOffset(stats.max_offset),
                    stats.last_update_timestamp,
                )
                for wire_queue, stats in table.items()
            ]
        return sorted(found, key=lambda status: status.queue)

    async def topic_groups(self, name: str) -> list[str]:
        """The consumer groups that consume a topic, now or in the past.

        Raises:
            TopicNotFound: No broker has it.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        found: set[str] = set()
        for answer in await self._ask_readers(name, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO):
            found.update(GroupList.read(answer.body).group_list)
        return sorted(found)

    async def clusters_of(self, name: str) -> list[str]:
        """The clusters whose brokers have a topic.

        Raises:
            TopicNotFound: No broker has it.
            TransportError: No name server answers.
        """
        route = await self._session.fresh_route(name)
        return sorted({at.cluster for at in await self.cluster() if at.name in route.addresses})

    async def _ask_readers(self, name: str, code: RequestCode) -> list[Command]:
        """The answers of all brokers that have a topic."""
        route = await self._session.fresh_route(name)
        header = TopicHeader(name)
        return [
            await self._session.request(route.reader(broker), code, header)
            for broker in route.brokers
        ]

    async def _shown(self, name: str, configs: Mapping[str, TopicConfig]) -> Route:
        # Brokers update their name servers one-way, so updates may be applied out of order.
        writable = {
            Queue(name, broker, number)
            for broker, config in configs.items()
            if config.perm & Perm.WRITE
            for number in range(config.write_queue_nums)
        }
        readable = {
            Queue(name, broker, number)
            for broker, config in configs.items()
            if config.perm & Perm.READ
            for number in range(config.read_queue_nums)
        }
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
                and all(broker in route.addresses for broker in configs)
                and writable == {queue for queue in route.writable if queue.broker in configs}
                and readable == {queue for queue in route.readable if queue.broker in configs}
            ):
                return route
            if clock.monotonic() + pause > deadline:
                raise RequestTimeout(f"topic {name} is made, but no name server shows it yet")
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
