"""The pages for monitoring programs.

A page of metrics is built in slices, so that requests are served in between. Concurrent requests
for metrics share one page.
"""

from __future__ import annotations

import asyncio

import msgspec
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import CollectorRegistry

import txmq
from txmq.metrics.http import METRICS_TYPE, HttpPage, Pages, health_pages
from txmq.metrics.table import Sample, metrics_text, table_text
from txmq_broker.config import BrokerSettings
from txmq_broker.monitoring.metric_table import METRICS, PREFIX
from txmq_broker.monitoring.samples import ProcessSamples
from txmq_broker.monitoring.subject import MonitoredProcess, objection, role_of
from txmq_broker.services.slices import Pause

__all__ = ["MonitoringPages"]


class MonitoringPages:
    """Makes the pages about one process.

    Args:
        settings: Its settings.
        process: The process.
    """

    def __init__(self, settings: BrokerSettings, process: MonitoredProcess) -> None:
        self._settings = settings
        self._process = process
        self._samples = ProcessSamples(settings, process)
        self._own = ProcessCollector(registry=CollectorRegistry())
        self._building: asyncio.Task[str] | None = None

    def pages(self) -> Pages:
        """The pages by path."""
        return {
            "/metrics": self.metrics,
            **health_pages(self._objection),
            "/info": self.info,
        }

    async def _objection(self) -> str:
        return objection(self._process)

    async def info(self) -> HttpPage:
        """Facts about the process, as JSON."""
        process, settings = self._process, self._settings
        facts: dict[str, object] = {
            "version": txmq.__version__,
            "cluster": settings.cluster,
            "name": settings.name,
            "member": settings.replication.member,
            "role": role_of(process),
        }
        if (broker := process.broker) is not None:
            facts |= {
                "address": broker.address,
                "names": broker.names,
                "access": broker.parts.access,
                "epoch": broker.store.log.epoch,
                "log_id": f"{broker.store.log.segments.log_id:016x}",
                "started_ms": broker.started_ms,
            }
            settings = broker.settings  # A few can change while the broker runs.
        elif process.follower is not None:
            status = process.follower.status
            facts |= {"leader": status.leader, "epoch": status.epoch, "failure": status.failure}
        facts["settings"] = msgspec.to_builtins(settings)
        text = msgspec.json.format(msgspec.json.encode(facts)).decode()
        return HttpPage(f"{text}\n", content_type="application/json")

    async def metrics(self) -> HttpPage:
        """All metrics, as text for Prometheus."""
        if self._building is None:
            self._building = asyncio.create_task(self._build(), name="metrics")
            self._building.add_done_callback(self._built)
        # Shielded: a client that disconnects must not cancel the page of the others.
        return HttpPage(await asyncio.shield(self._building), content_type=METRICS_TYPE)

    def close(self) -> None:
        """Stop building."""
        if self._building is not None:
            self._building.cancel()

    def _built(self, task: asyncio.Task[str]) -> None:
        del task
        self._building = None

    async def _points(self, pause: Pause) -> dict[str, list[Sample]]:
        points: dict[str, list[Sample]] = {}
        for point in self._samples.read():
            if point is not None:
                points.setdefault(point.name, []).append(point)
            if pause.is_due():
                await pause.rest()
        return points

    async def _build(self) -> str:
        pause = Pause()
        broker = self._process.broker
        try:
            points = await self._points(pause)
        except Exception:
            if broker is None or (self._process.broker is broker and broker.parts.is_open()):
                raise
            # The broker closed its files in the meantime; the second reading leaves them out.
            points = await self._points(pause)
        texts = []
        for name, row in METRICS.items():
            if name in points:
                texts.append(table_text(PREFIX, {name: row}, points[name]))
                if pause.is_due():
                    await pause.rest()
        texts.append(metrics_text(self._own.collect()))
        return "".join(texts)
