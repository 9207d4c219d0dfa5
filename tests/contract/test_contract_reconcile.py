"""A reconciliation reads transactions, failures and offsets of any cluster over the wire."""

import asyncio

from tests.contract.contract_cluster import messages
from tests.contract.test_contract_transactions import COMMIT, ROLLBACK, UNKNOWN, Bank, producer
from tests.reconcile.log_stage import Taken, order, rules_of
from txmq.client.settings import StartFrom
from txmq.client.values import PullOutcome
from txmq.message import Message
from txmq.protocol.topics import OP_TOPIC
from txmq.reconcile.rules import Flow, LogRules


async def taken(cluster, topic, group):
    """The rows of one topic."""
    flow = Flow(topic=topic, namespace="icbc", group=group, key="id")
    rules = rules_of("", flow)
    rules = type(rules)(
        rules.name, rules.directory, rules.bank, LogRules(cluster=cluster.names, flow=(flow,))
    )
    return await asyncio.to_thread(Taken, rules)


async def test_a_reconciliation_reads_how_each_transaction_ended(cluster):
    topic, group = await cluster.topic(), await cluster.group()
    bank = Bank(UNKNOWN, UNKNOWN)
    async with producer(cluster, bank) as sending:
        for key, bank.says in [("yes", COMMIT), ("no", ROLLBACK), ("open", UNKNOWN)]:
            await sending.send_in_transaction(Message(topic=topic, body=order(key), keys=(key,)))
        await sending.send(Message(topic=topic, body=b"\xff{", keys=("unreadable",)))
    await cluster.all_stored(topic, 2)
    # A stock broker marks the end of a transaction a few seconds after it.
    found = None

    async def read():
        nonlocal found
        found = await taken(cluster, topic, group)
        return found.states().get("no") == "rolled_back"

    await cluster.until(read, "the mark of the rollback")

    assert found.states() == {
        "yes": "committed",
        "no": "rolled_back",
        "open": "prepared",
        "unreadable": "sent",
    }
    assert found.message("unreadable")["problem"].startswith("its body is not JSON")
    yes = found.message("yes")
    (visible,) = [record for record in await cluster.all_stored(topic, 2) if record.id == yes["id"]]
    assert (yes["queue"] & 0xFFFF, yes["queue_offset"]) == (visible.queue.number, visible.offset)
    if OP_TOPIC not in await cluster.admin.topics():
        cluster.remark("refuses pulls of op messages, which were read through their index")
    if found.log.notes:
        cluster.remark("keeps nobody who decided a transaction")
    else:
        assert yes["decided_by"] == "producer"


async def test_reading_the_queue_index_returns_the_records_of_pulls(cluster):
    """A reconciliation reads op messages this way if the broker refuses pulls of them."""
    queue, admin = await cluster.queue(), cluster.admin
    async with cluster.producer() as sending:
        for part in messages(queue.topic, 40):
            await sending.send(part)

    async def all_indexed():
        return await admin.index_bounds(queue) == (0, 40)

    await cluster.until(all_indexed, "40 messages in the index")
    pulled, indexed = [], []
    for found, read in ((pulled, admin.pull_stored), (indexed, admin.read_index)):
        while len(found) < 40:
            batch = await read(queue, len(found))
            assert batch.outcome is PullOutcome.FOUND
            found += batch.records
            assert batch.next_offset == len(found)

    assert indexed == pulled
    assert len((await admin.read_index(queue, 3, 2)).records) == 2
    assert (await admin.read_index(queue, 40)).outcome is PullOutcome.EMPTY
    beyond = await admin.read_index(queue, 99)
    assert (beyond.outcome, beyond.next_offset) == (PullOutcome.MOVED, 40)


async def test_a_reconciliation_reads_how_each_delivery_ended(cluster):
    topic = await cluster.topic()
    group = await cluster.group()

    def refuse(message):
        if message.tags == "bad":
            raise ValueError("no such account")

    listener = cluster.listener(group, topic, start=StartFrom.FIRST, attempts_max=1)
    async with cluster.producer() as sending:
        results = [
            await sending.send(Message(topic=topic, body=order(key), tags=key, keys=(key,)))
            for key in ("good", "bad")
        ]
        await cluster.require_send_back(results[0])
        listener.handle = lambda message: (listener.take(message), refuse(message))[1]
        async with listener:
            await listener.until_given(results)
            await cluster.until_committed(group, topic)

            async def failed():
                nonlocal found
                found = await taken(cluster, topic, group)
                return any(row["group"] == group for row in found.failures)

            found = None
            await cluster.until(failed, "the failure to be read")

    failure = next(row for row in found.failures if row["group"] == group)
    assert (failure["key"], failure["id"]) == ("icbc/bad", results[1].id)
    assert failure["state"] in ("retrying", "dead")
    offsets = {row["next_offset"] for row in found.offsets}
    assert max(offsets) >= 1
