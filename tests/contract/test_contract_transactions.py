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
    return sorted(message.body for message in await cluster.all_stored(topic, count))


async def test_committed_messages_are_visible_and_rolled_back_ones_are_not(cluster):
    topic = await cluster.topic()
    bank, outcomes = Bank(), []
    async with producer(cluster, bank) as sending:
        for number in range(10):
            bank.says = ROLLBACK if number % 2 else COMMIT
            message = Message(topic=topic, body=b"%d" % number, tags="T", keys=(f"k-{number}",))
            outcomes.append(await sending.send_in_transaction(message))

    assert [item.state for item in outcomes] == [
        TransactionState.COMMITTED, TransactionState.ROLLED_BACK,
    ] * 5  # fmt: skip
    if not all(item.is_acknowledged for item in outcomes):
        cluster.remark("does not answer to decisions")
    stored = await cluster.all_stored(topic, 5)
    assert {item.id: item.body for item in stored} == {
        item.xid: b"%d" % number for number, item in enumerate(outcomes) if number % 2 == 0
    }
    for item in stored:
        assert item.queue == next(outcome.queue for outcome in outcomes if outcome.xid == item.id)
        assert item.tags == "T"


async def test_several_messages_of_a_transaction_share_its_decision(cluster):
    topics, bank = [await cluster.topic(), await cluster.topic()], Bank()
    async with producer(cluster, bank) as sending:
        for says in (ROLLBACK, COMMIT):
            bank.says = says
            several = [Message(topic=topic, body=says.name.encode()) for topic in topics]
            outcome = await sending.send_in_transaction(several)

    for topic, sent in zip(topics, outcome.sent, strict=True):
        (stored,) = await cluster.all_stored(topic, 1)
        assert (stored.body, stored.id, stored.xid) == (b"COMMIT", sent.id, outcome.xid)


async def test_the_broker_checks_an_undecided_transaction(cluster):
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


async def test_another_producer_of_the_group_answers_checks_of_one_that_left(cluster):
    topic, group = await cluster.topic(), cluster.name()
    heir = Bank(says_of_checks=COMMIT)
    async with Client(cluster.names, SOON) as client:
        async with producer(cluster, Bank(UNKNOWN), group, client) as leaving:
            message = Message(topic=topic, body=b"inherited", properties=SOON_CHECKED)
            half = await leaving.prepare(message)
        async with producer(cluster, heir, group):
            await asked_about(heir, cluster)
            assert await bodies(cluster, topic, 1) == [b"inherited"]
    assert {check.id for check in heir.checked} == {half.id}


async def test_a_check_answered_with_rollback_leaves_no_message(cluster):
    topic = await cluster.topic()
    bank = Bank(UNKNOWN, ROLLBACK)
    async with producer(cluster, bank) as sending:
        await sending.send_in_transaction(
            Message(topic=topic, body=b"never", properties=SOON_CHECKED)
        )
        await asked_about(bank, cluster)
        await sending.send(Message(topic=topic, body=b"after"))
        assert await bodies(cluster, topic, 1) == [b"after"]


# The same with a transaction manager and its database transactions.


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
    """Debits the account and calls one more function; the body is the id."""

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
        found = [
            order_id for (order_id,) in connection.execute(text("SELECT id FROM debit ORDER BY id"))
        ]
    engine.dispose()
    return found


async def test_exactly_the_committed_database_rows_have_messages(cluster, file):
    topic, outcomes = await cluster.topic(), []

    async def refuse_odd(session, order_id):
        if int(order_id) % 2:
            raise RollBack("too little money")

    async with manager(cluster, file) as tm:
        transfer = transferring(tm, topic, refuse_odd)
        for number in range(6):
            outcomes.append(await transfer(f"{number}"))

    assert [item.state for item in outcomes] == [
        TransactionState.COMMITTED, TransactionState.ROLLED_BACK,
    ] * 3  # fmt: skip
    stored = await cluster.all_stored(topic, 3)
    assert {item.id for item in stored} == {item.xid for item in outcomes[::2]}
    assert sorted(item.body.decode() for item in stored) == debits(file) == ["0", "2", "4"]


async def test_an_unknown_database_outcome_is_settled_by_a_check(cluster, file):
    topic = await cluster.topic()

    async def end(session, order_id):
        # The function ends the transaction itself, so its manager cannot tell the outcome.
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
