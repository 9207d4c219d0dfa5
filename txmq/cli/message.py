"""``txmq message``: sends, recalls, fetches and finds messages."""

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Final

import typer

from txmq.cli.commands import Answer, Commands, Listing, listed
from txmq.cli.common import (
    FAILED,
    WRONGLY_CALLED,
    Ask,
    AtBroker,
    GroupArgument,
    TopicArgument,
    duration_of,
    fail,
    moment_of,
    operator_name,
    option,
    queue_of,
)
from txmq.cli.output import listing, message_fields, message_listing, note, say
from txmq.client import Admin, HandledMessage, PulledBatch
from txmq.message import Message, Queue, ReceivedMessage
from txmq.ops.message_scan import ScanWish, scan_messages
from txmq.ops.moments import LATEST
from txmq.ops.rows import DELAYED_COLUMNS, ListColumn, delayed_rows
from txmq.ops.traces import HEADINGS, find_traces, trace_fields, trace_row
from txmq.protocol.topics import TRACES
from txmq.text import quantity

__all__ = ["app"]

BODY_BYTES_SHOWN: Final = 500
"""The bytes of a body that a table shows: folding a long cell is slow."""

app = Commands("Send, recall, fetch and look up messages.")

MessageId = Annotated[str, typer.Argument(metavar="ID", help="An id of the message.")]
OfTopic = Annotated[
    str | None,
    typer.Option(
        "--topic", help="The topic, for an id that the producer gave; else it is a place."
    ),
]
Pull = Callable[[Queue, int, int], Awaitable[PulledBatch]]
OneQueue = Annotated[str | None, typer.Option("--queue", help="The queue, as broker:number.")]


def _shown(body: bytes) -> str:
    """The beginning of a body; ``--json`` has all of it."""
    text = body[:BODY_BYTES_SHOWN].decode(errors="backslashreplace")
    if len(body) <= BODY_BYTES_SHOWN:
        return text
    return f"{text}… ({quantity(len(body), 'byte')})"


_COLUMNS: Final = (
    ListColumn("broker", "queue", lambda queue: queue.broker),
    ListColumn("queue", "queue", lambda queue: queue.number, lambda queue: queue.number),
    *("offset", "id"),
    ListColumn("tag", "tags"),
    ListColumn("keys", "keys", " ".join),
    ListColumn("body", "body", _shown),
)


def _all_fields(messages: Sequence[ReceivedMessage]) -> list[dict[str, object]]:
    return [message_fields(message) for message in messages]


@app.command()
def send(
    topic: TopicArgument,
    body: Annotated[str, typer.Argument(help="The body; - reads it from standard input.")],
    *,
    tag: str = option("Its tag.", default=""),
    key: list[str] | None = option("A key; may be repeated."),
    property_: list[str] | None = option(
        "A property, as name=value; may be repeated.", "--property"
    ),
    delay_level: int = option(
        "Deliver it after the broker's delay for this level.", default=0, min=0
    ),
    after: str | None = option("Deliver it after this time, such as 90s."),
    queue: OneQueue = None,
    ask: Ask,
) -> Answer:
    """Send a message."""
    if delay_level and after is not None:
        fail("--delay-level and --after exclude each other; leave out one", WRONGLY_CALLED)
    message = Message(
        topic=topic,
        body=sys.stdin.buffer.read() if body == "-" else os.fsencode(body),
        tags=tag,
        keys=tuple(key or ()),
        properties=dict(_pair(pair) for pair in property_ or ()),
        delay_level=delay_level,
        deliver_after=None if after is None else duration_of(after, "--after"),
    )
    target = None if queue is None else queue_of(topic, queue)
    receipt = ask(lambda admin: admin.send(message, target), changes=True, topic=topic)
    named = f"id {receipt.id}, place {receipt.offset_id}"
    if delay_level or receipt.recall_handle is not None:
        # The offset belongs to the queue in which the message waits, not to its topic.
        text = f"waits at {receipt.queue.broker} for its time; {named}"
    else:
        where = f"{receipt.queue.broker}:{receipt.queue.number}"
        text = f"stored in {where} at offset {receipt.offset}; {named}"

    def show() -> None:
        say(text)
        if receipt.recall_handle is not None:
            say(f"to recall it: txmq message recall {topic} {receipt.recall_handle}")

    return Answer(receipt, show)


@app.command()
def recall(
    topic: TopicArgument,
    handle: Annotated[
        str,
        typer.Argument(help="The handle that its sender received, or that `delayed` lists."),
    ],
    *,
    reason: str = option(
        "Why; a txmq broker then records who recalled it in its audit.", default=""
    ),
    ask: Ask,
) -> Answer:
    """Recall a delayed message, so that it is never delivered."""

    async def make(admin: Admin) -> str:
        if not reason.strip():
            return await admin.recall(topic, handle)
        operator = operator_name("")
        return await admin.recall_delayed(topic, handle, operator=operator, reason=reason)

    recalled = ask(make, changes=True, topic=topic)
    return Answer({"id": recalled}, f"recalled {recalled}")


@app.command()
@listed(DELAYED_COLUMNS, empty="no message waits for its time")
def delayed(
    *,
    level: int | None = option(
        "Only this delay level; 0 for messages with a time of their own.", min=0
    ),
    from_: str = option(
        "Due then or later: 2030-05-01T12:00 (UTC), or earliest.", "--from", default="earliest"
    ),
    most: int = option("The most messages, those due first.", default=1_000, min=1),
    broker: AtBroker = None,
    ask: Ask,
) -> Listing:
    """List delayed messages, the earliest due first."""
    from_ms = max(0, moment_of(from_, "--from"))
    return Listing(
        ask(lambda admin: delayed_rows(admin, broker, level=level, from_ms=from_ms, limit=most))
    )


