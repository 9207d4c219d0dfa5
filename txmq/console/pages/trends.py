"""The charts of pages: what brokers remember of the last hour, day, or three hours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from markupsafe import Markup

from txmq.client import FigureHistory
from txmq.console.charts import ChartLine, chart_of, highest, merged, total
from txmq.console.visits import Visit
from txmq.errors import RequestNotSupported, TxmqError
from txmq.ops.queries import for_each

__all__ = ["Trends", "group_trends", "overview_trends", "topic_trends"]

HOUR_MS: Final = 3600 * 1000
_SPANS: Final = {"": (HOUR_MS, 10), "day": (24 * HOUR_MS, 60)}
"""The time of the charts of the overview, and the pause between rows in seconds, by its field."""

BROKERS_DRAWN: Final = 50
"""Brokers whose figures are added up; each takes a request."""
_QUEUES_DRAWN: Final = 8


class Trends(NamedTuple):
    """The charts of a page."""

    charts: list[Markup]
    is_supported: bool = True
    """False if no broker keeps a history."""


async def overview_trends(visit: Visit, brokers: Iterable[str]) -> Trends:
    """Charts of all brokers together: messages, durations of sends, transactions.

    Brokers that do not answer are left out.
    """
    now_ms = visit.clock.wall_ms()
    span_ms, period_s = _SPANS.get(visit.text("span"), _SPANS[""])

    async def history_of(broker: str) -> FigureHistory | TxmqError:
        try:
            return await visit.admin.broker_history(
                broker, from_ms=now_ms - span_ms, period_s=period_s
            )
        except TxmqError as error:
            return error

    answers = await for_each(list(brokers)[:BROKERS_DRAWN], history_of)
    found = [answer for answer in answers if isinstance(answer, FigureHistory)]
    if not found:
        return Trends([], not any(isinstance(answer, RequestNotSupported) for answer in answers))

    def line(name: str, column: str, join: Callable[[Iterable[float]], float] = total) -> ChartLine:
        return ChartLine(name, merged(found, column, join))

    messages = [line("in", "messages_in_per_second"), line("out", "messages_out_per_second")]
    sends = [line("p50", "send_p50_ms", highest), line("p99", "send_p99_ms", highest)]
    waiting = [line("open", "transactions_open"), line("parked", "transactions_parked")]
    return Trends(
        [
            chart_of("messages", "Messages", "a second", messages, now_ms, span_ms),
            chart_of("sends", "Time of a send", "milliseconds", sends, now_ms, span_ms),
            chart_of("transactions", "Transactions", "waiting", waiting, now_ms, span_ms),
        ]
    )


async def group_trends(visit: Visit, group: str) -> Trends:
    """Charts of the lag of a group, in all and by queue where there are few."""
    now_ms, span_ms = visit.clock.wall_ms(), 3 * HOUR_MS
    try:
        found = await visit.admin.group_history(
            group, from_ms=now_ms - span_ms, cluster=visit.settings.cluster
        )
    except TxmqError as error:
        return Trends([], not isinstance(error, RequestNotSupported))
    lag = ChartLine("all queues", merged(found, "lag"))
    charts = [chart_of("lag", "Messages behind", "messages", [lag], now_ms, span_ms)]
    queues = [
        ChartLine(f"{history.broker}:{name}" if len(found) > 1 else name, merged([history], name))
        for history in found
        for name in history.columns[1:]
    ]
    if 1 < len(queues) <= _QUEUES_DRAWN:
        title = "Messages behind by queue"
        charts.append(chart_of("queues", title, "messages", queues, now_ms, span_ms))
    return Trends(charts)


async def topic_trends(visit: Visit, topic: str) -> Trends:
    """A chart of the messages that a topic received."""
    now_ms, span_ms = visit.clock.wall_ms(), 3 * HOUR_MS
    try:
        found = await visit.admin.topic_history(topic, from_ms=now_ms - span_ms)
    except TxmqError as error:
        return Trends([], not isinstance(error, RequestNotSupported))
    lines = [ChartLine("in", merged(found, "messages_in_per_second"))]
    return Trends([chart_of("rate", "Messages received", "a second", lines, now_ms, span_ms)])
