"""Counts the work of the handlers in one process, and reports it to the supervisor."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from txmq.client.observe.worker_process import AfterVerdict
from txmq.message import DEAD_LETTER, Later, ReceivedMessage
from txmq.runtime.clock import Clock

__all__ = [
    "BUCKETS_S",
    "HandlerFigures",
    "HandlerSeries",
    "ManagerFigures",
    "ProcessReport",
    "RelayFigures",
    "ScheduleFigures",
    "WorkerFigures",
    "add_reports",
    "read_report",
]

BUCKETS_S: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0)
"""Upper bounds of the histogram of handlers' durations."""


class HandlerSeries(msgspec.Struct):
    """The figures of one topic of one group."""

    group: str
    topic: str
    handled: int = 0
    """Messages that their handler has consumed."""
    failed: int = 0
    """Messages whose handler raised, or whose body it could not read."""
    retried: int = 0
    """Messages that will be delivered again."""
    dead: int = 0
    """Messages that became dead letters by their handler's verdict, or because of their body."""
    in_hand: int = 0
    """Messages in handlers now."""
    calls: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    """Calls of handlers, by duration."""
    seconds: float = 0.0
    """The duration of all calls."""


class ScheduleFigures(msgspec.Struct):
    """The figures of one schedule."""

    sent: int = 0
    failed: int = 0


class ManagerFigures(msgspec.Struct):
    """The figures of one producer of transactions."""

    committed: int = 0
    rolled_back: int = 0
    unknown: int = 0
    checks_committed: int = 0
    checks_rolled_back: int = 0
    checks_unknown: int = 0


class RelayFigures(msgspec.Struct):
    """The figures of one relay."""

    published: int = 0
    failed: int = 0
    deferred: int = 0


class ProcessReport(msgspec.Struct):
    """Everything that a process counts."""

    series: list[HandlerSeries] = msgspec.field(default_factory=list)
    schedules: dict[str, ScheduleFigures] = msgspec.field(default_factory=dict)
    managers: dict[str, ManagerFigures] = msgspec.field(default_factory=dict)
    relays: dict[str, RelayFigures] = msgspec.field(default_factory=dict)
    lag: dict[str, int] = msgspec.field(default_factory=dict)
    """Stored messages that a group has not consumed; the first process asks a broker."""
    retries: dict[str, int] = msgspec.field(default_factory=dict)
    """Messages of a group that wait for a retry; brokers report them with the lag."""
    held: dict[str, int] = msgspec.field(default_factory=dict)
    """Messages that a group has fetched and not consumed."""
    cut_off: list[str] = []
    """Groups without any connection to a server."""


class HandlerFigures:
    """Counts the calls of handlers; see :class:`txmq.client.observe.worker_process.WorkerProcess`.

    Args:
        clock: Measures durations.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._series: dict[tuple[str, str], HandlerSeries] = {}
        self.schedules: dict[str, ScheduleFigures] = {}

    def of(self, group: str, topic: str) -> HandlerSeries:
        """The figures of a topic of a group; zeros at first."""
        found = self._series.get((group, topic))
        if found is None:
            found = self._series[group, topic] = HandlerSeries(group, topic)
        return found

    @property
    def series(self) -> list[HandlerSeries]:
        """All figures of handlers."""
        return list(self._series.values())

    def before(self, group: str, messages: Sequence[ReceivedMessage]) -> AfterVerdict:
        """Count the start of a handler's call; returns the function that counts its end."""
        series, count, began_s = self.of(group, messages[0].topic), len(messages), self._now()
        series.in_hand += count

        def after(verdict: Later | None, has_failed: bool) -> None:
            duration_s = self._now() - began_s
            series.in_hand -= count
            series.calls[bisect_left(BUCKETS_S, duration_s)] += 1
            series.seconds += duration_s
            again = 0 if verdict is None else max(0, count - verdict.first)
            series.handled += count - again
            if has_failed:
                series.failed += again
            if verdict is not None and verdict.level == DEAD_LETTER:
                series.dead += again
            else:
                series.retried += again

        return after

    def sent(self, schedule: str, *, has_failed: bool) -> None:
        """Count a periodic message that was sent, or whose send failed."""
        figures = self.schedules.setdefault(schedule, ScheduleFigures())
        if has_failed:
            figures.failed += 1
        else:
            figures.sent += 1

    def _now(self) -> float:
        return self._clock.monotonic()


def add_reports(reports: Sequence[ProcessReport]) -> ProcessReport:
    """The sum of the reports of several processes."""
    total = ProcessReport()
    series: dict[tuple[str, str], HandlerSeries] = {}
    for report in reports:
        for handler in report.series:
            key = handler.group, handler.topic
            _add(series.setdefault(key, HandlerSeries(*key)), handler)
        for field in ("schedules", "managers", "relays"):
            sums = getattr(total, field)
            for name, figures in getattr(report, field).items():
                _add(sums.setdefault(name, type(figures)()), figures)
        for field in ("lag", "retries"):
            most = getattr(total, field)
            for name, count in getattr(report, field).items():
                most[name] = max(count, most.get(name, 0))
        for name, held in report.held.items():
            total.held[name] = held + total.held.get(name, 0)
    total.series = list(series.values())
    return total


def _add(total: msgspec.Struct, more: msgspec.Struct) -> None:
    """Add the numbers of one struct to another of the same kind."""
    for name in total.__struct_fields__:
        before, after = getattr(total, name), getattr(more, name)
        if isinstance(before, list):
            setattr(total, name, [sum(pair) for pair in zip(before, after, strict=True)])
        elif not isinstance(before, str):
            setattr(total, name, before + after)


class WorkerFigures:
    """The figures of all processes, including those that have ended.

    What a killed process did since its last report is lost.
    """

    def __init__(self) -> None:
        self._past = ProcessReport()

    def keep(self, report: bytes) -> None:
        """Keep the last report of a process that has ended."""
        if report:
            last = read_report(report)
            for handler in last.series:
                handler.in_hand = 0
            last.lag, last.retries, last.held = {}, {}, {}
            self._past = add_reports([self._past, last])

    def total(self, reports: Iterable[bytes]) -> ProcessReport:
        """The sum of the past figures and the reports of the running processes."""
        return add_reports([self._past, *map(read_report, reports)])


def read_report(report: bytes) -> ProcessReport:
    """The report that a process sent."""
    return msgspec.json.decode(report, type=ProcessReport)
