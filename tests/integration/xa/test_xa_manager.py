"""Functions over two databases through a manager and a real broker: both banks, or none."""

import asyncio
import contextlib
import logging

import psycopg
import pytest
from sqlalchemy import create_engine

from tests.integration.xa.xa_stage import GROUP, MOVED, OPENING, STILL, order_of, said
from tests.running import in_loop, run_by
from tests.servers.databases import conninfo
from txmq import Client, Message, TransactionManager, XAResource, blocking
from txmq.errors import RollBack
from txmq.settings.units import Duration
from txmq.transaction import ManagerSettings, TransactionState
from txmq.transaction.resources.two_phase import gid_of
from txmq_broker.config import BrokerSettings, CheckBackSettings, StoreSettings
from txmq_broker.testing import BrokerThread, embedded

TOPIC = "transfer"
COMMITTED, ROLLED_BACK, NOT_KNOWN = TransactionState
SOON = BrokerSettings(
    store=StoreSettings(flush="async"),
    transaction=CheckBackSettings(timeout=Duration(0.3), check_interval=Duration(0.2)),
)
TRANSFER = Message(topic=TOPIC, keys=("t-1",), body=b"100")


class Refusal(Exception):
    """What a business function raises."""


async def visible(client):
    queues = (await client.admin.route(TOPIC)).readable
    return [
        message.body for queue in queues for message in (await client.admin.pull(queue, 0)).messages
    ]


@contextlib.asynccontextmanager
async def managed(banks, kind="alchemy-async", settings=None, **options):
    """A manager over both banks, and a client that looks at its broker."""
    async with (
        embedded(SOON) as broker,
        Client(broker.names) as client,
        banks.service(kind, **options) as resource,
        TransactionManager(GROUP, broker.names, resource, settings) as tm,
    ):
        yield tm, client


@pytest.mark.parametrize("kind", ["alchemy-async", "psycopg-pool-async", "alchemy"])
@run_by(in_loop)
async def test_both_banks_are_committed_when_the_call_returns(banks, kind):
    async with managed(banks, kind) as (tm, client):
        if kind == "alchemy":

            @tm.transactional(topic=TOPIC)
            def transfer(sessions, amount):
                with contextlib.suppress(StopIteration):
                    order_of(amount)(sessions).send(None)
                return "booked"
        else:

            @tm.transactional(topic=TOPIC)
            async def transfer(sessions, amount):
                await order_of(amount)(sessions)
                return "booked"

        outcome = await transfer(100)
        assert (outcome.state, outcome.is_acknowledged) == (COMMITTED, True)
        assert (outcome.result, outcome.problem) == ("booked", None)
        assert banks.balances == MOVED
        assert await visible(client) == [b"100"]
        assert await client.admin.transactions() == []
    banks.see_nothing_left()


@run_by(in_loop)
async def test_an_exception_rolls_back_both_banks(banks):
    async with managed(banks) as (tm, client):

        @tm.transactional(topic=TOPIC)
        async def transfer(sessions, amount):
            await order_of(amount)(sessions)
            raise Refusal if amount == 1 else RollBack("not today")

        with pytest.raises(Refusal):
            await transfer(1)
        assert (await transfer(2)).state is ROLLED_BACK
        async with asyncio.timeout(8):
            while await client.admin.transactions():
                await asyncio.sleep(0.02)
        assert await visible(client) == []
    assert banks.balances == STILL
    banks.see_nothing_left()


@run_by(in_loop)
async def test_a_block_commits_both_banks(banks):
    async with managed(banks) as (tm, client):
        async with tm.transaction(TRANSFER) as transaction:
            await order_of(100)(transaction.session)
        assert transaction.outcome.state is COMMITTED
        assert banks.balances == MOVED
        assert await visible(client) == [b"100"]
    banks.see_nothing_left()


@run_by(in_loop)
async def test_several_messages_are_visible_with_both_banks(banks):
    async with managed(banks) as (tm, client):
        async with tm.transaction(TRANSFER) as transaction:
            await order_of(100)(transaction.session)
            transaction.add(TRANSFER)
        assert banks.balances == MOVED
        assert await visible(client) == [b"100", b"100"]
    banks.see_nothing_left()


