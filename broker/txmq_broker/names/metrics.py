"""The metrics and the health of a name server that runs alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

import txmq
from txmq.metrics.http import METRICS_TYPE, HttpPage, Pages, health_pages
from txmq.metrics.table import MetricRow, Sample, counter, gauge, table_text
from txmq.protocol.codes import RequestCode
from txmq_broker.names.server import NameServer

__all__ = ["PREFIX", "ROWS", "name_server_pages"]

PREFIX: Final = "txmq_names_"

ROWS: Final[Mapping[str, MetricRow]] = {
    "info": gauge("Always 1; its label names the version.", "version"),
    "brokers": gauge("Registered brokers.", "cluster", "role"),
    "topics": gauge("Topics with a route."),
    "key_values": gauge("Entries of operators."),
    "requests_total": counter("Requests served or refused.", "request"),
    "connections": gauge("Open connections."),
    "refusals_total": counter("Requests refused, and connections closed.", "reason"),
}
"""The metrics by name, without :data:`PREFIX`."""

_REFUSED: Final = "_refused"
_CUT: Final = "_cut"


def name_server_pages(server: NameServer) -> Pages:
    """The pages of a name server, by path.

    Args:
        server: The name server; it must be open while the pages are served.
    """

    async def metrics() -> HttpPage:
        text = table_text(PREFIX, ROWS, _samples(server))
        return HttpPage(text, content_type=METRICS_TYPE)

    async def objection() -> str:
        return "" if server.is_open else "the name server has stopped"

    async def info() -> HttpPage:
        facts = {"version": txmq.__version__, "address": "{}:{}".format(*server.address)}
        return HttpPage(f"{json.dumps(facts, indent=2)}\n", content_type="application/json")

    return {"/metrics": metrics, **health_pages(objection), "/info": info}


def _samples(server: NameServer) -> Iterator[Sample]:
    figures = server.figures()
    yield Sample("info", 1, (txmq.__version__,))
    for (cluster, role), count in sorted(server.routes.brokers().items()):
        yield Sample("brokers", count, (cluster, role))
    yield Sample("topics", figures["topics"])
    yield Sample("key_values", figures["key_values"])
    for code, count in sorted(server.requests.items()):
        yield Sample("requests_total", count, (RequestCode(code).name,))
    yield Sample("connections", figures["connections_open"])
    for name, value in figures.items():
        if name.endswith(_REFUSED):
            yield Sample("refusals_total", value, (name.removesuffix(_REFUSED),))
        elif name.endswith(_CUT):
            yield Sample("refusals_total", value, (name,))
