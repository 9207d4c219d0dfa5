"""The metrics of a worker in the text that Prometheus reads. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from txmq.limits import METRIC_SERIES_MAX
from txmq.metrics.histogram import Histogram
from txmq.metrics.table import MetricRow, Sample, counter, gauge, histogram, table_text
from txmq.worker.figures import BUCKETS_S, ProcessReport

__all__ = ["ROWS", "WorkerState", "exposition"]

_PREFIX: Final = "txmq_worker_"

ROWS: Final[Mapping[str, MetricRow]] = {
    "processes": gauge("Processes wanted."),
    "processes_ready": gauge("Processes that work."),
    "process_restarts_total": counter("Processes that took the place of another."),
    "handled_total": counter("Messages that their handler has consumed.", "group", "topic"),
    "failed_total": counter(
        "Messages whose handler raised, or whose body it could not read.", "group", "topic"
    ),
    "retried_total": counter(
        "Messages that come again after a failure or by a verdict.", "group", "topic"
    ),
    "dead_letters_total": counter(
        "Messages that a verdict or a wrong body made dead letters.", "group", "topic"
    ),
    "in_hand": gauge("Messages in handlers now.", "group", "topic"),
    "handler_seconds": histogram("How long calls of handlers took.", "group", "topic"),
    "held": gauge("Messages fetched and not consumed yet.", "group"),
    "lag": gauge("Stored messages that the group has not consumed.", "group"),
    "retries_waiting": gauge(
        "Messages that the group failed to handle and that wait for a retry; not in the lag.",
        "group",
    ),
    "scheduled_total": counter("Periodic messages, by outcome.", "schedule", "outcome"),
    "transactions_total": counter("Transactions, by state.", "group", "outcome"),
    "checks_total": counter("Answers to checks, by outcome.", "group", "outcome"),
    "relayed_total": counter("Rows of an outbox, by outcome.", "outbox", "outcome"),
}
"""The metrics by name, without the prefix."""

_OUTCOMES: Final = ("committed", "rolled_back", "unknown")


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
    return table_text(_PREFIX, ROWS, _samples(total, state))


def _samples(total: ProcessReport, state: WorkerState) -> Iterator[Sample]:
    yield Sample("processes", state.processes)
    yield Sample("processes_ready", state.ready)
    yield Sample("process_restarts_total", state.restarts)
    for handler in total.series[:METRIC_SERIES_MAX]:
        labels = handler.group, handler.topic
        yield Sample("handled_total", handler.handled, labels)
        yield Sample("failed_total", handler.failed, labels)
        yield Sample("retried_total", handler.retried, labels)
        yield Sample("dead_letters_total", handler.dead, labels)
        yield Sample("in_hand", handler.in_hand, labels)
        yield Sample(
            "handler_seconds", Histogram(BUCKETS_S, handler.calls, handler.seconds), labels
        )
    for name in ("held", "lag"):
        for group, count in getattr(total, name).items():
            yield Sample(name, count, (group,))
    for group, count in total.retries.items():
        yield Sample("retries_waiting", count, (group,))
    for schedule, figures in total.schedules.items():
        yield Sample("scheduled_total", figures.sent, (schedule, "sent"))
        yield Sample("scheduled_total", figures.failed, (schedule, "failed"))
    for group, tally in total.managers.items():
        for outcome in _OUTCOMES:
            yield Sample("transactions_total", getattr(tally, outcome), (group, outcome))
            yield Sample("checks_total", getattr(tally, f"checks_{outcome}"), (group, outcome))
    for outbox, relay in total.relays.items():
        for outcome in relay.__struct_fields__:
            yield Sample("relayed_total", getattr(relay, outcome), (outbox, outcome))
