"""Failures and delays in checks that are settled together."""

import asyncio
import contextlib
import threading
import time

import psycopg
import pytest

from tests.integration.resources.resource_stage import GROUP, ROLLBACK, UNKNOWN, now_ms
from tests.running import in_loop, run_by
from tests.servers.databases import conninfo
from txmq.errors import UsageError
from txmq.transaction.resources import SQLResource
from txmq.transaction.state import LocalTransactionState

CROWD = 60


@run_by(in_loop)
async def test_an_unexpected_exception_of_the_source_is_raised_by_every_check(postgres_bank):
    is_locked = False

    def connects():
        if is_locked:
            raise KeyError("no such password")
        return psycopg.connect(conninfo(postgres_bank.url))

    with contextlib.closing(SQLResource(connects)) as resource:
        await resource.verify()
        is_locked = True
        asked = [resource.check(f"x-{number}", GROUP, now_ms()) for number in range(20)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(problem) for problem in found} == {KeyError}


@pytest.mark.parametrize("kind", ["postgres", "postgres-async", "psycopg-pool"])
@run_by(in_loop)
async def test_many_running_transactions_do_not_add_up_their_check_waits(postgres_bank, kind):
    """All other checks of their batch wait for the last of them."""
    async with postgres_bank.stage(kind, resource={"check_wait": 0.5}) as stage:
        ids = [f"x-{number}" for number in range(CROWD)]
        with postgres_bank.engine.connect() as busy:
            for xid in ids[1:]:
                busy.exec_driver_sql(f"INSERT INTO txmq_fence VALUES ('{xid}', 1, '{GROUP}', 1)")
            began = time.monotonic()
            answers = await asyncio.gather(*(stage.check(xid) for xid in ids))
            assert answers == [ROLLBACK] + [UNKNOWN] * (CROWD - 1)
            assert time.monotonic() - began < 0.5 * 8


@pytest.mark.parametrize("kind", ["postgres", "postgres-async"])
@run_by(in_loop)
async def test_a_batch_of_checks_waits_once_for_a_pooled_connection(postgres_bank, kind):
    """The checks do not wait one after the other when the application holds all connections."""
    engine = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.5}

    async with postgres_bank.stage(kind, engine=engine) as stage:
        db = await stage.resource._adapter.open()
        began = time.monotonic()
        asked = [stage.check(f"x-{number}") for number in range(20)]
        assert await asyncio.gather(*asked) == [UNKNOWN] * 20
        assert time.monotonic() - began < 0.5 * 4
        await db.close()
        assert await stage.check("x-1") is ROLLBACK


@run_by(in_loop)
async def test_checks_that_wait_when_the_resource_closes_are_settled_or_refused(postgres_bank):
    entered, gate = threading.Semaphore(0), threading.Event()

    def connects():
        entered.release()
        gate.wait(20)
        return psycopg.connect(conninfo(postgres_bank.url))

    resource = SQLResource(connects)
    gate.set()
    await resource.verify()
    while entered.acquire(blocking=False):
        pass
    gate.clear()
    asked = []
    for number in range(8):
        check = resource.check(f"x-{number}", GROUP, now_ms())
        asked.append(asyncio.ensure_future(check))
        await asyncio.sleep(0)
    await asyncio.to_thread(entered.acquire)
    resource.close()
    gate.set()
    async with asyncio.timeout(20):
        answers = await asyncio.gather(*asked, return_exceptions=True)
    # Those that had begun are settled.
    assert answers[0] is ROLLBACK
    assert {type(answer) for answer in answers} <= {LocalTransactionState, UsageError}
    with pytest.raises(UsageError, match="closed"):
        await resource.check("x-1", GROUP, now_ms())
