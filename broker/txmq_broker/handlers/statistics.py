"""28, 315, 306, 316, 329: the broker's counters, and clean-up on request."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import txmq
from txmq.errors import InternalError
from txmq.protocol.bodies import CounterView, CounterWindow, TextTable
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import VERSION, Command, answer
from txmq.protocol.headers import StatsQuery, camel
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq.runtime.disk import Space
from txmq_broker.core.statistics import DAY_S, HOUR_S, MINUTE_S, Meter
from txmq_broker.parts import Parts, ReadParts

__all__ = ["StatisticsHandlers", "StatisticsReads"]

VERSION_NAME: Final = "V4_9_8"
"""RocketMQ's name for our protocol version; tools print it."""

_UNKNOWN: Final = "-1"

_UNMEASURED: Final = dict.fromkeys(
    (
        "sendThreadPoolQueueSize",
        "sendThreadPoolQueueCapacity",
        "sendThreadPoolQueueHeadWaitTimeMills",
        "pullThreadPoolQueueSize",
        "pullThreadPoolQueueCapacity",
        "pullThreadPoolQueueHeadWaitTimeMills",
        "queryThreadPoolQueueSize",
        "queryThreadPoolQueueCapacity",
        "queryThreadPoolQueueHeadWaitTimeMills",
        "EndTransactionQueueSize",
        "EndTransactionThreadPoolQueueCapacity",
        "pageCacheLockTimeMills",
        "dispatchMaxBuffer",
        "remainTransientStoreBufferNumbs",
        "putMessageEntireTimeMax",
        "getMessageEntireTimeMax",
        "putMessageFailedTimes",
        "startAcceptSendRequestTimeStamp",
    ),
    "0",
)
"""Figures that do not exist here or are not measured. The answer includes them, because monitoring
tools show nothing of a broker that lacks one of them."""


