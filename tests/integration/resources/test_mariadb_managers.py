"""Managers on MariaDB, before a real broker: both sides commit or roll back, also in deadlocks."""

import asyncio
import contextlib
import threading

import pytest
from sqlalchemy import text

from tests.integration.resources.resource_stage import (
    GROUP,
    ON_MARIADB,
    Settings,
    insert,
    said,
    source_of,
)
from txmq import Client, SQLResource, TransactionManager
from txmq.errors import RollBack, TopicNotFound
from txmq.transaction.state import TransactionState
from txmq_broker.config import BrokerSettings, StoreSettings
from txmq_broker.testing import embedded

TOPIC = "transfer"
TAKE = "UPDATE orders SET amount = amount + 1 WHERE xid = :row"


@pytest.fixture(params=ON_MARIADB)
def bank(request, bank_of_kind):
    """A MariaDB database with a fence, used through each driver."""
    return bank_of_kind(request.param)


class Transfers:
    """Managers of one group, on a broker of their own."""

    def __init__(self, bank, names, client):
        self.bank = bank
        self.names = names
        self.client = client

    async def run(self, source, work):
        """Decorate a blocking or async function with a manager, and call it for some keys."""
        with contextlib.closing(SQLResource(source)) as resource:
            async with TransactionManager(GROUP, self.names, resource) as tm:
                decorated = tm.transactional(topic=TOPIC, keys=lambda xid: xid, body=str.encode)
                return await work(tm, decorated)

    async def visible(self):
        messages = []
        with contextlib.suppress(TopicNotFound):
            for queue in (await self.client.admin.route(TOPIC)).readable:
                messages += (await self.client.admin.pull(queue, 0)).messages
        return sorted(message.body.decode() for message in messages)


async def transferring(bank, work):
    """Play a scene of managers in front of a real broker."""
    async with (
        embedded(BrokerSettings(store=StoreSettings(flush="async"))) as broker,
        Client(broker.names) as client,
        source_of(bank.kind, bank.url, Settings()) as source,
    ):
        transfers = Transfers(bank, broker.names, client)
        found = await transfers.run(source, work)
        return found, await transfers.visible(), await client.admin.transactions()


def test_a_manager_commits_and_rolls_back_rows_and_message(bank):
    async def work(tm, decorated):
        if bank.kind == "mysql":

            def function(session, xid):
                session.execute(text(insert(xid)))
                if xid == "bad":
                    raise RollBack("no")
        else:

            async def function(session, xid):
                await said(session, insert(xid))
                if xid == "bad":
                    raise RollBack("no")

        call = decorated(function)
        return [(await call(key)).state for key in ("good", "bad")]

    states, visible, still_open = asyncio.run(transferring(bank, work))

    assert states == [TransactionState.COMMITTED, TransactionState.ROLLED_BACK]
    assert bank.orders == {"good"}
    assert (visible, list(still_open)) == (["good"], [])


def test_a_deadlock_is_retried_under_the_same_transaction_id(bank):
    bank.order("INSERT INTO orders VALUES ('a', 1), ('b', 1)")
    bank.order("ALTER TABLE orders ADD PRIMARY KEY (xid)")
    ways = {"one": "ab", "two": "ba"}
    tries = []

    async def work(tm, decorated):
        met = threading.Barrier(2, timeout=30)
        have = {row: asyncio.Event() for row in "ab"}

        def plain(session, key):
            tries.append((key, tm.current().xid))
            is_first = tries.count(tries[-1]) == 1
            for row in ways[key]:
                session.execute(text(TAKE), {"row": row})
                if is_first and row == ways[key][0]:
                    met.wait()

        async def awaited(session, key):
            tries.append((key, tm.current().xid))
            mine, theirs = ways[key]
            await session.execute(text(TAKE), {"row": mine})
            have[mine].set()
            await have[theirs].wait()
            await session.execute(text(TAKE), {"row": theirs})

        call = decorated(plain if bank.kind == "mysql" else awaited)
        return await asyncio.gather(call("one"), call("two"))

    outcomes, visible, still_open = asyncio.run(transferring(bank, work))

    assert {outcome.state for outcome in outcomes} == {TransactionState.COMMITTED}
    assert len(tries) == 3, tries  # One of them twice, under the same id.
    assert {xid for _, xid in tries} == {outcome.xid for outcome in outcomes}
    assert bank.order("SELECT xid, amount FROM orders ORDER BY xid") == [("a", 3), ("b", 3)]
    assert set(bank.fence) == {outcome.xid for outcome in outcomes}
    assert (visible, list(still_open)) == (["one", "two"], [])
