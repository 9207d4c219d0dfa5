"""Small pools: a transfer waiting for a row must not starve the one that has it locked."""

import asyncio
import contextlib

import psycopg_pool
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from tests.integration.xa.xa_stage import (
    COMMIT,
    GROUP,
    OPENING,
    attended,
    now_ms,
    order_of,
    run,
    said,
)
from tests.running import in_loop, run_by
from tests.servers.databases import conninfo
from txmq.transaction.resources import XAResource

AT_ONCE = 4
PATIENCE_S = 8.0


async def small(kind, url, stack):
    """A pool of one connection."""
    match kind:
        case "psycopg-pool":
            return stack.enter_context(
                psycopg_pool.ConnectionPool(conninfo(url), min_size=1, max_size=1, open=True)
            )
        case "psycopg-pool-async":
            pool = psycopg_pool.AsyncConnectionPool(
                conninfo(url), min_size=1, max_size=1, open=False
            )
            return await stack.enter_async_context(pool)
        case "alchemy":
            engine = create_engine(url, pool_size=1, max_overflow=0)
            stack.callback(engine.dispose)
            return engine
    engine = create_async_engine(url, pool_size=1, max_overflow=0)
    stack.push_async_callback(engine.dispose)
    return engine


@contextlib.asynccontextmanager
async def narrow(banks, kind):
    async with contextlib.AsyncExitStack() as stack:
        sources = {name: await small(kind, bank.url, stack) for name, bank in banks.banks.items()}
        resource = XAResource(sources)
        stack.callback(resource.close)
        await resource.verify()
        async with attended(resource):
            yield resource


@pytest.mark.parametrize("kind", ["alchemy", "alchemy-async", "psycopg-pool", "psycopg-pool-async"])
@run_by(in_loop)
async def test_one_pooled_connection_is_enough_for_concurrent_transfers_of_one_row(banks, kind):
    async with narrow(banks, kind) as resource:

        async def one(number):
            local = resource.local(f"x-{number}", GROUP, now_ms())
            await run(resource, local, order_of(10))
            await resource.confirm(f"x-{number}", local.state)
            return local.state

        async with asyncio.timeout(PATIENCE_S):
            states = await asyncio.gather(*(one(number) for number in range(AT_ONCE)))
        assert states == [COMMIT] * AT_ONCE
    moved = 10 * AT_ONCE
    assert banks.balances == {"icbc": OPENING - moved, "ccb": OPENING + moved}
    banks.see_nothing_left()


@pytest.mark.parametrize("kind", ["alchemy", "alchemy-async", "psycopg-pool", "psycopg-pool-async"])
@run_by(in_loop)
async def test_a_rollback_needs_no_second_pooled_connection(banks, kind):
    async def broken(sessions):
        await order_of(10)(sessions)
        await said(sessions["ccb"], "CREATE TEMPORARY TABLE mine (x INT)")

    async with narrow(banks, kind) as resource:

        async def one(number):
            local = resource.local(f"x-{number}", GROUP, now_ms())
            with contextlib.suppress(Exception):
                # More than there is: the second bank refuses when the first has prepared.
                await run(resource, local, broken)
            return local.state

        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(one(number) for number in range(AT_ONCE)))
    assert banks.balances == {"icbc": OPENING, "ccb": OPENING}
    banks.see_nothing_left()
