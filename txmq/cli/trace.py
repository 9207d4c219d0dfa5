"""``txmq trace``: what clients report about the messages that they send and handle."""

import asyncio
from typing import Annotated, Final

import typer

from txmq.cli.common import NAMES_DEFAULT, AsJson, Names, ask, moment_of
from txmq.cli.output import as_json, flush, note, say
from txmq.client import Admin
from txmq.client.observe.trace_records import TraceRecord, decode
from txmq.errors import TransportError
from txmq.message import Queue
from txmq.ops.moments import LATEST
from txmq.ops.queries import sentence_of
from txmq.ops.traces import trace_fields, trace_line
from txmq.protocol.topics import TRACES

__all__ = ["app"]

HOLD_S: Final = 15.0
AGAIN_S: Final = 1.0

app = typer.Typer(no_args_is_help=True, help="Follow the traces that clients leave.")


@app.callback()
def trace() -> None:
    """Follow the traces that clients leave."""


@app.command()
def tail(
    *,
    topic: Annotated[str, typer.Option(help="Only messages of this topic.")] = "",
    group: Annotated[str, typer.Option(help="Only what this group did.")] = "",
    key: Annotated[str, typer.Option(help="Only messages with this key or id.")] = "",
    since: Annotated[
        str, typer.Option(help="Begin then: latest, 2h (ago), 2024-05-01T12:00, earliest.")
    ] = "latest",
    count: Annotated[int | None, typer.Option(min=1, help="End after so many records.")] = None,
    trace_topic: Annotated[str, typer.Option(help="Where traces are kept.")] = TRACES,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Print traces as they arrive, one on a line, until Ctrl-C; `txmq message trace` has the past.

    The topic of a message is known when it is sent: --topic leaves out what handlers did.
    """
    following = _Following(topic, group, key, count, is_json=json)
    since_ms = moment_of(since, "--since")
    try:
        ask(names, lambda admin: following.run(admin, trace_topic, since_ms), topic=trace_topic)
    except KeyboardInterrupt:
        return


class _Following:
    """Reads all queues of a trace topic, and prints the records that are wanted."""

    def __init__(
        self, topic: str, group: str, key: str, count: int | None, *, is_json: bool
    ) -> None:
        self._topic = topic
        self._group = group
        self._key = key
        self._left = count
        self._is_json = is_json
        self._ended = asyncio.Event()

    async def run(self, admin: Admin, trace_topic: str, since_ms: int) -> None:
        """Print records until there are enough, or a request fails for good."""
        route = await admin.route(trace_topic)
        tasks = [
            asyncio.create_task(self._follow(admin, queue, since_ms)) for queue in route.readable
        ]
        tasks.append(asyncio.create_task(self._end()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # Only an error ends the task of a queue.
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _end(self) -> None:
        await self._ended.wait()

    async def _follow(self, admin: Admin, queue: Queue, since_ms: int) -> None:
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
                    if self._is_wanted(record):
                        self._print(record)

    def _is_wanted(self, record: TraceRecord) -> bool:
        if self._topic and getattr(record, "topic", "") != self._topic:
            return False
        if self._group and record.group != self._group:
            return False
        return not self._key or self._key in (record.id, *record.keys.split())

    def _print(self, record: TraceRecord) -> None:
        if self._ended.is_set():
            return
        if self._is_json:
            as_json(trace_fields(record))
        else:
            say(trace_line(record))
        flush()
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self._ended.set()
