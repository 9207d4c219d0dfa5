"""The attempts of consumers to handle a message, put together from trace records. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from txmq.client.observe.trace_records import HandlerEnd, HandlerStart, TraceRecord

__all__ = ["HandlingAttempt", "attempts_in"]


class HandlingAttempt(NamedTuple):
    """One call of a handler with a message."""

    group: str
    number: int
    """From 1; 0 if only the end of the attempt is known."""
    began_ms: int
    """0 if it is not known."""
    cost_ms: int | None
    """``None`` if no trace says that the attempt has ended."""
    is_success: bool
    outcome: str
    """Such as ``consumed`` or ``raised``; empty while the attempt runs, or if its trace is lost."""

    @property
    def ended_ms(self) -> int | None:
        """When the attempt ended."""
        return None if self.cost_ms is None else self.began_ms + self.cost_ms


def attempts_in(records: Iterable[TraceRecord]) -> list[HandlingAttempt]:
    """The attempts that records tell of, in the order of their beginnings.

    A client writes one record when a handler begins, and one when it ends; both have the same
    request id. Either may be lost.
    """
    starts: dict[str, HandlerStart] = {}
    ends: dict[str, HandlerEnd] = {}
    for record in records:
        if isinstance(record, HandlerStart):
            starts.setdefault(record.request_id, record)
        elif isinstance(record, HandlerEnd):
            ends.setdefault(record.request_id, record)
    found = [_attempt(start, ends.pop(name, None)) for name, start in starts.items()]
    for end in ends.values():
        cost_ms = max(0, end.cost_ms)
        outcome = end.outcome.name.lower().replace("_", " ")
        began_ms = end.at_ms - cost_ms if end.at_ms else 0
        attempt = HandlingAttempt(end.group, 0, began_ms, cost_ms, end.is_success, outcome)
        found.append(attempt)
    return sorted(found, key=lambda attempt: (attempt.began_ms, attempt.group, attempt.number))


def _attempt(start: HandlerStart, end: HandlerEnd | None) -> HandlingAttempt:
    number = max(0, start.attempts) + 1
    if end is None:
        return HandlingAttempt(start.group, number, start.at_ms, None, False, "")
    outcome = end.outcome.name.lower().replace("_", " ")
    cost_ms = max(0, end.cost_ms)
    return HandlingAttempt(start.group, number, start.at_ms, cost_ms, end.is_success, outcome)
