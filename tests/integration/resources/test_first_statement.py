"""A claim that travels with its BEGIN: round trips, prepared statements that vanish, isolation."""

import asyncio
import contextlib
import inspect

import psycopg
import psycopg_pool
import pytest

from tests.integration.resources.resource_stage import COMMIT, ROLLBACK, Stage, said
from tests.running import in_loop, run_by
from tests.servers.databases import conninfo
from txmq.databases import postgres as first_statement
from txmq.errors import RolledBackByCheck
from txmq.transaction.resources import SQLResource

pytestmark = pytest.mark.parametrize("bank", ["postgres"], indirect=True)


@contextlib.asynccontextmanager
async def staged(bank, is_async, **settings):
    """A resource over one connection, so that each transaction has the connection of the last."""
    kind = psycopg_pool.AsyncConnectionPool if is_async else psycopg_pool.ConnectionPool
    pool = kind(conninfo(bank.url), min_size=1, max_size=1, open=False, **settings)
    if is_async:
        await pool.open()
    else:
        pool.open()
    try:
        with contextlib.closing(SQLResource(pool)) as resource:
            await resource.verify()
            yield Stage(resource)
    finally:
        if is_async:
            await pool.close()
        else:
            pool.close()


async def run(stage, xid, *statements):
    """A local transaction with statements of its own; returns the last one's rows."""
    local, rows = stage.begin(xid), []

    async def work(session):
        for statement in statements:
            cursor = await said(session, statement)
            if cursor.description:
                found = cursor.fetchall()
                rows.append(await found if inspect.isawaitable(found) else found)

    await stage.run(local, work)
    assert local.state is COMMIT
    return rows[-1] if rows else []


@pytest.mark.parametrize("is_async", [False, True])
@run_by(in_loop)
async def test_prepared_statements_may_vanish_or_appear_between_transactions(bank, is_async):
    async with staged(bank, is_async) as stage:
        await run(stage, "x-1")
        name = "SELECT name FROM pg_prepared_statements WHERE name LIKE 'txmq%'"
        ((prepared,),) = await run(stage, "x-2", name)
        await run(stage, "x-3", "DEALLOCATE ALL")
        await run(stage, "x-4")
        assert await run(stage, "x-5", name) == [(prepared,)]
        first_statement._PREPARED.clear()  # As if another program had prepared it.
        await run(stage, "x-6")
    assert bank.fence == {f"x-{number}": 1 for number in range(1, 7)}


@pytest.mark.parametrize("is_async", [False, True])
@run_by(in_loop)
async def test_a_begin_has_the_isolation_level_of_its_connection(bank, is_async):
    level = psycopg.IsolationLevel.SERIALIZABLE

    def configure(connection):
        connection.isolation_level = level

    async def configure_async(connection):
        await connection.set_isolation_level(level)

    how = {"configure": configure_async if is_async else configure}
    async with staged(bank, is_async, **how) as stage:
        found = await run(stage, "x-1", "SHOW transaction_isolation")
    assert found == [("serializable",)]


@pytest.mark.parametrize("is_async", [False, True])
@run_by(in_loop)
async def test_a_refused_claim_leaves_the_connection_usable(bank, is_async):
    async with staged(bank, is_async) as stage:
        assert await stage.check("x-1") is ROLLBACK
        with pytest.raises(RolledBackByCheck):
            await stage.order("x-1")
        assert await stage.order("x-2") is COMMIT
    assert bank.orders == {"x-2"}


@run_by(in_loop)
async def test_a_claim_that_waits_can_be_cancelled(bank):
    async with staged(bank, True) as stage:
        async with await psycopg.AsyncConnection.connect(conninfo(bank.url)) as other:
            await other.execute("LOCK TABLE txmq_fence IN EXCLUSIVE MODE")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await stage.order("x-1")
        assert await stage.order("x-2") is COMMIT
    assert bank.orders == {"x-2"}
