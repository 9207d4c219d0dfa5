"""Messages found by key, id or place, and shown with their traces."""

from __future__ import annotations

from typing import Final

from txmq.cli.message import find_traces
from txmq.cli.traces import HEADINGS, trace_row
from txmq.console.body_view import body_view
from txmq.console.markup import link
from txmq.console.visits import PageContent, PageRoute, Visit
from txmq.errors import RemoteProtocolError, TopicNotFound, TxmqError, UsageError
from txmq.limits import CONSOLE_ROWS
from txmq.message import ReceivedMessage
from txmq.protocol.record import split_offset_id

__all__ = ["PAGES"]


async def show_search(visit: Visit) -> PageContent:
    """Find messages."""
    topic, by, wanted = visit.text("topic"), visit.text("by") or "key", visit.text("wanted")
    found: list[ReceivedMessage] = []
    if wanted:
        found = await _found(visit, topic, by, wanted)
    values = {
        "title": "Messages",
        "topic": topic,
        "by": by,
        "wanted": wanted,
        "rows": found[-CONSOLE_ROWS:],
        "has_more": len(found) > CONSOLE_ROWS,
    }
    return PageContent("messages.html", values)


async def _found(visit: Visit, topic: str, by: str, wanted: str) -> list[ReceivedMessage]:
    if by == "place":
        return [await _message_at(visit, wanted)]
    if not topic:
        raise UsageError("a key or an id is searched in a topic; fill in the topic")
    if by == "id":
        return [await visit.admin.find(topic, wanted)]
    if by != "key":
        raise UsageError(f"messages are found by key, id or place, not by {by!r}")
    return await visit.admin.query(topic, wanted, count=CONSOLE_ROWS + 1)


async def _message_at(visit: Visit, place: str) -> ReceivedMessage:
    """The message at a place, from a broker of this cluster.

    A place has the address of a server. The console sends a signed request to no other server.

    Raises:
        UsageError: The place is invalid, or its address is not one of a broker.
    """
    try:
        address, _ = split_offset_id(place)
    except RemoteProtocolError as error:
        raise UsageError(f"{place!r} is not a place: {error}") from error
    brokers = await visit.admin.cluster()
    if not any(address in broker.addresses.values() for broker in brokers):
        raise UsageError(f"{address} is not a broker of this cluster; search by id in its topic")
    return await visit.admin.view(place)


async def show_one(visit: Visit) -> PageContent:
    """Show one message with its traces."""
    message = await _message_at(visit, visit.required("place"))
    problem = ""
    try:
        traces = await find_traces(visit.admin, message.topic, message.id)
    except TopicNotFound:
        traces = []  # No client of this cluster leaves traces.
    except TxmqError as error:
        traces, problem = [], str(error).strip()
    values = {
        "title": "Message",
        "message": message,
        "body": body_view(message.body, visit.text("as")),
        "body_link": {
            form: link("/message", place=visit.text("place"), **{"as": form})
            for form in ("json", "text", "hex")
        },
        "headings": HEADINGS,
        "traces": [trace_row(record) for record in traces],
        "traces_problem": problem,
    }
    return PageContent("message.html", values)


PAGES: Final = (PageRoute("/messages", show_search), PageRoute("/message", show_one))
