"""Checks against commits, at every distance in time: the database and the checks always agree.

TXMQ_SOAK races 10,000 transactions of each kind, or as many as it says.
"""

import asyncio
import contextlib
import itertools
import os
import random
import time
from collections import Counter

import pytest

from tests.integration.resources.resource_stage import (
    COMMIT,
    GROUP,
    ON_MARIADB,
    ROLLBACK,
    UNKNOWN,
    insert,
    now_ms,
    said,
)
from tests.running import in_loop, run_by
from txmq.errors import RolledBackByCheck

COMMITTED, ROLLED_BACK = 1, 2
AT_ONCE = 8
DELAY_S = 0.012
DAY_S = 86_400


def count(modest):
    soak = int(os.environ.get("TXMQ_SOAK") or 0)
    return modest if not soak else (10_000 if soak == 1 else soak)


class Race:
    """One service that commits and another that is asked, about the same transactions."""

    def __init__(self, stage, checker, seed, sleep="pg_sleep"):
        self.stage = stage
        self.sleep = sleep
        self.checker = checker
        self.chance = random.Random(seed)
        self.locals = {}
        self.answers = {}
        self.delay_max_s = DELAY_S
        """Of commits: more after one that won, and less after one that lost. So neither side wins
        always, on a machine of any speed."""

    def delay_s(self):
        return self.chance.choice([0.0, self.chance.uniform(0, DELAY_S)])

    async def one(self, xid):
        born_ms = now_ms()
        before, inside = self.chance.uniform(0, self.delay_max_s), self.delay_s()
        checks = [self.delay_s() for _ in range(self.chance.choice([1, 1, 2]))]

        async def check(delay_s):
            await asyncio.sleep(delay_s)
            return await self.checker.check(xid, born_ms=born_ms)

        results = await asyncio.gather(
            self.commit(xid, born_ms, before, inside), *(check(wait_s) for wait_s in checks)
        )
        self.locals[xid], self.answers[xid] = results[0], results[1:]
        self.delay_max_s *= 1.1 if results[0] is COMMIT else 0.9

    async def commit(self, xid, born_ms, before_s, inside_s):
        await asyncio.sleep(before_s)

        async def work(session):
            await said(session, insert(xid))
            if not self.stage.resource.is_blocking:
                await asyncio.sleep(inside_s)
            elif inside_s:
                await said(session, f"SELECT {self.sleep}({inside_s})")

        while True:
            local = self.stage.begin(xid, born_ms)
            try:
                await self.stage.run(local, work)
            except RolledBackByCheck:
                pass
            except Exception as problem:
                # Several transactions that wait for one row may be a deadlock in MySQL.
                if local.state is ROLLBACK and self.stage.resource.may_retry(problem):
                    continue
                raise
            return local.state

    async def run(self, number):
        ids = (f"x-{index}" for index in range(number))

        async def lane():
            for xid in ids:
                await self.one(xid)

        await asyncio.gather(*(lane() for _ in range(AT_ONCE)))

    async def settled(self):
        """Once nothing runs, checks answer for every transaction, and as before."""
        for xid, answers in self.answers.items():
            last = await self.checker.check(xid)
            assert last is self.locals[xid], xid
            assert set(answers) <= {last, UNKNOWN}, (xid, answers, last)


RACES = [
    ("postgres", "postgres-async", "psycopg-async-pool"),
    ("postgres", "psycopg-pool", "postgres"),
]
if len(ON_MARIADB) == 2:
    RACES += [("mysql", "mysql-async", "mysql"), ("mysql", "mysql", "mysql-async")]


@pytest.mark.parametrize(("bank", "kind", "checks_of"), RACES, indirect=["bank"])
@run_by(in_loop)
async def test_a_check_and_a_commit_never_both_win(bank, kind, checks_of):
    seed = random.randrange(2**32)
    engine = {} if kind.startswith("psycopg") else {"pool_size": AT_ONCE}

    asked = bank.stage(checks_of, resource={"check_wait": 0.02})
    async with bank.stage(kind, engine=engine) as stage, asked as checker:
        race = Race(stage, checker, seed, "sleep" if bank.kind == "mysql" else "pg_sleep")
        await race.run(count(300))
        agree(bank, race, seed)
        await race.settled()
        agree(bank, race, seed)


