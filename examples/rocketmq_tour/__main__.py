"""Take the tour: a broker, every program in turn, and then the broker once more.

Nothing that was acknowledged may be missing at the end.
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import tempfile
import time
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from txmq import Admin, Client, Message, Producer
from txmq.testing import Broker, settings_for_test

__all__ = ["main"]

STORED = "SendStatus.OK"
MESSAGE = "ReceivedMessage("
TEXTS = 20
PATIENCE_S = 20.0
"""How long one program may take."""


@dataclass(frozen=True, slots=True)
class Station:
    """One program, and what it has to print how often."""

    program: str
    java: str
    mark: str
    times: int
    what: str
    is_consumer: bool = False


PRODUCERS = (
    # First here and last below: meanwhile its messages wait for their time.
    Station("delay_producer", "DelayProducer", STORED, 100, "results"),
    Station("sync_producer", "SyncProducer", STORED, 100, "results"),
    Station("async_producer", "AsyncProducer", STORED, 100, "results"),
    Station("oneway_producer", "OnewayProducer", "producer shutdown", 1, "goodbye"),
    Station("ordered_producer", "OrderedProducer", STORED, 100, "results"),
    Station("batch_producer", "BatchProducer", STORED, 100, "results"),
    Station("filter_by_tag_producer", "FilterByTagProducer", STORED, 10, "results"),
    Station("filter_by_sql_producer", "FilterBySQLProducer", STORED, 10, "results"),
    Station("transaction_producer", "TransactionProducer", "xid=", 3, "results"),
)
CONSUMERS = (
    Station("normal_consumer", "NormalConsumer", MESSAGE, 300, "messages", is_consumer=True),
    Station("batch_consumer", "BatchConsumer", MESSAGE, 100, "messages", is_consumer=True),
    Station(
        "filter_by_tag_consumer", "FilterByTagConsumer", MESSAGE, 7, "messages", is_consumer=True
    ),
    Station(
        "filter_by_sql_consumer", "FilterBySQLConsumer", MESSAGE, 7, "messages", is_consumer=True
    ),
    Station("pull_consumer", "ConsumerPullTest", "text ", TEXTS, "texts", is_consumer=True),
    Station("scheduled_pull", "ConsumerPullDemo", "text ", TEXTS, "texts", is_consumer=True),
    Station("push_consumer", "ConsumerTest", "consumed ", TEXTS, "texts", is_consumer=True),
    Station(
        "transaction_consumer", "TransactionConsumer", MESSAGE, 2, "messages", is_consumer=True
    ),
    Station("delay_consumer", "DelayConsumer", MESSAGE, 100, "messages", is_consumer=True),
)
KEPT = {
    "testTopic": 300,
    "single": 100,
    "TopicA": 100,
    "TopicB": 100,
    "TopicTest": 20,
    "TOPIC_TEST": TEXTS,
    "TTopic": 2,
}
"""How many messages each topic has at the end."""

console = Console()


class Tour:
    """The acknowledged messages, and the missing ones."""

    def __init__(self) -> None:
        self.acknowledged: set[str] = set()
        self.missing: list[str] = []

    async def visit(self, title: str, stations: tuple[Station, ...], names: str) -> None:
        """Run programs one after the other, and show what each has printed."""
        table = Table(title=title, title_justify="left")
        for column in ("program", "in Java", "printed", "seconds"):
            table.add_column(column, no_wrap=True)
        example = ""
        for station in stations:
            started = time.monotonic()
            lines = await run(station, names)
            took = time.monotonic() - started
            found = sum(line.count(station.mark) for line in lines)
            if found != station.times:
                self.missing.append(f"{station.program} printed {found} of {station.times}")
            if not station.is_consumer:
                self.acknowledged.update(ids_in(lines))
            printed = f"{found} {station.what}"
            table.add_row(station.program, station.java, printed, f"{took:.1f}")
            example = example or (lines[-1] if lines else "")
        console.print(table)
        console.print(f"for one: {example}\n", style="dim", highlight=False)

    async def look_again(self, names: str) -> None:
        """Check the topics after the restart of the broker."""
        console.print("the broker stopped; the same directory again:")
        table = Table("topic", "messages")
        stored: set[str] = set()
        async with Client(names) as client:
            for topic, count in KEPT.items():
                ids = await ids_stored(client.admin, topic)
                stored |= ids
                table.add_row(topic, str(len(ids)))
                if len(ids) != count:
                    self.missing.append(f"{topic} has {len(ids)} of {count}")
            found = await client.admin.query("testTopic", "key-7")
            progress = await client.admin.group_progress("cg", "testTopic")
        lag = sum(queue.lag for queue in progress)
        bodies = sorted(message.body.decode() for message in found)
        console.print(table)
        console.print(f"by key-7: {bodies}; the lag of group cg: {lag}")
        if len(found) != 2 or lag:
            self.missing.append("a key or the place of a group is lost")
        lost = len(self.acknowledged - stored)
        if lost:
            self.missing.append(f"{lost} messages were acknowledged and are gone")


async def run(station: Station, names: str) -> list[str]:
    """Run one program as a user would; returns its lines, none where it fails."""
    count = ("--count", str(station.times)) if station.is_consumer else ()
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"examples.rocketmq_tour.{station.program}", "--names", names, *count,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE_S):
            output, _ = await program.communicate()
    except TimeoutError:
        program.kill()
        await program.wait()
        return []
    return output.decode().splitlines() if program.returncode == 0 else []


def ids_in(lines: list[str]) -> set[str]:
    """The ids of the messages that a broker has acknowledged."""
    return set(re.findall(r"\bid='(\w+)'", "\n".join(lines)))


async def ids_stored(admin: Admin, topic: str) -> set[str]:
    """The ids of all messages of a topic."""
    found: set[str] = set()
    for queue in (await admin.route(topic)).readable:
        offset, end = 0, await admin.max_offset(queue)
        while offset < end:
            pulled = await admin.pull(queue, offset, 32)
            found.update(message.id for message in pulled.messages)
            offset = pulled.next_offset
    return found


async def send_texts(names: str) -> set[str]:
    """Send what the last three programs are to read; returns the ids."""
    async with Producer("texts", names) as producer:
        texts = [
            Message(topic="TOPIC_TEST", tags="TAG_TEST", body=f"text {number}".encode())
            for number in range(TEXTS)
        ]
        return {(await producer.send(text)).id for text in texts}


async def main() -> int:
    """Run the tour; the exit code is 0 only if no message is missing."""
    tour = Tour()
    with tempfile.TemporaryDirectory(prefix="txmq-tour-") as data:
        # The check comes so soon that the tour does not wait for it.
        wanted = {"store.flush": "sync", "filter.sql": True, "transaction.timeout": "1s"}
        settings = settings_for_test(data, wanted)
        async with Broker(settings) as broker:
            console.print(f"a broker at {broker.address}, its name server at {broker.names}\n")
            await tour.visit("messages acknowledged, on the disk by then", PRODUCERS, broker.names)
            tour.acknowledged |= await send_texts(broker.names)
            await tour.visit("messages consumed", CONSUMERS, broker.names)
        async with Broker(settings) as broker:
            await tour.look_again(broker.names)
    for program in tour.missing:
        console.print(f"[bold red]{program}[/bold red]")
    if not tour.missing:
        kept = len(tour.acknowledged)
        console.print(f"[bold green]{kept} acknowledged, and none is missing[/bold green]")
    return 1 if tour.missing else 0


if __name__ == "__main__":
    # A shell that starts this with `&` makes it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(asyncio.run(main()))
