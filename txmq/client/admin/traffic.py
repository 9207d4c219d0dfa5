"""Rates of topics and groups, as brokers count them."""

from __future__ import annotations

from typing import Final

from txmq.client.admin.groups import GroupCalls, total_retries
from txmq.client.admin.topics import TopicCalls
from txmq.client.values import TopicTraffic
from txmq.errors import InternalError
from txmq.protocol.bodies import CounterView, CounterWindow, TopicCounts
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import StatsQuery

__all__ = ["TrafficCalls"]

_NOTHING: Final = CounterView(CounterWindow(), CounterWindow(), CounterWindow())


class TrafficCalls(TopicCalls, GroupCalls):
    """Requests about rates."""

    async def traffic(self, topic: str) -> list[TopicTraffic]:
        """The messages that a topic receives, and that each of its groups fetches.

        Returns:
            One row for each group; a row without a group if no group consumes the topic.

        Raises:
            TopicNotFound: No broker has the topic.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        route = await self._session.fresh_route(topic)
        addresses = [route.master(broker) for broker in route.brokers]
        stored = [await self._counter(at, "TOPIC_PUT_NUMS", topic) for at in addresses]
        clusters = await self.clusters_of(topic)
        rows: list[TopicTraffic] = []
        for group in await self.topic_groups(topic) or [""]:
            fetched = [
                await self._counter(at, "GROUP_GET_NUMS", f"{topic}@{group}")
                for at in addresses
                if group
            ]
            lags = [
                await self.group_lag(group, topic, cluster=cluster) for cluster in clusters if group
            ]
            rows.append(
                TopicTraffic(
                    topic=topic,
                    group=group,
                    lag=sum(found.lag for found in lags),
                    retries=total_retries([found.retries for found in lags]),
                    in_per_second=sum(found.stats_minute.tps for found in stored),
                    out_per_second=sum(found.stats_minute.tps for found in fetched),
                    in_of_day=sum(map(_of_day, stored)),
                    out_of_day=sum(map(_of_day, fetched)),
                )
            )
        return rows

    async def topic_count(self) -> int:
        """The number of topics of applications, from a name server.

        Raises:
            RequestNotSupported: The name server is not one of txmq, or an older one.
            TransportError: No name server answers.
            BrokerRefused: The name server refuses.
        """
        answer = await self._session.ask_names(RequestCode.COUNT_TOPICS)
        return TopicCounts.read(answer.body).topics

    async def dead_letter_count(self, broker: str) -> int:
        """The number of dead letters of all groups at one broker.

        Raises:
            ConfigError: The broker is unknown.
            RequestNotSupported: The broker is not a txmq broker, or an older one.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses.
        """
        (address,) = (await self._masters(broker=broker)).values()
        answer = await self._session.request(address, RequestCode.COUNT_TOPICS)
        return TopicCounts.read(answer.body).dead_letters or 0

    async def _counter(self, address: str, name: str, key: str) -> CounterView:
        try:
            answer = await self._session.request(
                address, RequestCode.VIEW_BROKER_STATS_DATA, StatsQuery(name, key)
            )
        except InternalError:
            return _NOTHING  # Brokers know a counter from its first event on.
        return CounterView.read(answer.body)


def _of_day(found: CounterView) -> int:
    # The windows of a broker that started today are filled one after the other.
    return max(found.stats_day.sum, found.stats_hour.sum, found.stats_minute.sum)
