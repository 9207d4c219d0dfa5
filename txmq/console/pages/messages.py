"""Messages found by key, id, place or time, and shown with a timeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from txmq.client.observe.trace_records import DecisionRecord, SendRecord, TraceRecord
from txmq.console.body_view import first_line
from txmq.console.markup import link
from txmq.console.pages.parts import body_values
from txmq.console.visits import PageContent, Routes, Visit, render
from txmq.errors import RemoteProtocolError, TopicNotFound, TxmqError, UsageError
from txmq.limits import CONSOLE_ROWS
from txmq.message import Queue, ReceivedMessage
from txmq.ops.message_scan import MessageScan, ScanWish, scan_messages
from txmq.ops.traces import HEADINGS, HandlingAttempt, attempts_in, find_traces, trace_row
from txmq.protocol import properties
from txmq.protocol.record import split_offset_id
from txmq.text import quantity

__all__ = ["message_at", "routes"]

routes = Routes()

TAIL_S: Final = 1.0
_WAYS: Final = ("key", "id", "place", "time")
WIDTH: Final = 1000
"""The width of the drawing, in its own units."""
BARS_MAX: Final = 100
"""Bars of one message; retries of many groups may have left more records."""
_LEAST: Final = 8
"""The width of the shortest bar, so that it can be seen."""
_STRANGE_MS: Final = 366 * 86_400_000
"""Any client may write a trace. Events this far from the message are listed but not drawn."""


class MessageLine(NamedTuple):
    """A row of a list of messages."""

    message: ReceivedMessage
    size: int
    preview: str


class SearchFields(NamedTuple):
    """What the visitor typed."""

    topic: str
    by: str
    wanted: str
    queue: str
    since: str
    until: str
    cursor: str


@routes.page("/messages")
async def show_search(visit: Visit) -> PageContent:
    """Find messages by key, id or place, or list those of a topic by time."""
    names = SearchFields._fields[2:]
    fields = SearchFields(
        visit.text("topic"), visit.text("by") or "key", *(visit.text(name) for name in names)
    )
    if fields.by not in _WAYS:
        raise UsageError(f"messages are found by key, id, place or time, not by {fields.by!r}")
    scan = MessageScan([], 0, "", [])
    rows: list[MessageLine] = []
    is_asked = bool(fields.wanted)
    if fields.by == "time":
        is_asked = bool(fields.topic)
        if is_asked:
            scan = await _scan(visit, fields)
            rows = _scanned(scan)
    elif is_asked:
        found = await _found(visit, fields.topic, fields.by, fields.wanted)
        rows = [
            MessageLine(message, len(message.body), first_line(message.body))
            for message in reversed(found)
        ]
    shown = fields._asdict() | {"cursor": ""}
    return render(
        "messages.html",
        title="Find a message",
        fields=fields,
        ways=_WAYS,
        is_asked=is_asked,
        rows=rows[:CONSOLE_ROWS],
        has_more=len(rows) > CONSOLE_ROWS,
        scan=scan,
        # A page with a long scan does not refresh itself.
        is_still=fields.by == "time" and bool(fields.cursor or fields.wanted),
        newest=link("/messages", **shown),
        older=link("/messages", **(shown | {"cursor": scan.next})),
    )


@routes.page("/messages/tail", TAIL_S)
async def show_tail(visit: Visit) -> PageContent:
    """Show the newest messages of a topic as they arrive, the newest first."""
    topic = visit.required("topic")
    scan = await scan_messages(visit.admin, ScanWish(topic=topic), CONSOLE_ROWS)
    return render(
        "tail.html",
        title=topic,
        rows=_scanned(scan),
        damaged=scan.damaged,
        is_still=bool(visit.text("still")),
    )


async def _scan(visit: Visit, fields: SearchFields) -> MessageScan:
    wish = ScanWish(
        topic=fields.topic,
        queue=_queue(fields.topic, fields.queue) if fields.queue else None,
        since_ms=_moment(visit, fields.since) if fields.since else 0,
        until_ms=_moment(visit, fields.until) if fields.until else None,
        contains=fields.wanted,
    )
    return await scan_messages(visit.admin, wish, CONSOLE_ROWS, fields.cursor)


def _scanned(scan: MessageScan) -> list[MessageLine]:
    return [
        MessageLine(found.message, found.size, first_line(found.message.body))
        for found in scan.messages
    ]


def _moment(visit: Visit, text: str) -> int:
    moment = visit.moment(text)
    return visit.now_ms if moment < 0 else moment


def _queue(topic: str, text: str) -> Queue:
    broker, _, number = text.rpartition(":")
    if not broker or not number.isdecimal() or len(number) > 9:
        raise UsageError(f"{text!r} is not a queue; write broker:number, as in broker-a:0")
    return Queue(topic, broker, int(number))


async def _found(visit: Visit, topic: str, by: str, wanted: str) -> list[ReceivedMessage]:
    """The messages, oldest first."""
    if by == "place":
        return [await message_at(visit, wanted)]
    if not topic:
        raise UsageError(f"messages are searched by {by} in a topic; fill in the topic")
    if by == "id":
        return [await visit.admin.find(topic, wanted)]
    return await visit.admin.query(topic, wanted, count=CONSOLE_ROWS + 1)


async def message_at(visit: Visit, place: str) -> ReceivedMessage:
    """The message at a place, from a broker of this cluster.

    A place names a server's address, and the console must not sign requests for a server outside
    the cluster.

    Raises:
        UsageError: The place is invalid, or its address belongs to no broker of the cluster.
    """
    try:
        address, _ = split_offset_id(place)
    except RemoteProtocolError as error:
        raise UsageError(f"{place!r} is not a place: {error}") from error
    brokers = await visit.admin.cluster()
    if not any(address in broker.addresses.values() for broker in brokers):
        raise UsageError(f"{address} is not a broker of this cluster; search by id in its topic")
    return await visit.admin.view(place)


@routes.page("/message")
async def show_one(visit: Visit) -> PageContent:
    """Show one message, by its place or by topic and id, with its timeline."""
    topic = visit.text("topic")
    if topic and not visit.text("place"):
        message = await visit.admin.find(topic, visit.required("id"))
        where = {"topic": topic, "id": visit.text("id")}
    else:
        message = await message_at(visit, visit.required("place"))
        where = {"place": visit.text("place")}
    problem = ""
    try:
        traces = await find_traces(visit.admin, message.topic, message.id)
    except TopicNotFound:
        traces = []  # No client of this cluster leaves traces.
    except TxmqError as error:
        traces, problem = [], str(error).strip()
    is_transaction = message.properties.get(properties.TRANSACTION) == "true"
    return render(
        "message.html",
        title="Message",
        message=message,
        is_transaction=is_transaction,
        **body_values(visit, message.body, "/message", **where),
        line=time_line(message, traces),
        line_width=WIDTH,
        headings=HEADINGS,
        traces=[trace_row(record) for record in traces],
        traces_problem=problem,
    )


class TimeBar(NamedTuple):
    """One event with its start and its duration."""

    name: str
    text: str
    began_ms: int
    """0 if it is not known."""
    cost_ms: int | None
    """``None`` for an instant, or while the event lasts."""
    mood: str
    left: int = 0
    width: int = 0
    """0 if it cannot be drawn."""


class TimeLine(NamedTuple):
    """The bars of a message, in order of their start."""

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
