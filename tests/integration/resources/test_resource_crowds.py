"""Many checks in one database transaction answer and act as the same checks do alone.

TXMQ_SOAK races 10,000 transactions of each kind, or as many as it says.
"""

import asyncio
import contextlib
import random

import pytest

from tests.integration.resources.resource_stage import (
    COMMIT,
    GROUP,
    ON_MARIADB,
    ROLLBACK,
    UNKNOWN,
    now_ms,
)
from tests.integration.resources.test_resource_races import AT_ONCE, DELAY_S, Race, agree, count
from tests.running import in_loop, run_by
from txmq.transaction.resources import SQLResource

CROWD = 30
CLEANED_MS = 1_000_000
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@pytest.fixture
def shared(monkeypatch):
    """How many checks shared a database transaction, each time that some did."""
    sizes, plain = [], SQLResource._check_together

    async def counted(resource, theirs, wait_ms):
        found = await plain(resource, theirs, wait_ms)
        sizes.append(len(theirs))
        return found

    monkeypatch.setattr(SQLResource, "_check_together", counted)
    return sizes


class Crowds(Race):
    """Some commit, and all of them are checked at the same moment, perhaps twice.

    Commits start later after a crowd that they mostly won, and earlier after one that they lost.
    """

    def __init__(self, *given):
        super().__init__(*given)
        # A fence row takes only one round trip, so commits start later than checks.
        self.commits_within_s = 2 * DELAY_S

    async def crowd(self, ids):
        born_ms = now_ms()
        self.answers |= {xid: [] for xid in ids}

        async def commits(xid):
            before_s = self.chance.uniform(0, self.commits_within_s)
            self.locals[xid] = await self.commit(xid, born_ms, before_s, self.delay_s())

        async def checks():
            for _ in range(self.chance.choice([1, 1, 2])):
                await asyncio.sleep(self.delay_s())
                asked = self.chance.sample(ids, len(ids))
                told = await asyncio.gather(
                    *(self.checker.check(xid, born_ms=born_ms) for xid in asked)
                )
                for xid, answer in zip(asked, told, strict=True):
                    self.answers[xid].append(answer)

        await asyncio.gather(*(commits(xid) for xid in ids), checks())
        won = sum(self.locals[xid] is COMMIT for xid in ids)
        self.commits_within_s *= 2.0 if won * 2 > len(ids) else 0.5

    async def run(self, number):
        for first in range(0, number, CROWD):
            await self.crowd([f"x-{first + offset}" for offset in range(CROWD)])


@pytest.mark.parametrize("bank", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    ("kind", "checks_of"),
    [("postgres-async", "psycopg-async-pool"), ("psycopg-async-pool", "postgres")],
)
@run_by(in_loop)
async def test_batched_checks_and_commits_never_both_win(bank, kind, checks_of, shared):
    seed = random.randrange(2**32)
    engine = {} if kind.startswith("psycopg") else {"pool_size": AT_ONCE}
    asked = bank.stage(checks_of, resource={"check_wait": 0.02})
    async with bank.stage(kind, engine=engine) as stage, asked as checker:
        race = Crowds(stage, checker, seed)
        await race.run(count(300))
        agree(bank, race, seed)
        await race.settled()
        agree(bank, race, seed)
    assert shared, "no two checks ever shared a database transaction"


