"""The seller receives the payment of each order, once."""

import json

import death  # It listens to commits.
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from txmq import ConsumerSettings, ReceivedMessage, StartFrom
from txmq.blocking import PushConsumer
from txmq.idempotent import UniqueKeyTable, idempotent

BOOK = text(
    "INSERT INTO entry (order_id, account, kind, amount) VALUES (:id, 'seller', 'credit', :amount)"
)
RECEIVE = text("UPDATE account SET balance = balance + :amount WHERE name = 'seller'")

engine = create_engine("postgresql+psycopg:///seller")
consumer = PushConsumer("seller", "127.0.0.1:9876", ConsumerSettings(start=StartFrom.FIRST))


@consumer.on("Payments")
@idempotent(UniqueKeyTable(engine), key=lambda message: message.key, scope="seller")
def receive(session: Session, message: ReceivedMessage) -> None:
    """Credit the payment; the key of the order commits with it."""
    order = json.loads(message.body)
    for statement in (BOOK, RECEIVE):
        session.execute(statement, {"id": order["id"], "amount": order["amount"]})


with consumer:
    print("receiving", flush=True)
    consumer.wait()