def agree(bank, race, seed):
    fence, orders = bank.fence, bank.orders
    committed = {xid for xid, state in race.locals.items() if state is COMMIT}
    said_rolled_back = {xid for xid, answers in race.answers.items() if ROLLBACK in answers}
    said_committed = {xid for xid, answers in race.answers.items() if COMMIT in answers}

    assert orders == committed, seed
    assert {xid for xid, outcome in fence.items() if outcome == COMMITTED} == committed, seed
    assert set(fence) == set(race.locals), seed
    assert said_rolled_back & orders == set(), seed
    assert said_committed <= orders, seed
    # A race that is always won by the same side shows nothing.
    tally = Counter(race.locals.values())
    assert min(tally[COMMIT], tally[ROLLBACK]) * 20 > len(race.locals), tally


@run_by(in_loop)
async def test_checks_and_commits_agree_on_sqlite(sqlite_bank):
    async with sqlite_bank.stage("sqlite-async") as stage, sqlite_bank.stage() as checker:
        race = Race(stage, checker, 0)
        await race.run(40)
        await race.settled()
        committed = {xid for xid, state in race.locals.items() if state is COMMIT}
        assert sqlite_bank.orders == committed
        assert set(sqlite_bank.fence) == set(race.locals)


@run_by(in_loop)
async def test_cleaning_during_commits_removes_only_old_rows(postgres_bank):
    bank = postgres_bank
    bank.order(
        "INSERT INTO txmq_fence SELECT 'old-' || n, 1, :group, 1000 + n "
        "FROM generate_series(1, 5000) n",
        group=GROUP,
    )

    async with bank.stage("postgres-async") as stage, bank.stage("postgres") as checker:
        race = Race(stage, checker, 0)
        racing = asyncio.ensure_future(race.run(150))
        removed = 0
        for turn in itertools.count():
            removed += await stage.resource.clean(DAY_S, batch=100)
            if racing.done() and turn:
                break
        await racing
        await race.settled()
        assert removed == 5000
        assert set(bank.fence) == set(race.locals)


@run_by("on_postgres", "psycopg-async-pool")
async def test_many_checks_and_a_commit_of_one_id_get_one_answer(stage, /):
    """Checks of many members and a late commit at the same moment: one winner, one answer."""
    for number in range(20):
        xid = f"x-{number}"
        late = stage.begin(xid)

        async def commit(late=late, xid=xid):
            with contextlib.suppress(RolledBackByCheck):
                await stage.say(late, insert(xid))

        answers = await asyncio.gather(commit(), *(stage.check(xid) for _ in range(6)))
        known = set(answers[1:]) - {UNKNOWN}
        assert known <= {late.state}, (xid, answers)


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@run_by(in_loop)
async def test_a_check_that_waited_for_a_commit_sees_it_at_every_isolation_level(
    postgres_bank, level
):
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

    how = {"engine": {"isolation_level": level}, "resource": {"check_wait": 30}}
    async with postgres_bank.stage("postgres-async", **how) as stage:
        async with stage.begin("x-1"):
            asked = asyncio.ensure_future(stage.check("x-1"))
            while not await asyncio.to_thread(postgres_bank.order, waiting):
                assert not asked.done()
        assert await asked is COMMIT
        assert await stage.check("x-2") is ROLLBACK


@run_by("on_postgres", "postgres-async", resource={"check_wait": 0.1})
async def test_a_check_gives_up_after_its_check_wait(stage, /, postgres_bank):
    local = stage.begin("x-1")
    async with local:
        begin = time.monotonic()
        assert await stage.check("x-1") is UNKNOWN
        assert 0.09 < time.monotonic() - begin < 5
    assert postgres_bank.order("SELECT count(*) FROM pg_locks WHERE NOT granted") == [(0,)]