@run_by(in_loop)
async def test_batched_checks_get_the_answers_of_single_checks(bank, shared):
    """For every content, owner and age of the row in the fence."""
    chance = random.Random(7)
    kinds = ["committed", "rolled back", "another's", "nowhere", "too old", "another fence's"]
    drawn = [*kinds, *chance.choices(kinds, k=CROWD)]

    async def answers(stage, way):
        ids = [f"{way}-{number}" for number in range(len(drawn))]
        for xid, kind in zip(ids, drawn, strict=True):
            if kind in ("committed", "rolled back", "another's"):
                values = {"xid": xid, "outcome": 2 if kind == "rolled back" else 1}
                values["owner"] = "ccb" if kind == "another's" else GROUP
                bank.order(
                    "INSERT INTO txmq_fence (xid, outcome, owner, created_ms) "
                    "VALUES (:xid, :outcome, :owner, 5)",
                    **values,
                )
        asked = [
            stage.check(
                xid,
                born_ms=CLEANED_MS - 1 if kind == "too old" else CLEANED_MS,
                identity="elsewhere" if kind == "another fence's" else stage.resource.identity,
            )
            for xid, kind in zip(ids, drawn, strict=True)
        ]
        if way == "together":
            return await asyncio.gather(*asked)
        return [await check for check in asked]

    async with bank.stage() as stage:
        bank.order("UPDATE txmq_fence_mark SET cleaned_ms = :at", at=CLEANED_MS)
        alone = await answers(stage, "alone")
        assert not shared
        together = await answers(stage, "together")
        assert together == alone
        assert {*alone} == {COMMIT, ROLLBACK, UNKNOWN}
    # Checks that cannot be answered leave nothing behind.
    rows = bank.order("SELECT xid, outcome, owner FROM txmq_fence")
    left = {way: set() for way in ("alone", "together")}
    for xid, *rest in rows:
        way, number = xid.split("-")
        left[way].add((number, *rest))
    assert left["alone"] == left["together"]
    assert len(left["alone"]) == sum(fate not in ("too old", "another fence's") for fate in drawn)
    assert shared == [len(drawn) - drawn.count("another fence's")]


@pytest.mark.parametrize("bank", ["postgres-async", *ON_MARIADB], indirect=True)
@run_by(in_loop)
async def test_a_running_transaction_does_not_block_the_other_checks_of_its_batch(bank):
    ids = [f"x-{number}" for number in range(20)]
    async with bank.stage(resource={"check_wait": 0.1}) as stage:
        assert await stage.check("x-1") is ROLLBACK
        assert await stage.order("x-2") is COMMIT
        answers = {}

        async def ask():
            told = await asyncio.gather(*(stage.check(xid) for xid in ids))
            answers.update(zip(ids, told, strict=True))

        await stage.run(stage.begin("x-7"), lambda session: stage.outside(ask()))
        assert answers.pop("x-7") is UNKNOWN
        assert answers.pop("x-2") is COMMIT
        assert {*answers.values()} == {ROLLBACK}
        assert await stage.check("x-7") is COMMIT
    assert set(bank.fence) == set(ids)


@run_by("on_postgres", "psycopg-async-pool", resource={"check_wait": 30})
async def test_a_lost_connection_makes_every_check_of_the_batch_unknown(stage, /, postgres_bank):
    ids = [f"x-{number}" for number in range(20)]
    async with stage.begin("x-7"):
        asked = asyncio.gather(*(stage.check(xid) for xid in ids))
        while not (waiting := await asyncio.to_thread(postgres_bank.order, WAITING)):
            assert not asked.done()
        for (pid,) in waiting:
            postgres_bank.order("SELECT pg_terminate_backend(:pid)", pid=pid)
        assert await asked == [UNKNOWN] * 20
        assert postgres_bank.fence == {}
    assert postgres_bank.fence == {"x-7": 1}
    answers = await asyncio.gather(*(stage.check(xid) for xid in ids))
    assert answers == [COMMIT if xid == "x-7" else ROLLBACK for xid in ids]


@run_by(in_loop)
async def test_two_batches_about_the_same_transactions_agree(postgres_bank):
    """Two services are asked about the same transactions, in random order."""
    first_service = postgres_bank.stage("psycopg-async-pool")
    async with first_service as first, postgres_bank.stage("postgres") as second:
        chance = random.Random(3)
        for turn in range(10):
            ids = [f"x-{turn}-{number}" for number in range(20)]
            late = first.begin(ids[0])
            asked = [(stage, xid) for stage in (first, second) for xid in ids]
            chance.shuffle(asked)
            with contextlib.suppress(Exception):
                async with late:
                    pass
            answers = await asyncio.gather(*(stage.check(xid) for stage, xid in asked))
            told = {xid: set() for xid in ids}
            for (_, xid), answer in zip(asked, answers, strict=True):
                told[xid].add(answer)
            assert all(len(verdicts - {UNKNOWN}) <= 1 for verdicts in told.values())
            assert told[ids[0]] <= {late.state, UNKNOWN}
