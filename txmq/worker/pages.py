"""The pages of a worker over HTTP, and the figures of all its processes together."""

from __future__ import annotations

import msgspec

import txmq
from txmq.metrics.http import METRICS_TYPE, HttpPage, Pages, health_pages
from txmq.runtime.clock import Clock
from txmq.runtime.supervisor import ChildSlot, Supervisor
from txmq.worker.figures import ProcessReport, WorkerFigures, read_report
from txmq.worker.metrics import WorkerState, exposition

__all__ = ["WorkerPages"]

SILENT_S = 30.0
"""A process that sends no report for so long blocks its event loop."""

_JSON_TYPE = "application/json; charset=utf-8"


class WorkerPages:
    """``/metrics``, ``/info`` and the health pages.

    Args:
        supervisor: Keeps the processes.
        figures: What processes that have ended did.
        targets: What they run.
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
        """Why a process does no work; empty if it does."""
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
