"""The metrics of ``txmq resolve`` in the text that Prometheus reads. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from txmq.metrics.table import MetricRow, Sample, counter, gauge, table_text

__all__ = ["exposition"]

_PREFIX: Final = "txmq_resolve_"
_ROWS: Final[Mapping[str, MetricRow]] = {
    "answering": gauge("1 while brokers can ask this command."),
    "answers_total": counter("Answers to checks, by outcome.", "outcome"),
    "conflicts_total": counter(
        "Answers whose transaction the broker had decided otherwise before."
    ),
    "open_transactions": gauge("Open transactions of the group, with parked ones."),
}


def exposition(tally: Mapping[str, int], left: int | None, *, is_answering: bool) -> str:
    """The text.

    Args:
        tally: The counters of all transaction managers of the command together.
        left: The open transactions of the group; ``None`` if a broker did not answer.
        is_answering: Whether brokers can ask this command now.
    """
    return table_text(_PREFIX, _ROWS, _samples(tally, left, is_answering=is_answering))


def _samples(tally: Mapping[str, int], left: int | None, *, is_answering: bool) -> Iterator[Sample]:
    yield Sample("answering", is_answering)
    for outcome in ("committed", "rolled_back", "unknown"):
        yield Sample("answers_total", tally.get(f"checks_{outcome}", 0), (outcome,))
    yield Sample("conflicts_total", tally.get("conflicts", 0))
    if left is not None:
        yield Sample("open_transactions", left)
