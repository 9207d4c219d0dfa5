"""A cluster read over the wire tells what the directories of its brokers tell."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.reconcile.log_stage import Taken, order, rules_of
from txmq import (
    Client,
    ConsumerSettings,
    LocalTransactionState,
    Message,
    PushConsumer,
    StartFrom,
    TransactionListener,
    TransactionProducer,
)
from txmq.config import Duration
from txmq.errors import ReconcileRefused
from txmq.message import Queue
from txmq.reconcile.rules import DayWindow, LogRules
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings, CheckBackSettings
from txmq_broker.testing import settings_for_test

COMMIT, ROLLBACK, UNKNOWN = (
    LocalTransactionState.COMMIT,
    LocalTransactionState.ROLLBACK,
    LocalTransactionState.UNKNOWN,
)
SOON = CheckBackSettings(timeout=Duration(0.2), check_interval=Duration(0.1), check_max=1)


class Payer(TransactionListener):
    """The tag says what becomes of a message."""

    async def execute_local_transaction(self, message, arg):
        return {"yes": COMMIT, "no": ROLLBACK}.get(message.tags, UNKNOWN)

    async def check_local_transaction(self, message):
        return UNKNOWN


@asynccontextmanager
async def two_brokers(directory, transaction=CheckBackSettings()):
    """A cluster of two, with their directories `a` and `b`."""
    base = BrokerSettings(name="broker-a", transaction=transaction)
    async with Broker(settings_for_test(str(directory / "a"), base)) as first:
        other = replace(base, name="broker-b", names=first.names)
        async with (
            Broker(settings_for_test(str(directory / "b"), other)) as second,
            Client(first.names) as client,
        ):
            yield Cluster(client, (first, second), directory)


class Cluster:
    def __init__(self, client, brokers, directory):
        self.client, self.brokers, self.directory = client, brokers, directory
        self.admin, self.names = client.admin, client.session.names[0]
        self._count = 0

    async def transfer(self, producer, key, tags="", broker="broker-a", **more):
        message = Message(topic="Transfers", body=order(key, **more), tags=tags, keys=(key,))
        return await producer.send_in_transaction(message)

    def rules(self, flows=(), **log):
        rules = rules_of("", *flows)
        return replace(rules, log=replace(rules.log, directory="", **log))

    async def taken(self, flows=(), **how):
        """What is read over the wire."""
        self._count += 1
        rules = self.rules(flows, cluster=self.names)
        out = self.directory / f"wire-{self._count}" / "draft"
        return await asyncio.to_thread(Taken, rules, out, **how)

    def taken_from_files(self, flows=(), **how):
        """What is read from the directories; their offsets are saved when the brokers stop."""
        rules = self.rules(flows, directories=tuple(str(self.directory / name) for name in "ab"))
        return Taken(rules, self.directory / "files", **how)


def rows(found):
    """Rows without the numbers of their brokers, in any order."""
    bits = {"position": 48, "queue": 16}
    return sorted(
        (
            {name: row[name] % (1 << bits[name]) if name in bits else row[name] for name in row}
            for row in found
        ),
        key=str,
    )


def test_the_wire_tells_what_the_directories_tell(tmp_path):
    async def scenario():
        async with two_brokers(tmp_path, SOON) as cluster:
            await cluster.admin.create_topic("Transfers", 2)
            consumer = PushConsumer(
                "ccb",
                cluster.client,
                ConsumerSettings(start=StartFrom.FIRST, attempts_max=1, commit_s=0.1),
            )
            handled = []

            @consumer.on("Transfers")
            async def credit(message):
                handled.append(message)
                if message.tags == "bad":
                    raise ValueError("no such account")

            async with TransactionProducer("payers", cluster.client, Payer()) as producer:
                for number in range(20):
                    await cluster.transfer(producer, f"{number}", ("yes", "no")[number % 2])
                await cluster.transfer(producer, "open", "never")
                for number in range(8):
                    body = b"\xff{" if number == 3 else order(f"p{number}")
                    tags = "bad" if number == 5 else ""
                    await producer.send(
                        Message(topic="Transfers", body=body, tags=tags, keys=(f"p{number}",))
                    )
                await producer.send(
                    Message(topic="Transfers", body=order("later"), deliver_after_s=3600)
                )
                async with consumer:
                    while len(handled) < 18:
                        await asyncio.sleep(0.01)
                    while len(await cluster.admin.transactions(state="parked")) < 1:
                        await asyncio.sleep(0.01)
                parked = await cluster.transfer(producer, "forced", "never")
                await cluster.admin.decide_transaction(
                    parked.xid, "rollback", operator="ann", reason="the customer\ncalled"
                )
                return cluster, await cluster.taken()

    cluster, wire = asyncio.run(scenario())
    files = cluster.taken_from_files()

    assert len(wire.messages) == 31
    assert rows(wire.messages) == rows(files.messages)
    assert rows(wire.failures) == rows(files.failures)
    assert rows(wire.offsets) == rows(row for row in files.offsets if row["topic"] == "Transfers")
