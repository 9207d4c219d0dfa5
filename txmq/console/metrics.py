"""The metrics of a console: what visitors ask for, and whether it reaches the cluster."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

import txmq
from txmq.console.links import ClusterReach
from txmq.metrics.histogram import Histogram
from txmq.metrics.table import MetricRow, Sample, counter, gauge, histogram, table_text
from txmq.runtime.clock import Clock

__all__ = ["PREFIX", "ROWS", "ConsoleTally", "MeasuredApp"]

PREFIX: Final = "txmq_console_"
OTHER: Final = "other"
STATIC: Final = "/static"

BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds of the buckets of requests' durations, in seconds."""

ROWS: Final[Mapping[str, MetricRow]] = {
    "info": gauge("Always 1; its label names the version.", "version"),
    "requests_total": counter("Answered requests.", "page", "method", "status"),
    "request_duration_seconds": histogram(
        "Requests by the time from their arrival to the end of their answer, without streams.",
        "page",
    ),
    "sessions": gauge("Visitors with a session."),
    "log_ins_total": counter("Log-ins.", "outcome"),
    "streams": gauge("Open pages that receive their changes."),
    "stream_renderings_total": counter("Renderings sent to these."),
    "streams_refused_total": counter(
        "Streams refused, or ended for newer ones of the same session."
    ),
    "name_server_reachable": gauge("1 if a name server answers."),
    "brokers": gauge(
        "Brokers that the name server knows; only if it needs no account.",
        "state",
    ),
}
"""The metrics by name, without :data:`PREFIX`."""


class ConsoleTally:
    """The counters of a console."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        """The requests by page, method and status."""
        self.durations: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(BUCKETS_S))
        """Their durations by page."""
        self.log_ins = 0
        self.log_ins_refused = 0

    def text(self, gauges: Mapping[str, float], reach: ClusterReach) -> str:
        """All metrics, as text for Prometheus.

        Args:
            gauges: The values of metrics without labels.
            reach: Which servers answer.
        """
        return table_text(PREFIX, ROWS, self._samples(gauges, reach))

    def _samples(self, gauges: Mapping[str, float], reach: ClusterReach) -> Iterator[Sample]:
        yield Sample("info", 1, (txmq.__version__,))
        for labels, count in sorted(self.requests.items()):
            yield Sample("requests_total", count, labels)
        for page, durations in sorted(self.durations.items()):
            yield Sample("request_duration_seconds", durations, (page,))
        yield Sample("log_ins_total", self.log_ins, ("accepted",))
        yield Sample("log_ins_total", self.log_ins_refused, ("refused",))
        for name, value in gauges.items():
            yield Sample(name, value)
        yield Sample("name_server_reachable", reach.has_names)
        if reach.known is not None:
            yield Sample("brokers", reach.reachable, ("reachable",))
            yield Sample("brokers", reach.known - reach.reachable, ("unreachable",))


class MeasuredApp:
    """Counts the requests of an application.

    Args:
        app: The application.
        tally: Receives the counts.
        pages: The paths with separate figures; all other paths share one set.
        streams: The path of streams, which end when visitors leave.
        clock: The source of time.
    """

    def __init__(
        self, app: ASGIApp, tally: ConsoleTally, pages: frozenset[str], streams: str, clock: Clock
    ) -> None:
        self._app = app
        self._tally = tally
        self._pages = pages
        self._streams = streams
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; see ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, status = self._clock.monotonic(), 500

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        path = self._page_of(scope["path"])
        try:
            await self._app(scope, receive, send_noting)
        finally:
            # A peer may write anything as the method.
            method = scope["method"] if scope["method"] in {"GET", "HEAD", "POST"} else OTHER
            self._tally.requests[path, method, str(status)] += 1
            if path != self._streams:
                self._tally.durations[path].note(self._clock.monotonic() - began_s)

    def _page_of(self, path: str) -> str:
        if path in self._pages:
            return path
        return STATIC if path.startswith(f"{STATIC}/") else OTHER
