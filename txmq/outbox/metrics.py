"""The counters of one relay, the rows that wait for all relays, and their text for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from txmq.metrics.table import MetricRow, Sample, counter, gauge, table_text

__all__ = ["ROWS", "Backlog", "RelayTally", "exposition"]

_PREFIX: Final = "txmq_relay_"

ROWS: Final[Mapping[str, MetricRow]] = {
    "published_total": counter("Rows whose messages a broker has stored."),
    "requests_total": counter("Sends that were answered."),
    "deferred_total": counter("Rows that could not be sent just then."),
    "failed_total": counter("Times that brokers refused the message of a row for good."),
    "dead_letters_total": counter("Of these, sent to the topic for dead letters."),
    "lost_leases_total": counter("Slots that another relay took over too early."),
    "slots": gauge("Slots held."),
    "at_hand": gauge("Rows read and not sent yet."),
    "rows_waiting": gauge("Rows to be published."),
    "oldest_row_seconds": gauge("The age of the oldest of these."),
    "rows_failed": gauge("Rows that were put aside."),
}
"""The metrics by name, without the prefix."""


def exposition(tally: RelayTally, waiting: Backlog | None) -> str:
    """The metrics in Prometheus' text format.

    Args:
        tally: The counters of one relay.
        waiting: The rows in the outbox; ``None`` if the database does not answer.
    """
    return table_text(_PREFIX, ROWS, _samples(tally, waiting))


def _samples(tally: RelayTally, waiting: Backlog | None) -> Iterator[Sample]:
    for name in ROWS:
        value = getattr(tally, name.removesuffix("_total"), None)
        if value is not None:
            yield Sample(name, value)
    if waiting is not None:
        yield Sample("rows_waiting", waiting.rows)
        yield Sample("oldest_row_seconds", waiting.oldest_s)
        yield Sample("rows_failed", waiting.failed)


@dataclass(slots=True, kw_only=True)
class RelayTally:
    """Counters, which only grow, and two gauges."""

    published: int = 0
    """Rows whose messages a broker has stored."""
    requests: int = 0
    """Sends that were answered."""
    deferred: int = 0
    """Rows whose send failed for now; they are sent again."""
    failed: int = 0
    """The number of times that every broker refused a row's message."""
    dead_letters: int = 0
    """Of these, messages sent to the dead-letter topic."""
    lost_leases: int = 0
    """Slots that another relay took over before this one released them."""
    slots: int = 0
    """Slots held now."""
    at_hand: int = 0
    """Rows read and not sent yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The rows in the outbox now."""

    rows: int
    """Rows that wait to be published."""
    oldest_s: float
    """The age of the oldest of them; 0 if there are none."""
    failed: int
    """Rows that were set aside."""
