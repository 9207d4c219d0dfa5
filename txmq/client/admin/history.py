"""Figures of the past, which brokers keep in memory.

Only txmq brokers support this request; Apache RocketMQ answers "not supported".
"""

from __future__ import annotations

from txmq.client.admin.cluster import ClusterCalls
from txmq.client.values import FigureHistory
from txmq.protocol.codes import RequestCode
from txmq.protocol.history import HistoryPage, ShowHistory

__all__ = ["HistoryCalls"]


class HistoryCalls(ClusterCalls):
    """Requests about the past."""

    async def broker_history(
        self, broker: str, *, from_ms: int = 0, period_s: int = 10
    ) -> FigureHistory:
        """A broker's own figures: rates, durations of sends, and open transactions.

        Args:
            broker: The broker.
            from_ms: The first time wanted, in milliseconds since 1970.
            period_s: The wanted pause between rows: 10 for the last hour, 60 for the last day.

        Raises:
            ConfigError: The broker is unknown.
            RequestNotSupported: The broker is not a txmq broker, or an older one.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses.
        """
        (address,) = (await self._masters(broker=broker)).values()
        return await self._history(address, broker, ShowHistory("", "", from_ms, 500, period_s))

    async def group_history(
        self, group: str, *, from_ms: int = 0, cluster: str | None = None
    ) -> list[FigureHistory]:
        """The lag of a group each minute, at every broker, in all and for each of a few queues.

        Raises:
            ConfigError: The cluster is unknown, or must be named because there are several.
            RequestNotSupported: A broker is not a txmq broker, or an older one.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        masters = await self._masters(cluster=cluster)
        wanted = ShowHistory(group, "", from_ms)
        return [await self._history(address, name, wanted) for name, address in masters.items()]

    async def topic_history(self, topic: str, *, from_ms: int = 0) -> list[FigureHistory]:
        """The messages a second that a topic received in each minute, at every broker that has it.

        Raises:
            TopicNotFound: No broker has the topic.
            RequestNotSupported: A broker is not a txmq broker, or an older one.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        route = await self._session.fresh_route(topic)
        wanted = ShowHistory("", topic, from_ms)
        return [await self._history(route.master(name), name, wanted) for name in route.brokers]

    async def _history(self, address: str, broker: str, wanted: ShowHistory) -> FigureHistory:
        times: list[int] = []
        values: list[list[float | None]] = []
        columns: list[str] = []
        while True:
            answer = await self._session.request(address, RequestCode.SHOW_HISTORY, wanted)
            page = HistoryPage.read(answer.body)
            if page.columns != columns:
                # A group has more or fewer queues than a moment ago: its older rows do not fit.
                times, values, columns = [], [], page.columns
            times += page.times
            values += page.values
            if not page.has_more or not page.times:
                break
            wanted.from_ms = page.times[-1] + 1
        rows = tuple((at_ms, tuple(figures)) for at_ms, figures in zip(times, values, strict=True))
        return FigureHistory(broker, page.period_s, tuple(columns), rows)
