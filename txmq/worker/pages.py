"""The pages of a worker over HTTP, and the figures of all its processes together."""

from __future__ import annotations

import msgspec

import txmq
from txmq.http_server import METRICS_TYPE, HttpPage, Pages, health_pages
from txmq.runtime.clock import Clock
from txmq.runtime.supervisor import Supervisor
from txmq.worker.figures import ProcessReport, WorkerFigures
from txmq.worker.metrics import WorkerState, exposition

__all__ = ["worker_pages"]

SILENT_S = 30.0
"""A process that sends no report for so long blocks its event loop."""

_JSON_TYPE = "application/json; charset=utf-8"


def worker_pages(
    supervisor: Supervisor, figures: WorkerFigures, targets: list[str], clock: Clock
) -> Pages:
    """``/metrics``, ``/info`` and the health pages."""
    since_ms = clock.wall_ms()

    async def total() -> ProcessReport:
        return figures.total((await supervisor.reports()).values())

    def ready() -> int:
        return sum(slot.is_ready for slot in supervisor.slots)

    async def metrics() -> HttpPage:
        state = WorkerState(len(supervisor.slots), ready(), supervisor.restarts)
        return HttpPage(exposition(await total(), state), content_type=METRICS_TYPE)

    async def objection() -> str:
        if supervisor.is_stopping:
            return "the worker is stopping"
        await supervisor.reports()
        now, reasons = clock.monotonic(), list[str]()
        for slot in supervisor.slots:
            if slot.child is None or not slot.is_ready:
                reasons.append(f"process {slot.number} is not ready")
            elif now - slot.child.reported_at > SILENT_S:
                reasons.append(f"process {slot.number} is blocked: it sends no reports")
        return "; ".join(reasons)

    async def info() -> HttpPage:
        found = await total()
        facts = {
            "version": txmq.__version__,
            "targets": targets,
            "since_ms": since_ms,
            "restarts": supervisor.restarts,
            "processes": [
                {
                    "number": slot.number,
                    "pid": None if slot.child is None else slot.child.pid,
                    "is_ready": slot.is_ready,
                    "restarts": slot.restarts,
                    "runs": "" if slot.child is None else slot.child.description,
                }
                for slot in supervisor.slots
            ],
            "handlers": [
                {
                    "group": one.group, "topic": one.topic, "handled": one.handled,
                    "failed": one.failed, "retried": one.retried, "dead_letters": one.dead,
                    "in_hand": one.in_hand,
                }
                for one in found.series
            ],
            "lag": found.lag,
            "schedules": found.schedules,
            "transactions": found.managers,
            "relays": found.relays,
        }  # fmt: skip
        return HttpPage(msgspec.json.encode(facts).decode() + "\n", content_type=_JSON_TYPE)

    return {"/metrics": metrics, "/info": info, **health_pages(objection)}
