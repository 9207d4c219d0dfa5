"""The trace records of a message, in words, and the attempts to handle it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final, NamedTuple

from txmq.client import Admin
from txmq.client.observe.trace_records import (
    DecisionRecord,
    HandlerEnd,
    HandlerStart,
    SendRecord,
    TraceRecord,
)
from txmq.errors import TxmqError
from txmq.ops.known_names import check_topic
from txmq.protocol.topics import TRACES
from txmq.text import quantity

__all__ = [
    "HEADINGS",
    "HandlingAttempt",
    "attempts_in",
    "find_traces",
    "trace_fields",
    "trace_line",
    "trace_row",
    "traces_of",
]

HEADINGS: Final = ("event", "time", "group", "success", "cost ms", "keys", "more")
_EVENTS: Final[dict[type[TraceRecord], str]] = {
    SendRecord: "sent",
    HandlerStart: "begun",
    HandlerEnd: "handled",
    DecisionRecord: "decided",
}


def trace_fields(record: TraceRecord) -> dict[str, object]:
    """A record for JSON; its event comes first."""
    fields: dict[str, object] = {"event": _event(record), **asdict(record)}
    for name in ("kind", "outcome"):
        if name in fields:
            fields[name] = getattr(record, name).name.lower()
    return fields


def trace_row(record: TraceRecord) -> list[object]:
    """A record as a line of a table, under :data:`HEADINGS`."""
    match record:
        case SendRecord():
            ended: list[object] = [_yes_or_no(is_yes=record.is_success), record.cost_ms]
            more = f"{record.kind.name.lower()}, {quantity(record.body_bytes, 'byte')}"
            if record.store_host:
                more += f", at {record.store_host}"
        case HandlerStart():
            ended = ["", ""]
            more = f"attempt {record.attempts + 1}"
        case HandlerEnd():
            ended = [_yes_or_no(is_yes=record.is_success), record.cost_ms]
            more = record.outcome.name.lower().replace("_", " ")
        case DecisionRecord():
            ended = ["", ""]
            more = record.state + (" after a check" if record.is_after_check else "")
    return [_event(record), _time(record.at_ms), record.group, *ended, record.keys, more]


def trace_line(record: TraceRecord) -> str:
    """A record as one line."""
    event, time, group, success, cost_ms, keys, more = trace_row(record)
    words = [f"{time} {event}", f"{record.id}", f"group {group}" if group else ""]
    words += [f"keys {keys}" if keys else "", str(more), f"{cost_ms} ms" if cost_ms != "" else ""]
    words.append("failed" if success == "no" else "")
    return ", ".join(word for word in words if word)


def _event(record: TraceRecord) -> str:
    return _EVENTS[type(record)]


def _yes_or_no(*, is_yes: bool) -> str:
    return "yes" if is_yes else "no"


def _time(at_ms: int) -> str:
    if not at_ms:
        return ""
    try:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # Any client may write a trace.
        return str(at_ms)
    return moment.isoformat(sep=" ", timespec="milliseconds")


async def find_traces(
    admin: Admin, topic: str, message_id: str, trace_topic: str = TRACES
) -> list[TraceRecord]:
    """The traces that clients left of a message, the oldest first.

    Raises:
        TopicNotFound: The trace topic does not exist; or there are no traces, and the message's
            topic does not exist.
        TransportError: A name server or broker does not answer.
        BrokerRefused: A broker refuses.
    """
    found = await admin.traces(topic, message_id, trace_topic=trace_topic)
    if not found:
        await check_topic(admin, topic)
    return found


async def traces_of(admin: Admin, topic: str, message_id: str) -> list[TraceRecord]:
    """The traces of a message; empty if the cluster has no traces, or none can be read."""
    try:
        return await find_traces(admin, topic, message_id)
    except TxmqError:
        return []  # Most clients leave no traces, and then their topic does not exist.


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
    """The attempts in some records, ordered by their start.

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
    found = [_attempt(starts.get(name), ends.get(name)) for name in starts | ends]
    return sorted(found, key=lambda attempt: (attempt.began_ms, attempt.group, attempt.number))


def _attempt(start: HandlerStart | None, end: HandlerEnd | None) -> HandlingAttempt:
    cost_ms, is_success, outcome = None, False, ""
    if end is not None:
        cost_ms, is_success = max(0, end.cost_ms), end.is_success
        outcome = end.outcome.name.lower().replace("_", " ")
    if start is not None:
        group, number, began_ms = start.group, max(0, start.attempts) + 1, start.at_ms
    else:
        assert end is not None, "an attempt has at least one record"
        group, number = end.group, 0
        began_ms = end.at_ms - max(0, end.cost_ms) if end.at_ms else 0
    return HandlingAttempt(group, number, began_ms, cost_ms, is_success, outcome)
