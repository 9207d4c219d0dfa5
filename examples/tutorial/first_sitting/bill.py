"""Write a bill for each order, once, however often its message is delivered."""

import os
import signal
from pathlib import Path

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from txmq import ConsumerSettings, ReceivedMessage, StartFrom
from txmq.blocking import PushConsumer
from txmq.idempotent import UniqueKeyTable, create_done, idempotent

engine = create_engine("sqlite:///bills.db")
create_done(engine)  # The table of the keys whose work is done.
with engine.begin() as database:
    database.execute(text("CREATE TABLE IF NOT EXISTS bill (order_id TEXT)"))
consumer = PushConsumer("billing", "127.0.0.1:9876", ConsumerSettings(start=StartFrom.FIRST))


@idempotent(UniqueKeyTable(engine), key=lambda message: message.key, scope="billing")
def bill(session: Session, message: ReceivedMessage) -> None:
    """Write the bill; it commits together with the key of the order."""
    session.execute(text("INSERT INTO bill VALUES (:order_id)"), {"order_id": message.key})


@consumer.on("Orders")
def handle(message: ReceivedMessage) -> None:
    """Take a delivery; the broker learns that it is done when this returns."""
    with Path("delivered.txt").open("a") as delivered:
        print(message.key, file=delivered)
    bill(message)
    if message.key == os.environ.get("DIE_AT"):
        # The worst moment: the bill is written, and the broker does not know it yet.
        os.kill(os.getpid(), signal.SIGKILL)


with consumer:
    print("billing", flush=True)
    consumer.wait()
