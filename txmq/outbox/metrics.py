"""The metrics of a relay in the text that Prometheus reads. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from txmq.metrics.text import metrics_text
from txmq.outbox.tally import Backlog, RelayTally

__all__ = ["exposition"]

_PREFIX: Final = "txmq_relay_"
_COUNTERS: Final = {
    "published": "Rows whose messages a broker has stored.",
    "requests": "Sends that were answered.",
    "deferred": "Rows that could not be sent just then.",
    "failed": "Times that brokers refused the message of a row for good.",
    "dead_letters": "Of these, sent to the topic for dead letters.",
    "lost_leases": "Slots that another relay took over too early.",
}
_GAUGES: Final = {
    "slots": "Slots held.",
    "at_hand": "Rows read and not sent yet.",
}


def exposition(tally: RelayTally, waiting: Backlog | None) -> str:
    """The text.

    Args:
        tally: The counters of one relay.
        waiting: The rows in the outbox; ``None`` if the database does not answer.
    """
    return metrics_text(_metrics(tally, waiting))


def _metrics(tally: RelayTally, waiting: Backlog | None) -> Iterator[Metric]:
    for name, meaning in _COUNTERS.items():
        yield CounterMetricFamily(_PREFIX + name, meaning, getattr(tally, name))
    for name, meaning in _GAUGES.items():
        yield GaugeMetricFamily(_PREFIX + name, meaning, getattr(tally, name))
    if waiting is not None:
        yield GaugeMetricFamily(f"{_PREFIX}rows_waiting", "Rows to be published.", waiting.rows)
        yield GaugeMetricFamily(
            f"{_PREFIX}oldest_row_seconds", "The age of the oldest of these.", waiting.oldest_s
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}rows_failed", "Rows that were put aside.", waiting.failed
        )