@app.command()
@listed(_COLUMNS, empty="no messages")
def pull(
    topic: TopicArgument,
    *,
    queue: OneQueue = None,
    offset: int | None = option("The offset to begin at; by default the oldest.", min=0),
    count: int = option("The most messages of each queue.", default=32, min=1),
    tags: str = option("Tags wanted, separated by '||'.", default="*"),
    hold_ms: int = option("How long to wait if there are none.", default=0),
    ask: Ask,
) -> Listing:
    """Fetch messages without consuming them: no group's offset moves."""

    async def fetch(admin: Admin) -> list[ReceivedMessage]:
        if queue is not None:
            queues: tuple[Queue, ...] = (queue_of(topic, queue),)
        else:
            queues = (await admin.route(topic)).queues_to_read
        pulls = partial(admin.pull, hold=hold_ms / 1000, tags=tags, on_damage=note)
        found: list[ReceivedMessage] = []
        for source in queues:
            found += await _fetch(admin, source, offset, count, pulls)
        return found

    return Listing(ask(fetch, topic=topic), as_json=_all_fields)


@app.command("list")
@listed(_COLUMNS, empty="no messages")
def list_(
    topic: TopicArgument,
    *,
    since: str = option("Stored then or later: 2h (ago), 2024-05-01T12:00.", default="earliest"),
    until: str = option("Stored then or earlier.", default="latest"),
    contains: str = option(
        "Only with this text in a key, the tag, the id or the body.", default=""
    ),
    queue: OneQueue = None,
    count: int = option("The most messages.", default=32, min=1),
    ask: Ask,
) -> Listing:
    """List messages of a topic, the newest first, without consuming them.

    Long bodies are cut; `txmq message view` shows a whole message.
    """
    until_ms = moment_of(until, "--until")
    wish = ScanWish(
        topic=topic,
        queue=None if queue is None else queue_of(topic, queue),
        since_ms=max(0, moment_of(since, "--since")),
        until_ms=None if until_ms == LATEST else until_ms,
        contains=contains,
    )

    async def scan(admin: Admin) -> list[ReceivedMessage]:
        step = await scan_messages(admin, wish, count)
        found, damaged = step.messages, step.damaged
        while step.next and len(found) < count:
            step = await scan_messages(admin, wish, count - len(found), step.next)
            found += step.messages
            damaged += step.damaged
        for text in dict.fromkeys(damaged):
            note(text)
        return [scanned.message for scanned in found]

    return Listing(ask(scan, topic=topic), as_json=_all_fields)


@app.command()
def view(
    message_id: MessageId,
    *,
    topic: OfTopic = None,
    ask: Ask,
) -> Answer:
    """Show one message."""
    found = ask(lambda admin: _find(admin, message_id, topic), topic=topic)
    return Answer(message_fields(found), lambda: listing(message_listing(found)))


@app.command("consume-directly")
def consume_directly(
    group: GroupArgument,
    message_id: MessageId,
    *,
    topic: OfTopic = None,
    client: str | None = option("The id of the consumer; by default one of the group."),
    ask: Ask,
) -> Answer:
    """Let a connected consumer handle one stored message now, and show its answer.

    The group's offsets do not move, and a failure does not cause a redelivery. The consumer may
    already have handled the message.
    """

    async def handle(admin: Admin) -> HandledMessage:
        found = await _find(admin, message_id, topic)
        return await admin.consume_directly(group, found, client)

    done = ask(handle, changes=True, topic=topic)
    result = "consumed it" if done.is_consumed else f"did not consume it: {done.result}"
    why = f", {done.remark}" if done.remark else ""
    code = 0 if done.is_consumed else FAILED
    return Answer(done, f"{done.client} {result}{why} ({done.spent_ms} ms)", code)


async def _find(admin: Admin, message_id: str, topic: str | None) -> ReceivedMessage:
    return await (admin.find(topic, message_id) if topic else admin.view(message_id))


@app.command()
@listed(_COLUMNS, empty="no messages")
def query(
    topic: TopicArgument,
    key: Annotated[str, typer.Argument(help="The key.")],
    *,
    count: int = option("The most messages of each broker.", default=64, min=1),
    ask: Ask,
) -> Listing:
    """Find messages by key."""
    found = ask(lambda admin: admin.query(topic, key, count=count), topic=topic)
    return Listing(found, as_json=_all_fields)


@app.command()
@listed([ListColumn(heading, heading) for heading in HEADINGS], empty="no traces")
def trace(
    topic: TopicArgument,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The id its producer gave it.")],
    *,
    trace_topic: str = option("Where traces are kept.", default=TRACES),
    ask: Ask,
) -> Listing:
    """Show who sent and handled a message, if clients leave traces."""
    records = ask(
        lambda admin: find_traces(admin, topic, message_id, trace_topic), topic=trace_topic
    )
    rows = [
        dict(zip(HEADINGS, trace_row(record), strict=True)) | {"fields": trace_fields(record)}
        for record in records
    ]
    return Listing(rows, as_json=lambda chosen: [row["fields"] for row in chosen])


async def _fetch(
    admin: Admin, queue: Queue, offset: int | None, count: int, pull: Pull
) -> list[ReceivedMessage]:
    # Brokers return a few messages at a time, and the offset to continue at.
    at = await admin.min_offset(queue) if offset is None else offset
    found: list[ReceivedMessage] = []
    while len(found) < count:
        pulled = await pull(queue, at, count - len(found))
        found += pulled.messages
        if pulled.next_offset >= pulled.max_offset or pulled.next_offset <= at:
            break
        at = pulled.next_offset
    return found


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise typer.BadParameter(f"{text!r} is not a property; write name=value")
    return name, value
