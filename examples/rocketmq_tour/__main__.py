"""Start a broker, send, consume, stop it, start it again: nothing that was acknowledged is gone."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from broker.app import Broker
from broker.config import BrokerSettings
from txmq import Message, ReceivedMessage
from txmq.client import Admin, SendReceipt, Session

TOPIC = "Orders"
GROUP = "billing"
ORDERS = 12
SHOWN = 5

console = Console()


@dataclass
class Tour:
    """What was acknowledged, and what came back."""

    data: str
    sent: list[SendReceipt] = field(default_factory=list)
    received: list[ReceivedMessage] = field(default_factory=list)

    def broker(self) -> Broker:
        """The broker of this tour, on free ports, in its directory."""
        return Broker(
            BrokerSettings(data=self.data, listen="127.0.0.1:0", names_listen="127.0.0.1:0")
        )


async def send_orders(admin: Admin, tour: Tour) -> None:
    """Send orders: those of one customer go to one queue, so they stay in order."""
    route = await admin.create_topic(TOPIC, queues=4)
    queues = route.writable
    for number in range(ORDERS):
        customer = number % 3
        order = Message(
            topic=TOPIC,
            body=f"order {number} of customer {customer}".encode(),
            tags="Paid" if number % 2 else "Open",
            keys=(f"order-{number}",),
        )
        tour.sent.append(await admin.send(order, queues[customer]))
    table = Table(title=f"{ORDERS} messages acknowledged, each on the disk by then")
    for title in ("queue", "offset", "id"):
        table.add_column(title)
    for receipt in tour.sent[:SHOWN]:
        table.add_row(str(receipt.queue.number), str(receipt.offset), receipt.id)
    table.add_row("...", "...", "...")
    console.print(table)


async def consume_orders(admin: Admin, tour: Tour) -> None:
    """Read every queue from where the group stands, and say how far it has come."""
    route = await admin.route(TOPIC)
    table = Table(title=f"consumed by the group {GROUP}")
    for title in ("queue", "offset", "tag", "key", "body"):
        table.add_column(title)
    for queue in route.readable:
        offset = await admin.committed_offset(GROUP, queue) or 0
        batch = await admin.pull(queue, offset, group=GROUP)
        for message in batch.messages:
            table.add_row(
                str(queue.number),
                str(message.offset),
                message.tags,
                message.key,
                message.body.decode(),
            )
        tour.received += batch.messages
        await admin.commit_offset(GROUP, queue, batch.next_offset)
    console.print(table)


async def consume_paid_orders(admin: Admin) -> int:
    """Let the broker pick by tag; returns how many it picked."""
    route = await admin.route(TOPIC)
    picked = 0
    for queue in route.readable:
        picked += len((await admin.pull(queue, 0, tags="Paid")).messages)
    console.print(f"with the filter [bold]Paid[/bold]: {picked} of {ORDERS}")
    return picked


async def find_again(admin: Admin) -> bool:
    """Find one order by its key, and say how far the group has come."""
    found = await admin.query(TOPIC, "order-7")
    lag = sum(each.lag for each in await admin.group_progress(GROUP, TOPIC))
    console.print(
        f"by key order-7: {[each.body.decode() for each in found]}; the group's lag: {lag}"
    )
    return len(found) == 1 and lag == 0


async def main() -> int:
    """Take the tour; the exit code is 0 only if every message came back once."""
    with tempfile.TemporaryDirectory(prefix="txmq-tour-") as data:
        tour = Tour(data)
        async with tour.broker() as broker, Session(broker.names) as session:
            console.print(f"a broker at {broker.address}, its name server at {broker.names}")
            admin = Admin(session)
            await send_orders(admin, tour)
            await consume_orders(admin, tour)
            picked = await consume_paid_orders(admin)
        console.print("the broker stopped; the same directory again:")
        async with tour.broker() as broker, Session(broker.names) as session:
            is_found = await find_again(Admin(session))
    sent = sorted(receipt.id for receipt in tour.sent)
    received = sorted(message.id for message in tour.received)
    is_whole = sent == received and picked == ORDERS // 2 and is_found
    verdict = (
        f"[bold green]{len(received)} acknowledged, {len(received)} received once[/bold green]"
        if is_whole
        else "[bold red]something is missing[/bold red]"
    )
    console.print(verdict)
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
