"""Transactions, their checks, and recoveries with a zero horizon, at every distance in time.

Never has one bank booked what the other has rolled back.

TXMQ_SOAK races 3,000 transactions of each kind, or as many as it says.
"""

import asyncio
import contextlib
import itertools
import random
from collections import Counter

import pytest

from tests.integration.transaction.crash_stage import soak
from tests.integration.xa.xa_stage import COMMIT, GROUP, ROLLBACK, now_ms, run, said
from tests.running import in_loop, run_by
from txmq.errors import CommittedBefore, DatabaseFailed, OutcomeUnknown, RolledBackByCheck

COMMITTED = 1
LANES = 6
DELAY_S = 0.02


class Race:
    """One service that runs transactions, and another that checks and recovers."""

    def __init__(self, service, other, chance):
        self.service = service
        self.other = other
        self.chance = chance
        self.told = {}
        self.answers = {}
        self.is_over = asyncio.Event()

    def delay(self):
        return asyncio.sleep(self.chance.choice([0.0, self.chance.uniform(0, DELAY_S)]))

    async def transfer(self, xid):
        local = self.service.local(xid, GROUP, now_ms())

        async def work(sessions):
            for session in sessions.values():
                await said(session, f"INSERT INTO entry VALUES ('{xid}')")

        with contextlib.suppress(RolledBackByCheck, CommittedBefore, OutcomeUnknown):
            await run(self.service, local, work)
        await self.delay()
        with contextlib.suppress(DatabaseFailed):
            await self.service.confirm(xid, local.state)
        self.told[xid] = local.state

    async def check(self, xid):
        # About as late as the transaction takes, so that either may win.
        await asyncio.sleep(self.chance.uniform(0.0, 3 * DELAY_S))
        self.answers[xid] = await self.other.check(xid, GROUP, now_ms())

    async def recover(self, resource):
        while not self.is_over.is_set():
            await asyncio.sleep(self.chance.uniform(0.0, 5 * DELAY_S))
            await resource.recover(0.0)

    async def run(self, count):
        numbers = itertools.count()

        async def lane():
            while (number := next(numbers)) < count:
                xid = f"x-{number}"
                checks = [self.check(xid)] if self.chance.random() < 0.5 else []
                await asyncio.gather(self.transfer(xid), *checks)

        recovering = [
            asyncio.create_task(self.recover(resource))
            for resource in (self.other, self.other, self.service)
        ]
        try:
            await asyncio.gather(*(lane() for _ in range(LANES)))
        finally:
            self.is_over.set()
            await asyncio.gather(*recovering)


@pytest.mark.timeout(0 if soak(0, 1) else 120)
@pytest.mark.parametrize("kind", ["alchemy-async", "psycopg-pool"])
@run_by(in_loop)
async def test_both_banks_always_commit_the_same_transactions(banks, kind):
    seed = random.randrange(2**32)
    for bank in banks.banks.values():
        bank.order("CREATE TABLE entry (id TEXT PRIMARY KEY)")

    async with banks.service(kind, check_wait=0.05) as service, banks.service() as other:
        race = Race(service, other, random.Random(seed))
        await race.run(soak(150, 3000))
        while (found := await other.recover(0.0)).left or banks.prepared:
            assert not found.silent
    entries = [
        {xid for (xid,) in bank.order("SELECT id FROM entry")} for bank in banks.banks.values()
    ]
    committed = {xid for xid, outcome in banks.fence.items() if outcome == COMMITTED}
    assert entries == [committed, committed], seed
    assert {xid for xid, state in race.told.items() if state is COMMIT} <= committed, seed
    assert not {xid for xid, state in race.told.items() if state is ROLLBACK} & committed, seed
    assert not {xid for xid, state in race.answers.items() if state is ROLLBACK} & committed, seed
    assert {xid for xid, state in race.answers.items() if state is COMMIT} <= committed, seed
    banks.see_nothing_left()
    told = Counter(verdict.name for verdict in race.told.values())
    answers = Counter(verdict.name for verdict in race.answers.values())
    print(f"{kind}: {len(race.told)} raced: {dict(told)}; checks {dict(answers)}")
    assert {"COMMIT", "ROLLBACK"} <= set(told), "nobody raced anybody"
