"""The pages of a worker over HTTP, and the figures of all its processes together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

import txmq
from txmq.limits import METRIC_SERIES_MAX
from txmq.metrics.histogram import Histogram
from txmq.metrics.http import METRICS_TYPE, HttpPage, Pages, health_pages
from txmq.metrics.table import MetricRow, Sample, counter, gauge, histogram, table_text
from txmq.runtime.clock import Clock
from txmq.runtime.supervisor import ChildSlot, Supervisor
from txmq.worker.figures import BUCKETS_S, ProcessReport, WorkerFigures, read_report

__all__ = ["ROWS", "WorkerPages", "WorkerState", "exposition"]

SILENT_S = 30.0
"""A process that sends no report for this long has a blocked event loop."""

_JSON_TYPE = "application/json; charset=utf-8"


class WorkerPages:
    """``/metrics``, ``/info`` and the health pages.

    Args:
        supervisor: Keeps the processes.
        figures: The figures of the processes that have ended.
        targets: The targets that the processes run.
        clock: Gives the time.
    """

    def __init__(
        self, supervisor: Supervisor, figures: WorkerFigures, targets: list[str], clock: Clock
    ) -> None:
        self._supervisor = supervisor
        self._figures = figures
        self._targets = targets
        self._clock = clock
        self._since_ms = clock.wall_ms()

    def pages(self) -> Pages:
        """The pages, by path."""
        return {
            "/metrics": self._metrics,
            "/info": self._info,
            **health_pages(self._objection),
        }

    async def _total(self) -> ProcessReport:
        return self._figures.total((await self._supervisor.reports()).values())

    async def _metrics(self) -> HttpPage:
        supervisor = self._supervisor
        ready = sum(slot.is_ready for slot in supervisor.slots)
        state = WorkerState(len(supervisor.slots), ready, supervisor.restarts)
        return HttpPage(exposition(await self._total(), state), content_type=METRICS_TYPE)

    async def _objection(self) -> str:
        if self._supervisor.is_stopping:
            return "the worker is stopping"
        found = await self._supervisor.reports()
        return "; ".join(
            reason
            for slot in self._supervisor.slots
            if (reason := self._fault(slot, found.get(slot.number)))
        )

    def _fault(self, slot: ChildSlot, report: bytes | None) -> str:
        """Why a process does not work; empty if it does."""
        if slot.child is None or not slot.is_ready:
            return f"process {slot.number} is not ready"
        if self._clock.monotonic() - slot.child.reported_at > SILENT_S:
            return f"process {slot.number} is blocked: it sends no reports"
        groups = read_report(report).cut_off if report else []
        return f"process {slot.number} has no connection for {', '.join(groups)}" if groups else ""

    async def _info(self) -> HttpPage:
        found = await self._total()
        facts = {
            "version": txmq.__version__,
            "targets": self._targets,
            "since_ms": self._since_ms,
            "restarts": self._supervisor.restarts,
            "processes": [
                {
                    "number": slot.number,
                    "pid": None if slot.child is None else slot.child.pid,
                    "is_ready": slot.is_ready,
                    "restarts": slot.restarts,
                    "runs": "" if slot.child is None else slot.child.description,
                }
                for slot in self._supervisor.slots
            ],
            "handlers": [
                {
                    "group": handler.group, "topic": handler.topic, "handled": handler.handled,
                    "failed": handler.failed, "retried": handler.retried,
                    "dead_letters": handler.dead, "in_hand": handler.in_hand,
                }
                for handler in found.series
            ],
            "lag": found.lag,
            "retries_waiting": found.retries,
            "schedules": found.schedules,
            "transactions": found.managers,
            "relays": found.relays,
        }  # fmt: skip
        return HttpPage(msgspec.json.encode(facts).decode() + "\n", content_type=_JSON_TYPE)


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
    """The supervisor's counts."""

    processes: int
    ready: int
    restarts: int


def exposition(total: ProcessReport, state: WorkerState) -> str:
    """The metrics in Prometheus' text format.

    Args:
        total: The sum of the reports of all processes, including those that have ended.
        state: The current processes.
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
