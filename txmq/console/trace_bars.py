"""The life of a message as bars on one line of time: sent, stored, decided, handled. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from txmq.client.observe.trace_records import DecisionRecord, SendRecord, TraceRecord
from txmq.message import ReceivedMessage
from txmq.ops.handling_attempts import HandlingAttempt, attempts_in
from txmq.text import quantity

__all__ = ["BARS_MAX", "WIDTH", "TimeBar", "TimeLine", "time_line"]

WIDTH: Final = 1000
"""The width of the drawing, in its own units."""
BARS_MAX: Final = 100
"""Bars of one message; retries of many groups may have left more records."""
_LEAST: Final = 8
"""The width of the shortest bar, so that it can be seen."""
_STRANGE_MS: Final = 366 * 86_400_000
"""Any client may write a trace. A time so far from the message is listed and not drawn."""


class TimeBar(NamedTuple):
    """One event with its beginning and its duration."""

    name: str
    text: str
    began_ms: int
    """0 if it is not known."""
    cost_ms: int | None
    """``None`` for a moment, or while it lasts."""
    mood: str
    left: int = 0
    width: int = 0
    """0 if it cannot be drawn."""


class TimeLine(NamedTuple):
    """The bars of a message, in the order of their beginnings."""

    bars: list[TimeBar]
    start_ms: int
    span_ms: int
    is_cut: bool
    """Whether there are more bars than are shown."""


def time_line(message: ReceivedMessage, traces: Sequence[TraceRecord]) -> TimeLine:
    """The bars of a message and its traces."""
    bars = [*_sends(message, traces), _stored(message), *_decisions(traces)]
    bars += [_handled(attempt) for attempt in attempts_in(traces)]
    bars.sort(key=lambda bar: bar.began_ms)
    is_cut = len(bars) > BARS_MAX
    bars = bars[:BARS_MAX]
    drawn = [bar for bar in bars if _is_near(bar, message.stored_ms)]
    start_ms = min(bar.began_ms for bar in drawn)
    span_ms = max(1, max(_end_of(bar) for bar in drawn) - start_ms)
    placed = [
        _placed(bar, start_ms, span_ms) if _is_near(bar, message.stored_ms) else bar for bar in bars
    ]
    return TimeLine(placed, start_ms, span_ms, is_cut)


def _is_near(bar: TimeBar, stored_ms: int) -> bool:
    return all(abs(at_ms - stored_ms) < _STRANGE_MS for at_ms in (bar.began_ms, _end_of(bar)))


def _end_of(bar: TimeBar) -> int:
    return bar.began_ms + (bar.cost_ms or 0)


def _placed(bar: TimeBar, start_ms: int, span_ms: int) -> TimeBar:
    room = WIDTH - _LEAST
    left = (bar.began_ms - start_ms) * room // span_ms
    width = max(_LEAST, (bar.cost_ms or 0) * room // span_ms)
    return bar._replace(left=left, width=min(width, WIDTH - left))


def _sends(message: ReceivedMessage, traces: Iterable[TraceRecord]) -> list[TimeBar]:
    sends = [record for record in traces if isinstance(record, SendRecord)]
    if not sends:
        return [TimeBar("sent", "the producer left no trace", message.born_ms, None, "calm")]
    return [
        TimeBar(
            f"sent by group {record.group}",
            f"{record.kind.name.lower()} message, {quantity(max(0, record.body_bytes), 'byte')}; "
            + ("the broker took it" if record.is_success else "the send failed"),
            record.at_ms,
            max(0, record.cost_ms),
            "good" if record.is_success else "bad",
        )
        for record in sends
    ]


def _stored(message: ReceivedMessage) -> TimeBar:
    where = f"{message.queue.broker}:{message.queue.number}, offset {message.offset}"
    return TimeBar("stored", where, message.stored_ms, None, "calm")


def _decisions(traces: Iterable[TraceRecord]) -> list[TimeBar]:
    return [
        TimeBar(
            f"decided by group {record.group}",
            record.state + (", after a check" if record.is_after_check else ""),
            record.at_ms,
            None,
            "calm",
        )
        for record in traces
        if isinstance(record, DecisionRecord)
    ]


def _handled(attempt: HandlingAttempt) -> TimeBar:
    which = f", attempt {attempt.number}" if attempt.number else ""
    name = f"handled by group {attempt.group or 'unknown'}{which}"
    if attempt.cost_ms is None:
        return TimeBar(name, "no trace says that it has ended", attempt.began_ms, None, "wait")
    mood = "good" if attempt.is_success else "bad"
    text = attempt.outcome if attempt.is_success else f"{attempt.outcome}; it comes again"
    return TimeBar(name, text, attempt.began_ms, attempt.cost_ms, mood)
