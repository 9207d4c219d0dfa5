"""One service of a chain: it handles a message and publishes the next one, in one commit.

Its arguments are its name, its database, the name servers, and perhaps an order's key. With a key
it is broken: it publishes in a commit of its own, after that of the key, and dies between the two
for this order.
"""

import asyncio
import os
import signal
import sys

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from txmq import (
    ConsumerSettings,
    Message,
    Outbox,
    PushConsumer,
    ReceivedMessage,
    Relay,
    RelaySettings,
    StartFrom,
)  # fmt: skip
from txmq.idempotent import UniqueKeyTable, idempotent

HEARS = {"order": "cart", "stock": "order", "bill": "reserved"}
"""The topic of each service."""
SAYS = {"order": "order", "stock": "reserved", "bill": "billed"}
TAKE = text("UPDATE item SET pieces = pieces - :n WHERE pieces >= :n RETURNING 1")
# Nothing but the guard keeps an order from being entered twice.
ENTER = text("INSERT INTO entry VALUES (:key, :n, :is_accepted)")
SOON = {"rebalance_interval": 0.5, "commit_interval": 0.2}


def by_key(message: ReceivedMessage) -> str:
    """The key of the order."""
    return message.key


def work(name: str, session: Session, message: ReceivedMessage) -> Message | None:
    """What each service does with an order; the stock may refuse it."""
    pieces = int(message.body)
    taken = name != "stock" or session.execute(TAKE, {"n": pieces}).first() is not None
    session.execute(ENTER, {"key": message.key, "n": pieces, "is_accepted": taken})
    body = message.key.encode() if name == "bill" else message.body
    return Message(topic=SAYS[name], keys=message.keys, body=body) if taken else None


async def serve(name: str, url: str, names: str, doomed: str) -> None:
    """Consume and relay until killed."""
    engine, outbox = create_engine(url), Outbox()
    guard = UniqueKeyTable(engine)
    settings = ConsumerSettings(start=StartFrom.FIRST, concurrency=4, **SOON)
    consumer = PushConsumer(name, names, settings)
    relay = Relay(engine, names, RelaySettings(lease=1.0, poll_interval=0.2), outbox=outbox)

    @idempotent(guard, key=by_key)
    @outbox.publishes(lane=by_key)
    def handle(session: Session, message: ReceivedMessage) -> Message | None:
        return work(name, session, message)

    def handle_in_two_commits(message: ReceivedMessage) -> None:
        made: list[Message] = []

        @idempotent(guard, key=by_key)
        def first(session: Session, message: ReceivedMessage) -> None:
            if (found := work(name, session, message)) is not None:
                made.append(found)

        first(message)
        if made and message.key == doomed:
            os.kill(os.getpid(), signal.SIGKILL)
        with engine.begin() as connection:
            outbox.add_many(connection, made)

    consumer.on(HEARS[name])(handle_in_two_commits if doomed else handle)
    async with consumer, relay:
        print("ready", flush=True)
        await consumer.wait()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:5]))
