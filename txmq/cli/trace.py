"""``txmq trace``: what clients report about the messages that they send and handle."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from txmq.cli.commands import Commands
from txmq.cli.common import AsJson, Ask, moment_of, option
from txmq.cli.output import as_json, flush, note, say
from txmq.client import Admin
from txmq.client.observe.trace_records import TraceRecord, decode
from txmq.errors import NoPermission, TransportError
from txmq.message import Queue
from txmq.ops.moments import LATEST
from txmq.ops.queries import sentence_of
from txmq.ops.traces import trace_fields, trace_line
from txmq.protocol.topics import TRACES

__all__ = ["app"]

HOLD_S: Final = 15.0
AGAIN_S: Final = 1.0

app = Commands("Follow the traces that clients leave.")


@app.command()
def tail(
    *,
    topic: str = option("Only messages of this topic.", default=""),
    group: str = option("Only what this group did.", default=""),
    key: str = option("Only messages with this key or id.", default=""),
    since: str = option(
        "Begin then: latest, 2h (ago), 2024-05-01T12:00, earliest.", default="latest"
    ),
    count: int | None = option("End after this many records.", min=1),
    trace_topic: str = option("Where traces are kept.", default=TRACES),
    ask: Ask,
    json: AsJson = False,
) -> None:
    """Print traces as they arrive, one per line, until Ctrl-C; `txmq message trace` has old ones.

    The traces of handlers do not name the topic, so --topic leaves them out.
    """
    since_ms = moment_of(since, "--since")

    left = count

    def show(record: TraceRecord) -> bool:
        nonlocal left
        is_wanted = (
            topic in ("", getattr(record, "topic", ""))
            and group in ("", record.group)
            and (not key or key in (record.id, *record.keys.split()))
        )
        if is_wanted and left != 0:
            if json:
                as_json(trace_fields(record))
            else:
                say(trace_line(record))
            flush()
            left = None if left is None else left - 1
        return left == 0

    with suppress(KeyboardInterrupt):
        ask(lambda admin: _follow_all(admin, trace_topic, since_ms, show), topic=trace_topic)


async def _follow_all(
    admin: Admin, topic: str, since_ms: int, show: Callable[[TraceRecord], bool]
) -> None:
    """Show the records of all queues until ``show`` returns true, or a request fails for good."""
    route = await admin.route(topic)
    if not route.readable:
        raise NoPermission(f"the topic {topic} has no queue that may be read")
    tasks = [asyncio.create_task(_follow(admin, queue, since_ms, show)) for queue in route.readable]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _follow(
    admin: Admin, queue: Queue, since_ms: int, show: Callable[[TraceRecord], bool]
) -> None:
    if since_ms == LATEST:
        at = await admin.max_offset(queue)
    else:
        at = await admin.offset_by_time(queue, since_ms)
    while True:
        try:
            pulled = await admin.pull(queue, at, hold=HOLD_S, on_damage=note)
        except TransportError as error:
            # A broker that restarts must not end this.
            note(f"txmq: {sentence_of(error)}")
            await asyncio.sleep(AGAIN_S)
            continue
        at = pulled.next_offset
        for message in pulled.messages:
            for record in decode(message.body):
                if show(record):
                    return
