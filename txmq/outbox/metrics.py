"""Figures of a relay in the text that Prometheus reads. Pure."""

from __future__ import annotations

from typing import Final

from txmq.outbox.tally import Backlog, RelayTally

__all__ = ["exposition"]

_COUNTERS: Final = {
    "published": "Rows whose messages a broker has stored.",
    "requests": "Sends that were answered.",
    "deferred": "Rows that could not be sent just then.",
    "failed": "Times that a row was found whose message nobody takes.",
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
        tally: What one relay has done.
        waiting: What is in the outbox; nothing where the database does not answer.
    """
    lines: list[str] = []
    for name, meaning in _COUNTERS.items():
        lines += _lines(f"{name}_total", "counter", meaning, getattr(tally, name))
    for name, meaning in _GAUGES.items():
        lines += _lines(name, "gauge", meaning, getattr(tally, name))
    if waiting is not None:
        lines += _lines("rows_waiting", "gauge", "Rows to be published.", waiting.rows)
        lines += _lines(
            "oldest_row_seconds", "gauge", "The age of the oldest of these.", waiting.oldest_s
        )
        lines += _lines("rows_failed", "gauge", "Rows that were put aside.", waiting.failed)
    return "\n".join([*lines, ""])


def _lines(name: str, kind: str, meaning: str, value: float) -> list[str]:
    full = f"txmq_relay_{name}"
    return [f"# HELP {full} {meaning}", f"# TYPE {full} {kind}", f"{full} {value}"]
