"""Takes the figures of the history: the broker's own each ten seconds, lag and rates each minute.

It works in slices beside the requests: 10,000 groups take a tenth of a second in all.
"""

from __future__ import annotations

import asyncio
import logging

from txmq.metrics.histogram import Histogram
from txmq.remoting.connection import Connection
from txmq.runtime.clock import Clock
from txmq_broker.core.clients import Clients
from txmq_broker.core.history import FINE_S, BrokerHistory, BrokerTotals, LagHistory, RateHistory
from txmq_broker.core.offsets import Offsets
from txmq_broker.core.statistics import Statistics
from txmq_broker.core.topics import Topics
from txmq_broker.services.slices import Pause
from txmq_broker.store.message_store import MessageStore

__all__ = ["HistoryRecorder"]

log = logging.getLogger(__name__)

_BETWEEN_PAUSES = 64


class HistoryRecorder:
    """The history of one broker, which it takes while it runs.

    Attributes:
        broker: The broker's own figures.
        lag: The lag of groups.
        rates: The messages of topics.
    """

    def __init__(
        self,
        topics: Topics,
        offsets: Offsets,
        clients: Clients[Connection],
        statistics: Statistics,
        store: MessageStore,
        clock: Clock,
    ) -> None:
        self.broker = BrokerHistory()
        self.lag = LagHistory()
        self.rates = RateHistory()
        self._topics = topics
        self._offsets = offsets
        self._clients = clients
        self._statistics = statistics
        self._pending = store.halves.pending
        self._clock = clock

    async def run(self, sends: Histogram) -> None:
        """Take figures until cancelled.

        Args:
            sends: The durations of sends.
        """
        while True:
            try:
                await self.take(sends)
            except Exception:
                log.exception("a row of the history could not be taken")
            await asyncio.sleep(FINE_S)

    async def take(self, sends: Histogram) -> None:
        """Take the figures of this moment."""
        pause, topics = Pause(), self._topics
        messages_in, named = topics.puts_forgotten, []
        for number, topic in enumerate(list(topics)):
            messages_in += topic.put_count
            if topic.put_count:
                named.append(topic)
            if number % _BETWEEN_PAUSES == 0 and pause.is_due():
                await pause.rest()
        now_ms = self._clock.wall_ms()
        is_minute = self.broker.note(
            BrokerTotals(
                now_ms,
                messages_in,
                self._statistics.meter("BROKER_GET_NUMS", "").total,
                tuple(sends.counts),
                len(self._pending),
                self._pending.parked,
            )
        )
        if not is_minute:
            return
        self.rates.begin(now_ms)
        for topic in named:
            self.rates.note(topic.name, topic.put_count)
            if pause.is_due():
                await pause.rest()
        self.rates.end()
        await self._take_lag(now_ms, pause)

    async def _take_lag(self, now_ms: int, pause: Pause) -> None:
        self.lag.begin(now_ms)
        for group in self._offsets.groups():
            self.lag.note(group, self._lags(group))
            if pause.is_due():
                await pause.rest()
        self.lag.end()

    def _lags(self, group: str) -> dict[str, int]:
        lags: dict[str, int] = {}
        for name in self._offsets.topics_of(group):
            topic = self._topics.by_name.get(name)
            if topic is None or self._clients.lacks_subscription(group, name):
                continue
            offsets = self._offsets.queues(group, name)
            for queue in topic.queues[: topic.config.read_queue_nums]:
                lag = queue.max_offset - max(0, offsets.get(queue.number, 0))
                lags[f"{name}:{queue.number}"] = lag
        return lags
