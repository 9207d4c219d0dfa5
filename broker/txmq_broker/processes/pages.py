"""The pages of several brokers for monitoring programs, served by their supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import CollectorRegistry

import txmq
from txmq.metrics.http import METRICS_TYPE, HttpPage, Pages, health_pages
from txmq.metrics.table import Sample, metrics_text, table_text
from txmq_broker.monitoring.metric_table import METRICS, PREFIX
from txmq_broker.processes.plan import BrokerReport
from txmq_broker.processes.service import BrokersService, BrokerState

__all__ = ["BrokerPages", "BrokerProcessState", "metrics_of_brokers"]

REPORT_S: Final = 5.0
"""How long to wait for a broker's part of a page; after that, its previous part is shown."""

SILENT_S: Final = 30.0
"""A broker that sends no heartbeat for this long counts as blocked."""

_JSON_TYPE: Final = "application/json"


class BrokerPages:
    """Makes the pages.

    Args:
        service: The brokers.
    """

    def __init__(self, service: BrokersService) -> None:
        self._service = service
        self._own = ProcessCollector(registry=CollectorRegistry())
        self._reading: asyncio.Task[dict[str, BrokerReport]] | None = None

    def pages(self) -> Pages:
        """The pages by path."""
        return {
            "/metrics": self._metrics,
            **health_pages(self._objection),
            "/info": self._info,
        }

    async def _reports(self) -> dict[str, BrokerReport]:
        """The reports of the brokers by name; concurrent requests share them."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="reports of brokers")
        return await asyncio.shield(self._reading)

    async def _read(self) -> dict[str, BrokerReport]:
        found = await self._service.supervisor.reports(REPORT_S)
        reports = {
            self._service.brokers[number - 1].name: msgspec.json.decode(
                content, type=BrokerReport | None
            )
            for number, content in found.items()
        }
        return {name: report for name, report in reports.items() if report is not None}

    async def _metrics(self) -> HttpPage:
        texts = {name: report.metrics for name, report in (await self._reports()).items()}
        states = [
            BrokerProcessState(state.name, state.slot.is_ready, state.slot.restarts)
            for state in self._service.brokers
        ]
        own = metrics_text(self._own.collect())
        # In a thread: the texts of large brokers take megabytes, and this loop also serves routes.
        page = await asyncio.to_thread(metrics_of_brokers, texts, states, own)
        return HttpPage(page, content_type=METRICS_TYPE)

    async def _objection(self) -> str:
        service = self._service
        if service.supervisor.is_stopping:
            return "the brokers are stopping"
        texts = [
            self._objection_of(number, state) for number, state in enumerate(service.brokers, 1)
        ]
        return "; ".join(text for text in texts if text)

    def _objection_of(self, number: int, state: BrokerState) -> str:
        service = self._service
        if not state.slot.is_ready:
            reason = f": {state.failure}" if state.failure else ""
            return f"{state.name} does not run{reason}"
        silent_s = service.clock.monotonic() - state.beat_at
        if silent_s > SILENT_S:
            return f"{state.name} is blocked: it sent no sign of life for {silent_s:.0f} s"
        refusal = "" if service.names is None else service.names.refusals.get(number, "")
        objection = state.objection or refusal
        return f"{state.name}: {objection}" if objection else ""

    async def _info(self) -> HttpPage:
        service, reports = self._service, await self._reports()
        facts = {
            "version": txmq.__version__,
            "cluster": service.settings.cluster,
            "names": service.names_text,
            "restarts": service.supervisor.restarts,
            "brokers": [
                {
                    "name": state.name,
                    "pid": None if state.slot.child is None else state.slot.child.pid,
                    "is_ready": state.slot.is_ready,
                    "restarts": state.slot.restarts,
                    "address": state.address,
                    "info": reports[state.name].info if state.name in reports else None,
                }
                for state in service.brokers
            ],
        }
        text = msgspec.json.format(msgspec.json.encode(facts)).decode()
        return HttpPage(f"{text}\n", content_type=_JSON_TYPE)


class BrokerProcessState(NamedTuple):
    """The state of one broker's process."""

    name: str
    is_ready: bool
    restarts: int


def metrics_of_brokers(
    texts: Mapping[str, str], states: Sequence[BrokerProcessState], own: str = ""
) -> str:
    """Merge the metrics of several brokers; each sample gets the label ``broker``.

    Args:
        texts: The metrics of each broker, by its name.
        states: The states of all brokers' processes.
        own: The metrics of the supervisor's process, which get no such label.
    """
    families: dict[str, list[str]] = {}
    for broker, text in {"": own, **texts}.items():
        lines, is_known = families.setdefault("", []), False
        for line in text.splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                is_known = name in families
                lines = families.setdefault(name, [line])
            elif line.startswith("#"):
                if not is_known:
                    lines.append(line)
            elif line:
                lines.append(_labelled(line, broker) if broker else line)
    joined = "".join(f"{line}\n" for lines in families.values() for line in lines)
    return table_text(PREFIX, METRICS, _of_supervisor(states)) + joined


def _labelled(sample: str, broker: str) -> str:
    """The line of a sample with the label added. Metric names have neither braces nor blanks."""
    blank, brace = sample.find(" "), sample.find("{")
    if 0 <= brace < blank:
        comma = "" if sample[brace + 1] == "}" else ","
        return f'{sample[: brace + 1]}broker="{broker}"{comma}{sample[brace + 1 :]}'
    return f'{sample[:blank]}{{broker="{broker}"}}{sample[blank:]}'


def _of_supervisor(states: Sequence[BrokerProcessState]) -> Iterator[Sample]:
    yield Sample("processes", len(states))
    for state in states:
        yield Sample("process_ready", state.is_ready, (state.name,))
        yield Sample("process_restarts_total", state.restarts, (state.name,))
