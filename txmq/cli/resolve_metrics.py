"""The metrics of ``txmq resolve`` in the text that Prometheus reads. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from txmq.metrics.text import metrics_text

__all__ = ["exposition"]

_PREFIX: Final = "txmq_resolve_"
_OUTCOMES: Final = ("committed", "rolled_back", "unknown")


def exposition(tally: Mapping[str, int], left: int | None, *, is_answering: bool) -> str:
    """The text.

    Args:
        tally: The counters of all transaction managers of the command together.
        left: The open transactions of the group; ``None`` if a broker did not answer.
        is_answering: Whether brokers can ask this command now.
    """
    return metrics_text(_metrics(tally, left, is_answering=is_answering))


def _metrics(tally: Mapping[str, int], left: int | None, *, is_answering: bool) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        f"{_PREFIX}answering", "1 while brokers can ask this command.", int(is_answering)
    )
    answers = CounterMetricFamily(
        f"{_PREFIX}answers", "Answers to checks, by outcome.", labels=["outcome"]
    )
    for outcome in _OUTCOMES:
        answers.add_metric([outcome], tally.get(f"checks_{outcome}", 0))
    yield answers
    yield CounterMetricFamily(
        f"{_PREFIX}conflicts",
        "Answers whose transaction the broker had decided otherwise before.",
        tally.get("conflicts", 0),
    )
    if left is not None:
        yield GaugeMetricFamily(
            f"{_PREFIX}open_transactions", "Open transactions of the group, with parked ones.", left
        )
