"""Check-backs of one member against commits of others, on a real PostgreSQL and a real broker.

A process is not asked about transactions that it still runs itself. So the senders leave the group
half-way, as in every deployment: they finish what they have begun, while the broker asks the member
that stays. TXMQ_SOAK races 10,000 transactions, or as many as it says.
"""

import asyncio
import random
from collections import Counter
from contextlib import asynccontextmanager
from itertools import islice

import psycopg_pool

from tests.integration.transaction.crash_bank import PAYERS, ROLLED_BACK, Order
from tests.integration.transaction.crash_stage import another, on_scene, soak
from tests.running import in_loop, run_by
from tests.servers.databases import conninfo
from txmq import Client, SQLResource, TransactionManager
from txmq.errors import RolledBackByCheck
from txmq.transaction import ManagerSettings

AT_ONCE = 40
CONNECTIONS = 24
BEFORE_S, INSIDE_S = 0.4, 0.06
"""Some rounds of checks, and some of their waits for a lock."""
WAIT_S = 0.02


class SlowPool:
    """A pool that delays its callers, and counts them."""

    def __init__(self, pool, chance):
        self._pool = pool
        self._chance = chance
        self._came = 0
        self.all_came = asyncio.Event()

    def expect(self, number):
        self._came = -number
        self.all_came.clear()

    async def getconn(self):
        self._came += 1
        if not self._came:
            self.all_came.set()
        await self.all_came.wait()
        await pause(self._chance, BEFORE_S)
        return await self._pool.getconn()

    async def putconn(self, connection):
        await self._pool.putconn(connection)


async def pause(chance, longest_s):
    await asyncio.sleep(chance.choice([0.0, chance.uniform(0, longest_s)]))


class Race:
    """Senders that come, begin many transactions at once, and leave before they have ended."""

    def __init__(self, scene, resource, pool, chance):
        self._scene = scene
        self._resource = resource
        self._pool = pool
        self._chance = chance
        self.tally = Counter()

    async def round(self, names):
        async with Client(self._scene.broker.names) as client:
            settings = ManagerSettings(local_threads=AT_ONCE)
            manager = TransactionManager(self._scene.group, client, self._resource, settings)
            transfer = manager.transactional(topic=self._scene.topic, keys=lambda order: order.id)(
                self._function(manager)
            )
            async with asyncio.TaskGroup() as group, manager:
                self._pool.expect(len(names))
                for name in names:
                    group.create_task(self._one(transfer, name))
                # Their half messages are stored. It leaves, and others are asked.
                await self._pool.all_came.wait()

    def _function(self, manager):
        async def transfer_out(session, order):
            await session.execute(order.written(manager.current().xid))
            await pause(self._chance, INSIDE_S)

        return transfer_out

    async def _one(self, transfer, name):
        try:
            outcome = await transfer(Order(name, self._chance.choice(PAYERS)))
        except RolledBackByCheck:
            self.tally["rolled back"] += 1
        else:
            self.tally[outcome.state.value] += 1


@asynccontextmanager
async def slow_pool(bank, chance):
    pool = psycopg_pool.AsyncConnectionPool(
        conninfo(bank.url), min_size=4, max_size=CONNECTIONS, open=False
    )
    async with pool:
        yield SlowPool(pool, chance)


@run_by(in_loop)
async def test_a_check_and_a_commit_never_both_win(broker_in_haste, bank_for):
    bank = bank_for("postgres")
    number, seed = soak(200, 10_000), random.randrange(2**32)
    chance = random.Random(seed)
    print(f"seed {seed}")

    names = (f"t-{index}" for index in range(number))
    async with (
        on_scene(broker_in_haste, bank) as scene,
        another(scene, check_wait=WAIT_S) as stays,
        slow_pool(bank, chance) as pool,
    ):
        resource = SQLResource(pool)
        pool.all_came.set()
        await resource.verify()
        race = Race(scene, resource, pool, chance)
        while batch := list(islice(names, AT_ONCE)):
            await race.round(batch)
        await scene.until_settled()
        agree(scene, race, stays, number)


def agree(scene, race, stays, number):
    fence, tally = scene.bank.fence, race.tally
    scene.bank.order(
        "UPDATE account SET balance = balance - (SELECT count(*) FROM debit) WHERE name = 'A0'"
    )
    scene.agree()
    assert sum(tally.values()) == number
    assert tally["committed"] == len(scene.bank.debits)
    assert tally["rolled back"] == list(fence.values()).count(ROLLED_BACK)
    assert stays.tally.conflicts == 0
    # A race that is always won by the same side shows nothing.
    assert min(tally["committed"], tally["rolled back"]) * 50 > number, tally
    print(f"{number} raced: {dict(tally)}, {stays.tally}")
