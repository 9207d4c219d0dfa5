"""Messages sent in transactions: seen once if committed, never if rolled back, asked about if
neither, and answered for by whoever of the group is there.
"""

import asyncio
from dataclasses import dataclass, field

from contract_cluster import SOON

from txmq.client.client import Client
from txmq.message import Message
from txmq.transaction import (
    LocalTransactionState,
    TransactionProducer,
    TransactionSettings,
    TransactionState,
)

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
SETTINGS = TransactionSettings(timeout_s=10.0, end_timeout_s=10.0)

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
