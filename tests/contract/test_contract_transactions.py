"""Messages sent in transactions: seen once if committed, never if rolled back, asked about if
neither, and answered for by whoever of the group is there.
"""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.contract.contract_cluster import SOON
from txmq import SQLResource, TransactionManager
from txmq.client.client import Client
from txmq.errors import RollBack
from txmq.message import Message
from txmq.transaction import (
    LocalTransactionState,
    ManagerSettings,
    TransactionProducer,
    TransactionSettings,
    TransactionState,
)
from txmq.transaction.resources.schema import create_fence

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
SETTINGS = TransactionSettings(timeout=10.0, end_timeout=10.0)

# A stock broker looks for what is to be checked every 30 or 60 s, and may need two rounds.
CHECKED_WITHIN_S = 150.0
SOON_CHECKED = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}


@dataclass
class Bank:
    """A listener that does as it is told."""

    says: LocalTransactionState = COMMIT
    says_of_checks: LocalTransactionState = COMMIT
    checked: list = field(default_factory=list)

    async def execute_local_transaction(self, message, arg):
        return self.says

    async def check_local_transaction(self, message):
        self.checked.append(message)
        return self.says_of_checks


def producer(cluster, bank, group=None, client=None):
    return TransactionProducer(group or cluster.name(), client or cluster.client, bank, SETTINGS)


async def asked_about(bank, cluster):
    """Wait until the cluster has asked; how long that takes is its own affair."""
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(CHECKED_WITHIN_S):
        while not bank.checked:
            await asyncio.sleep(0.05)
    took_s = asyncio.get_running_loop().time() - began
    cluster.remark(f"asked about an open transaction within {10 * (int(took_s) // 10 + 1)} s")


async def bodies(cluster, topic, count):
    return sorted(each.body for each in await cluster.all_stored(topic, count))


async def test_what_is_committed_is_seen_and_what_is_rolled_back_is_not(cluster):
    topic = await cluster.topic()
    bank, outcomes = Bank(), []
    async with producer(cluster, bank) as sending:
        for number in range(10):
            bank.says = ROLLBACK if number % 2 else COMMIT
            message = Message(topic=topic, body=b"%d" % number, tags="T", keys=(f"k-{number}",))
            outcomes.append(await sending.send_in_transaction(message))

    assert [each.state for each in outcomes] == [
        TransactionState.COMMITTED, TransactionState.ROLLED_BACK,
    ] * 5  # fmt: skip
    if not all(each.is_acknowledged for each in outcomes):
        cluster.remark("does not answer to decisions")
    stored = await cluster.all_stored(topic, 5)
    assert {each.id: each.body for each in stored} == {
        each.xid: b"%d" % number for number, each in enumerate(outcomes) if number % 2 == 0
    }
    for each in stored:
        assert each.queue == next(one.queue for one in outcomes if one.xid == each.id)
        assert each.tags == "T"


async def test_what_nobody_decided_is_asked_about(cluster):
    topic = await cluster.topic()
    bank = Bank(UNKNOWN, COMMIT)
    async with producer(cluster, bank) as sending:
        message = Message(topic=topic, body=b"open", tags="T", properties=SOON_CHECKED)
        outcome = await sending.send_in_transaction(message)
        assert outcome.state is TransactionState.UNKNOWN
        await asked_about(bank, cluster)
        assert await bodies(cluster, topic, 1) == [b"open"]

    first = bank.checked[0]
    assert (first.id, first.topic, first.body, first.tags) == (outcome.xid, topic, b"open", "T")


async def test_another_of_the_group_answers_for_one_that_is_gone(cluster):
    topic, group = await cluster.topic(), cluster.name()
    heir = Bank(says_of_checks=COMMIT)
    async with Client(cluster.names, SOON) as client:
        async with producer(cluster, Bank(UNKNOWN), group, client) as leaving:
            message = Message(topic=topic, body=b"inherited", properties=SOON_CHECKED)
            half = await leaving.prepare(message)
        async with producer(cluster, heir, group):
            await asked_about(heir, cluster)
            assert await bodies(cluster, topic, 1) == [b"inherited"]
    assert {each.id for each in heir.checked} == {half.id}


async def test_a_check_that_says_rollback_leaves_nothing(cluster):
    topic = await cluster.topic()
    bank = Bank(UNKNOWN, ROLLBACK)
    async with producer(cluster, bank) as sending:
        await sending.send_in_transaction(
            Message(topic=topic, body=b"never", properties=SOON_CHECKED)
        )
        await asked_about(bank, cluster)
        await sending.send(Message(topic=topic, body=b"after"))
        assert await bodies(cluster, topic, 1) == [b"after"]


# The same by a manager, whose local transactions are those of a database.


@pytest.fixture
def file(tmp_path):
    """A database with a fence."""
    engine = create_engine(f"sqlite:///{tmp_path}/bank.db")
    create_fence(engine, "txmq_fence", None)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE debit (id TEXT PRIMARY KEY)"))
    yield tmp_path / "bank.db"
    engine.dispose()


@asynccontextmanager
async def manager(cluster, file):
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    settings = ManagerSettings(timeout=10.0, end_timeout=10.0)
    async with TransactionManager(
        cluster.name(), cluster.client, SQLResource(engine), settings
    ) as found:
        yield found
    await engine.dispose()


def transferring(manager, topic, then=None):
    """Takes the money, and does one thing more; the body is the id."""

    async def transfer(session, order_id):
        await session.execute(text("INSERT INTO debit VALUES (:id)"), {"id": order_id})
        if then is not None:
            await then(session, order_id)

    return manager.transactional(
        topic=topic, keys=lambda order_id: order_id, body=str.encode, properties=SOON_CHECKED
    )(transfer)


def debits(file):
    engine = create_engine(f"sqlite:///{file}")
    with engine.connect() as connection:
        found = [each for (each,) in connection.execute(text("SELECT id FROM debit ORDER BY id"))]
    engine.dispose()
    return found


async def test_a_database_and_its_messages_are_one_fact(cluster, file):
    topic, outcomes = await cluster.topic(), []

    async def refuse_odd(session, order_id):
        if int(order_id) % 2:
            raise RollBack("too little money")

    async with manager(cluster, file) as tm:
        transfer = transferring(tm, topic, refuse_odd)
        for number in range(6):
            outcomes.append(await transfer(f"{number}"))

    assert [each.state for each in outcomes] == [
        TransactionState.COMMITTED, TransactionState.ROLLED_BACK,
    ] * 3  # fmt: skip
    stored = await cluster.all_stored(topic, 3)
    assert {each.id for each in stored} == {each.xid for each in outcomes[::2]}
    assert sorted(each.body.decode() for each in stored) == debits(file) == ["0", "2", "4"]


async def test_what_a_database_leaves_open_is_found_out_by_asking(cluster, file):
    topic = await cluster.topic()

    async def end(session, order_id):
        # A function that ends the transaction itself: its manager cannot tell any more.
        await (session.commit() if order_id == "kept" else session.rollback())

    async with manager(cluster, file) as tm:
        transfer = transferring(tm, topic, end)
        for order_id in ("kept", "lost"):
            outcome = await transfer(order_id)
            assert outcome.state is TransactionState.UNKNOWN
        async with asyncio.timeout(CHECKED_WITHIN_S):
            while not (tm.tally.checks_committed and tm.tally.checks_rolled_back):
                await asyncio.sleep(0.05)
        assert await bodies(cluster, topic, 1) == [b"kept"]
        assert tm.tally.conflicts == 0
    assert debits(file) == ["kept"]