def test_a_blocking_manager_commits_both_banks(banks):
    engines = {name: create_engine(bank.url) for name, bank in banks.banks.items()}
    with (
        BrokerThread(SOON) as broker,
        contextlib.closing(XAResource(engines)) as resource,
        blocking.TransactionManager(GROUP, broker.names, resource) as tm,
    ):
        with tm.transaction(TRANSFER) as transaction, contextlib.suppress(StopIteration):
            order_of(100)(transaction.session).send(None)
        assert transaction.outcome.state is COMMITTED
        assert banks.balances == MOVED
    for engine in engines.values():
        engine.dispose()
    banks.see_nothing_left()


@run_by(in_loop)
async def test_a_serialization_failure_is_retried_under_the_same_transaction_id(banks):
    async with managed(banks) as (tm, client):
        tried = []

        @tm.transactional(topic=TOPIC)
        async def transfer(sessions, amount):
            tried.append(tm.current().xid)
            for session in sessions.values():
                await said(session, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
                await said(session, "SELECT balance FROM account")
            if len(tried) == 1:
                banks["ccb"].order("UPDATE account SET balance = balance + 1")
            await order_of(amount)(sessions)

        outcome = await transfer(100)
        assert (outcome.state, len(tried), set(tried)) == (COMMITTED, 2, {outcome.xid})
        assert len(await visible(client)) == 1
    assert banks.balances == {"icbc": OPENING - 100, "ccb": OPENING + 101}
    banks.see_nothing_left()


def test_opening_a_manager_recovers_transactions_that_others_left(banks):
    banks["icbc"].order("INSERT INTO account VALUES ('B', 0)")
    asyncio.run(opened_after_a_crash(banks))
    rows = dict(banks["icbc"].order("SELECT name, balance FROM account"))
    assert rows == {"A": OPENING + 100, "B": 0}


async def opened_after_a_crash(banks):
    """One transaction decided each way, and a foreign one."""
    async with embedded(SOON) as broker, banks.service() as dead:
        for xid, name, amount in (("a-1", "A", 100), ("a-2", "B", 7)):
            local = dead.local(xid, GROUP, 1 << 60)
            async with local as sessions:
                change = f"UPDATE account SET balance = balance + {amount} WHERE name = '{name}'"
                await said(sessions["icbc"], change)
        banks["icbc"].order("UPDATE txmq_fence SET outcome = 2 WHERE xid = 'a-2'")
        foreign = gid_of("a-1", "ccb", "another-fence")
        with psycopg.connect(conninfo(banks["ccb"].url)) as connection:
            connection.execute(f"PREPARE TRANSACTION '{foreign}'")
        async with (
            banks.service() as resource,
            TransactionManager(GROUP, broker.names, resource),
            asyncio.timeout(8),
        ):
            while banks.prepared != [foreign]:
                await asyncio.sleep(0.02)


@run_by(in_loop)
async def test_the_steps_are_logged_in_order(banks, caplog):
    caplog.set_level(logging.DEBUG, logger="txmq.transaction.story")
    async with managed(banks, settings=ManagerSettings()) as (tm, _):

        @tm.transactional(topic=TOPIC)
        async def transfer(sessions, amount):
            await order_of(amount)(sessions)

        await transfer(100)
    lines = [entry.getMessage().split(maxsplit=2)[2] for entry in caplog.records]
    known = [entry for entry in lines if "step" in entry]
    assert [entry[5] for entry in known] == [*"123456789"]
    within = lines[lines.index(known[4]) + 1 : lines.index(known[5])]
    assert within == [
        "branch icbc is prepared",
        "branch ccb is prepared",
        "all branches are prepared, and the decision is claimed",
        "the decision is claimed: commit",
    ]
    after = lines[lines.index(known[8]) + 1 :]
    assert sorted(after) == ["branch ccb is committed", "branch icbc is committed"]
