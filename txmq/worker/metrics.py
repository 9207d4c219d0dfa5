"""The metrics of a worker in the text that Prometheus reads. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Final, NamedTuple

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from txmq.limits import METRIC_SERIES_MAX
from txmq.metrics.text import metrics_text
from txmq.worker.figures import BUCKETS_S, HandlerSeries, ProcessReport

__all__ = ["WorkerState", "exposition"]

_PREFIX: Final = "txmq_worker_"
_LABELS: Final = ("group", "topic")
_COUNTERS: Final = {
    "handled": ("handled", "Messages that their handler has consumed."),
    "failed": ("failed", "Messages whose handler raised, or whose body it could not read."),
    "retried": ("retried", "Messages that come again after a failure or by a verdict."),
    "dead_letters": ("dead", "Messages that a verdict or a wrong body made dead letters."),
}
_OF_MANAGERS: Final = {
    "transactions": ("Transactions, by state.", ("committed", "rolled_back", "unknown"), ""),
    "checks": (
        "Answers to checks, by outcome.",
        ("committed", "rolled_back", "unknown"),
        "checks_",
    ),
}


class WorkerState(NamedTuple):
    """What the supervisor counts."""

    processes: int
    ready: int
    restarts: int


def exposition(total: ProcessReport, state: WorkerState) -> str:
    """The text.

    Args:
        total: The sum of the reports of all processes, also of those that have ended.
        state: The processes of now.
    """
    return metrics_text(_metrics(total, state))


def _metrics(total: ProcessReport, state: WorkerState) -> Iterator[Metric]:
    yield GaugeMetricFamily(f"{_PREFIX}processes", "Processes wanted.", state.processes)
    yield GaugeMetricFamily(f"{_PREFIX}processes_ready", "Processes that work.", state.ready)
    yield CounterMetricFamily(
        f"{_PREFIX}process_restarts", "Processes that took the place of another.", state.restarts
    )
    series = total.series[:METRIC_SERIES_MAX]
    for name, (field, meaning) in _COUNTERS.items():
        counter = CounterMetricFamily(_PREFIX + name, meaning, labels=_LABELS)
        for handler in series:
            counter.add_metric([handler.group, handler.topic], getattr(handler, field))
        yield counter
    in_hand = GaugeMetricFamily(f"{_PREFIX}in_hand", "Messages in handlers now.", labels=_LABELS)
    seconds = HistogramMetricFamily(
        f"{_PREFIX}handler_seconds", "How long calls of handlers took.", labels=_LABELS
    )
    for handler in series:
        labels = [handler.group, handler.topic]
        in_hand.add_metric(labels, handler.in_hand)
        seconds.add_metric(labels, _buckets(handler), handler.seconds)
    yield in_hand
    yield seconds
    yield from _of_groups(total)
    yield from _of_others(total)


def _buckets(handler: HandlerSeries) -> list[tuple[str, float]]:
    bounds = [*map(str, BUCKETS_S), "+Inf"]
    return list(zip(bounds, map(float, accumulate(handler.calls)), strict=True))


def _of_groups(total: ProcessReport) -> Iterator[Metric]:
    held = GaugeMetricFamily(
        f"{_PREFIX}held", "Messages fetched and not consumed yet.", labels=["group"]
    )
    for group, count in total.held.items():
        held.add_metric([group], count)
    yield held
    lag = GaugeMetricFamily(
        f"{_PREFIX}lag", "Stored messages that the group has not consumed.", labels=["group"]
    )
    for group, count in total.lag.items():
        lag.add_metric([group], count)
    yield lag
    retries = GaugeMetricFamily(
        f"{_PREFIX}retries_waiting",
        "Messages that the group failed to handle and that wait for a retry; not in the lag.",
        labels=["group"],
    )
    for group, count in total.retries.items():
        retries.add_metric([group], count)
    yield retries


def _of_others(total: ProcessReport) -> Iterator[Metric]:
    if total.schedules:
        counter = CounterMetricFamily(
            f"{_PREFIX}scheduled", "Periodic messages, by outcome.", labels=["schedule", "outcome"]
        )
        for name, figures in total.schedules.items():
            counter.add_metric([name, "sent"], figures.sent)
            counter.add_metric([name, "failed"], figures.failed)
        yield counter
    if total.managers:
        for name, (meaning, outcomes, prefix) in _OF_MANAGERS.items():
            counter = CounterMetricFamily(_PREFIX + name, meaning, labels=["group", "outcome"])
            for group, tally in total.managers.items():
                for outcome in outcomes:
                    counter.add_metric([group, outcome], getattr(tally, prefix + outcome))
            yield counter
    if total.relays:
        counter = CounterMetricFamily(
            f"{_PREFIX}relayed", "Rows of an outbox, by outcome.", labels=["outbox", "outcome"]
        )
        for name, relay in total.relays.items():
            for outcome in relay.__struct_fields__:
                counter.add_metric([name, outcome], getattr(relay, outcome))
        yield counter