class StatisticsReads:
    """Serves the broker's state to operators' tools."""

    def __init__(self, parts: ReadParts) -> None:
        self._identity = parts.identity
        self._topics = parts.topics
        self._offsets = parts.offsets
        self._store = parts.store
        self._statistics = parts.statistics
        self._disk = parts.disk
        self._clock = parts.clock
        self._started_ms = parts.started_ms
        self._access = parts.access
        self._figures = parts.figures

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime,
            RequestCode.VIEW_BROKER_STATS_DATA: self.counter,
        }

    # 28

    def runtime(self, _: Connection, request: Command) -> bytes:
        """28: all figures that a monitoring page shows."""
        self._statistics.count_puts(self._topics)
        table = {
            "brokerVersionDesc": VERSION_NAME,
            "brokerVersion": str(VERSION),
            "txmqVersion": txmq.__version__,
            "access": self._access,
            **_UNMEASURED,
            **self._times(),
            **self._totals(),
            **self._rates(),
            **self._space(),
            **self._of_leader(),
            **{camel(name): str(value) for name, value in self._figures().items()},
        }
        return answer(request, body=TextTable(dict(sorted(table.items()))).write())

    def _times(self) -> dict[str, str]:
        up_s = max(0, self._clock.wall_ms() - self._started_ms) // 1000
        minutes, seconds = divmod(up_s, 60)
        hours, minutes = divmod(minutes, 60)
        days, hours = divmod(hours, 24)
        earliest = self._store.earliest_ms()
        return {
            "bootTimestamp": str(self._started_ms),
            "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]",
            "earliestMessageTimeStamp": _UNKNOWN if earliest is None else str(earliest),
        }

    def _totals(self) -> dict[str, str]:
        statistics = self._statistics
        puts = statistics.meter("BROKER_PUT_NUMS", "").total
        size = statistics.meter("BROKER_PUT_SIZE", "").total
        return {
            "msgPutTotalYesterdayMorning": str(statistics.put_midnights.yesterday),
            "msgPutTotalTodayMorning": str(statistics.put_midnights.today),
            "msgPutTotalTodayNow": str(puts),
            "msgGetTotalYesterdayMorning": str(statistics.get_midnights.yesterday),
            "msgGetTotalTodayMorning": str(statistics.get_midnights.today),
            "msgGetTotalTodayNow": str(statistics.meter("BROKER_GET_NUMS", "").total),
            "putMessageTimesTotal": str(puts),
            "putMessageSizeTotal": str(size),
            "putMessageAverageSize": str(size / max(1, puts)),
            "putMessageDistributeTime": "[<=0ms]:0 ",
        }

    def _rates(self) -> dict[str, str]:
        now = self._clock.monotonic()

        def rates(*names: str) -> str:
            columns = [self._statistics.meter(name, "").rates_text(now).split() for name in names]
            return " ".join(
                f"{sum(map(float, column)):.4f}" for column in zip(*columns, strict=True)
            )

        transferred = rates("BROKER_GET_NUMS")
        return {
            "putTps": rates("BROKER_PUT_NUMS"),
            "getTransferedTps": transferred,
            "getTransferredTps": transferred,
            "getFoundTps": rates("PULLS_FOUND"),
            "getMissTps": rates("PULLS_MISSED"),
            "getTotalTps": rates("PULLS_FOUND", "PULLS_MISSED"),
        }

    def _space(self) -> dict[str, str]:
        log = self._store.log
        table = {
            "commitLogMinOffset": str(self._store.log.start),
            "commitLogMaxOffset": str(log.end),
            "remainHowManyDataToFlush": _readable(log.end - log.durable),
            # Messages become readable in the log and the queues together, without a second step.
            "dispatchBehindBytes": "0",
        }
        try:
            space = self._disk.space()
        except OSError:
            space = Space(0, 0)
        ratio = str(space.used / space.total) if space.total else _UNKNOWN
        free = _readable(space.total - space.used)
        return table | {
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {_readable(space.total)}, Free : {free}.",
        }

    def _of_leader(self) -> dict[str, str]:
        return {}

    # 315

    def counter(self, _: Connection, request: Command) -> bytes:
        """315: one counter over a minute, an hour and a day."""
        header = request.read(StatsQuery)
        name, key = header.stats_name, header.stats_key
        self._statistics.count_puts(self._topics)
        if name.startswith("BROKER_") and key == self._identity.cluster:
            key = ""
        found = self._statistics.find(name, key)
        if found is None:
            raise InternalError(f"The stats <{name}> <{header.stats_key}> not exist")
        # For sizes the answer also has the mean, in bytes per message.
        counted = (
            self._statistics.find(name.removesuffix("SIZE") + "NUMS", key)
            if name.endswith("_SIZE")
            else None
        )
        windows = [self._window(found, counted, length) for length in (MINUTE_S, HOUR_S, DAY_S)]
        return answer(request, body=CounterView(*windows).write())

    def _window(self, meter: Meter, counted: Meter | None, seconds: float) -> CounterWindow:
        now = self._clock.monotonic()
        rate = meter.rate(seconds, now)
        events = counted.rate(seconds, now).sum if counted is not None else 0
        return CounterWindow(rate.sum, rate.per_second, rate.sum / events if events else 0.0)


class StatisticsHandlers(StatisticsReads):
    """Also serves the figures that only a leader has, and cleans up."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._tally = parts.transactions.tally
        self._retain = parts.delete_old_files

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return super().table() | {
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_queues,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_topics,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.clean_log,
        }

    def _of_leader(self) -> dict[str, str]:
        return self._transactions() | self._delays()

    def _transactions(self) -> dict[str, str]:
        pending = self._store.halves.pending
        counts = asdict(self._tally) | {"open": len(pending), "parked_now": pending.parked}
        return {camel(f"transactions_{name}"): str(value) for name, value in counts.items()}

    def _delays(self) -> dict[str, str]:
        delays = self._store.delays
        levels = {
            f"scheduleMessageOffset_{level}": f"{left},{stored}"
            for level, left, stored in delays.levels()
        }
        return levels | {"messagesWaiting": str(len(delays))}

    # 306, 316, 329

    def clean_queues(self, _: Connection, request: Command) -> bytes:
        """306: no effect here, because queue entries are deleted with their messages."""
        return answer(request)

    def clean_topics(self, _: Connection, request: Command) -> bytes:
        """316: delete the offsets and counters that late commits left for deleted topics."""
        for topic in self._offsets.topics():
            if self._topics.by_name.get(topic) is None:
                self._offsets.forget_topic(topic)
                self._statistics.forget_topic(topic)
        return answer(request)

    def clean_log(self, _: Connection, request: Command) -> bytes:
        """329: delete old files of the log now, at any time of day."""
        self._retain()
        return answer(request)


def _readable(size: int) -> str:
    """A size in the format that Java tools write and parse."""
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, 6)
    return f"{size / 1024**power:.1f} {'KMGTPE'[power - 1]}iB"
