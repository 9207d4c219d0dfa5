"""A service that leaves transactions open in every state and works on until it is killed.

Its arguments are the name servers, the database and the number of transactions to leave open. One
third of them has committed, one third never began, and the last third is still running. SQLite
allows one writer at a time, so there the last third never began either. The service then prints a
line and keeps moving orders.
"""

import asyncio
import itertools
import sys
from contextlib import ExitStack
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from txmq import Message, SQLResource, TransactionManager, TransactionProducer
from txmq.databases import postgres  # noqa: F401 - is to be there when we are killed
from txmq.protocol import properties
from txmq.runtime.clock import SystemClock
from txmq.transaction import LocalTransactionState

GROUP = "icbc"
TOPIC = "Orders"
LANES = 8


class Silent:
    """A listener that is never asked."""

    def execute_local_transaction(self, message: object, arg: Any) -> LocalTransactionState:
        raise AssertionError

    def check_local_transaction(self, message: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


def order(session: Session, name: str) -> None:
    """What a local transaction does."""
    session.execute(text("INSERT INTO orders VALUES (:name)"), {"name": name})


async def leave_open(
    names: str, resource: SQLResource[Session], count: int, under_way: ExitStack | None
) -> None:
    """Half messages, with local transactions in all states."""
    async with TransactionProducer(GROUP, names, Silent()) as producer:
        halves = [
            await producer.prepare(
                Message(
                    topic=TOPIC,
                    body=f"left-{number}".encode(),
                    properties={
                        properties.FENCE: resource.identity,
                        # Until then no check comes to this service, which could answer it.
                        properties.CHECK_IMMUNITY: "3",
                    },
                )
            )
            for number in range(count)
        ]
    for number, half in reversed(list(enumerate(halves))):
        local = resource.local(half.id, GROUP, SystemClock().wall_ms())
        if number % 3 == 0:
            with local as session:
                order(session, half.body.decode())
        elif number % 3 == 1 and under_way is not None:
            order(under_way.enter_context(local), half.body.decode())


async def work(names: str, url: str, count: int) -> None:
    """Leave some open, and go on until killed."""
    engine = create_engine(url, pool_size=count + LANES + 5)
    resource = SQLResource(engine)
    await resource.verify()
    with ExitStack() as under_way:
        is_one_writer = engine.dialect.name == "sqlite"
        await leave_open(names, resource, count, None if is_one_writer else under_way)
        tm = TransactionManager(GROUP, names, resource)

        @tm.transactional(topic=TOPIC, body=lambda name: name.encode())
        def move(session: Session, name: str) -> None:
            order(session, name)

        numbers = itertools.count()

        async def lane() -> None:
            while True:
                await move(f"moved-{next(numbers)}")

        async with tm:
            lanes = [asyncio.ensure_future(lane()) for _ in range(LANES)]
            print("ready", flush=True)
            await asyncio.wait(lanes)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3])))
