"""Writes what a version leaves behind: a broker's directory, a database with txmq's tables, and the
results of a reconciliation.

python -m tests.compatibility.writer

A release keeps the archive in `released/`, and every later version must open it.
"""

import asyncio
import json
import tarfile
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import create_engine, text

import txmq
from tests.reconcile.whole_stage import WEDNESDAY, Stage
from tests.servers import spark_session
from txmq import (
    Admin,
    ConsumerSettings,
    LocalTransactionState,
    Message,
    Outbox,
    PullConsumer,
    SQLResource,
    StartFrom,
    TransactionManager,
    TransactionProducer,
)
from txmq.client import Session
from txmq.errors import RollBack
from txmq.idempotent import UniqueKeyTable, idempotent
from txmq.idempotent.unique_key import create_done
from txmq.outbox.table import create_outbox
from txmq.protocol.properties import FENCE
from txmq.transaction.resources.schema import create_fence
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings

RELEASED = Path(__file__).parent / "released"
BANK = "bank"
"""The producer group whose transactions the database decides."""


class LostAnswers:
    """Local transactions whose decision never reaches the broker."""

    def execute_local_transaction(self, message, arg):
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message):
        return LocalTransactionState.UNKNOWN


async def write_messages(names, admin):
    """Messages of all kinds, a group that has read some of them, and settings that are not ours."""
    await admin.create_topic("Orders", 2, order=True)
    await admin.create_group("billing", retries=3)
    async with txmq.Producer("shop", names) as producer:
        for number in range(12):
            message = Message(
                topic="Orders",
                body=f"order {number}".encode() * (1 if number else 1000),
                keys=(f"order-{number}",),
                tags="AB"[number % 2],
                properties={"region": "Süd"},
            )
            await producer.send_ordered(message, number)
        await producer.send_batch([Message(topic="Orders", body=b"tea") for _ in range(3)])
        await producer.send(Message(topic="Later", body=b"delayed", deliver_after=10))
    consumer = PullConsumer("billing", names, ConsumerSettings(start=StartFrom.FIRST))
    consumer.subscribe("Orders")
    async with consumer:
        for queue in await consumer.queues_of("Orders"):
            await admin.commit_offset("billing", queue, 2 + queue.number)


async def write_transactions(names, engine):
    """A committed and a rolled-back transaction, and two whose outcome the broker does not know."""
    resource = SQLResource(engine)
    async with TransactionManager(BANK, names, resource) as manager:

        @manager.transactional(topic="Transfers", keys=lambda key: key)
        def transfer(session, key):
            session.execute(text("INSERT INTO booking VALUES (:key)"), {"key": key})
            if key == "rolled-back":
                raise RollBack("too little money")

        xids = {key: (await transfer(key)).xid for key in ("committed", "rolled-back")}
    async with TransactionProducer(BANK, names, LostAnswers()) as producer:
        for key in ("end-lost", "killed"):
            message = Message(
                topic="Transfers",
                body=b"100",
                keys=(key,),
                properties={FENCE: resource.identity},  # As a manager sends it.
            )
            half = await producer.prepare(message)
            xids[key] = half.id
            if key == "end-lost":
                with resource.local(half.id, BANK, int(time.time() * 1000)):
                    pass
    return xids


async def seen_by(admin):
    """What a broker serves of it: messages, offsets of the group, settings."""
    messages = []
    for topic in ("Orders", "Transfers"):
        for status in await admin.topic_status(topic):
            pulled = await admin.pull(status.queue, 0)
            messages += [
                {
                    "topic": topic,
                    "queue": message.queue.number,
                    "offset": message.offset,
                    "id": message.id,
                    "body": message.body.decode(),
                    "keys": list(message.keys),
                    "tags": message.tags,
                    "region": message.properties.get("region"),
                    "stored_ms": message.stored_ms,
                }
                for message in pulled.messages
            ]
    (config,) = (await admin.topic_config("Orders")).values()
    progress = await admin.group_progress("billing", "Orders")
    return {
        "messages": messages,
        "offsets": {str(queue.queue.number): queue.group_offset for queue in progress},
        "order": [config.order, config.read_queue_nums],
        "retries": (await admin.groups())["billing"].retry_max_times,
        "open": sorted(found.keys[0] for found in await admin.transactions()),
    }


def write_tables(engine):
    """One piece of work that is done, and two messages that no relay has sent."""
    create_fence(engine)
    create_done(engine)
    create_outbox(engine, "txmq_outbox", None)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE booking (id TEXT PRIMARY KEY)"))
        for body in (b"first", b"second"):
            Outbox().add(connection, Message(topic="Outbox", body=body), lane="lane")

    @idempotent(UniqueKeyTable(engine), key=lambda key: key, scope="billing")
    def bill(session, key):
        session.execute(text("INSERT INTO booking VALUES (:key)"), {"key": key})

    bill("billed")


async def write_log(folder, engine):
    """Write a broker's directory; returns the facts that must stay."""
    free = "127.0.0.1:0"
    data = str(folder / "data")
    async with (
        Broker(BrokerSettings(data=data, listen=free, names_listen=free)) as broker,
        Session(broker.names) as session,
    ):
        admin = Admin(session)
        await write_messages(broker.names, admin)
        xids = await write_transactions(broker.names, engine)
        waiting = await admin.topic_status("Later")
        assert all(status.max_offset == 0 for status in waiting), "it must wait in the archive"
        return {"xids": xids, **await seen_by(admin)}


def write_results(folder):
    """A reconciled date, and after it the books and the log of the next one."""
    night = Stage.set_up(folder)
    night.first_day()
    spark = spark_session.start()
    done = night.run(spark, WEDNESDAY)
    spark.stop()
    night.second_day()
    return done.result_digest


def archive(folder, version):
    """Pack the folder, in the same order each time."""
    RELEASED.mkdir(exist_ok=True)
    path = RELEASED / f"{version}.tar.xz"
    with tarfile.open(path, "w:xz") as packed:
        for file in sorted(folder.iterdir()):
            packed.add(file, file.name)
    return path


def main():
    """Write the archive of this version."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        engine = create_engine(f"sqlite:///{folder / 'bank.db'}")
        write_tables(engine)
        facts = asyncio.run(write_log(folder, engine))
        engine.dispose()
        facts["result_digest"] = write_results(folder / "night")
        (folder / "facts.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False))
        path = archive(folder, txmq.__version__)
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
