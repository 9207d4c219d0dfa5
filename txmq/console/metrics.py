"""The metrics of a console: what visitors ask for, and whether it reaches the cluster."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

import txmq
from txmq.console.links import ClusterReach
from txmq.metrics.table import DurationBuckets, FigureRow, FigureSample, RowKind, table_text
from txmq.runtime.clock import Clock

__all__ = ["PREFIX", "ROWS", "ConsoleTally", "MeasuredApp"]

PREFIX: Final = "txmq_console_"
OTHER: Final = "other"
STATIC: Final = "/static"

ROWS: Final[Mapping[str, FigureRow]] = {
    "info": FigureRow(RowKind.GAUGE, "Always 1; its label names the version.", ("version",)),
    "requests_total": FigureRow(
        RowKind.COUNTER, "Answered requests.", ("page", "method", "status")
    ),
    "request_duration_seconds": FigureRow(
        RowKind.HISTOGRAM,
        "Requests by the time from their arrival to the end of their answer, without streams.",
        ("page",),
    ),
    "sessions": FigureRow(RowKind.GAUGE, "Visitors with a session."),
    "log_ins_total": FigureRow(RowKind.COUNTER, "Log-ins.", ("outcome",)),
    "streams": FigureRow(RowKind.GAUGE, "Open pages that receive their changes."),
    "stream_renderings_total": FigureRow(RowKind.COUNTER, "Renderings sent to these."),
    "streams_refused_total": FigureRow(
        RowKind.COUNTER, "Streams refused, or ended for newer ones of the same session."
    ),
    "name_server_reachable": FigureRow(RowKind.GAUGE, "1 if a name server answers."),
    "brokers": FigureRow(
        RowKind.GAUGE,
        "Brokers that the name server knows; only if it needs no account.",
        ("state",),
    ),
}
"""The metrics by name, without :data:`PREFIX`."""


class ConsoleTally:
    """What a console counts."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        """The requests by page, method and status."""
        self.durations: defaultdict[str, DurationBuckets] = defaultdict(DurationBuckets)
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

    def _samples(self, gauges: Mapping[str, float], reach: ClusterReach) -> Iterator[FigureSample]:
        yield FigureSample("info", 1, (txmq.__version__,))
        for labels, count in sorted(self.requests.items()):
            yield FigureSample("requests_total", count, labels)
        for page, durations in sorted(self.durations.items()):
            yield FigureSample("request_duration_seconds", durations, (page,))
        yield FigureSample("log_ins_total", self.log_ins, ("accepted",))
        yield FigureSample("log_ins_total", self.log_ins_refused, ("refused",))
        for name, value in gauges.items():
            yield FigureSample(name, value)
        yield FigureSample("name_server_reachable", reach.has_names)
        if reach.known is not None:
            yield FigureSample("brokers", reach.reachable, ("reachable",))
            yield FigureSample("brokers", reach.known - reach.reachable, ("unreachable",))


class MeasuredApp:
    """Counts the requests of an application.

    Args:
        app: The application.
        tally: Receives the counts.
        pages: The paths that have figures of their own; all others share theirs.
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
            # A method is whatever a peer writes.
            method = scope["method"] if scope["method"] in {"GET", "HEAD", "POST"} else OTHER
            self._tally.requests[path, method, str(status)] += 1
            if path != self._streams:
                self._tally.durations[path].note(self._clock.monotonic() - began_s)

    def _page_of(self, path: str) -> str:
        if path in self._pages:
            return path
        return STATIC if path.startswith(f"{STATIC}/") else OTHER
