"""Pools of one or few connections, and what psycopg keeps prepared for the next user of one."""

import contextlib

import psycopg_pool
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from tests.servers.databases import conninfo
from txmq.databases.adapter import reading

__all__ = ["SMALL", "is_prepared", "prepare", "see_it_is_prepared", "small"]

SMALL = ["alchemy", "alchemy-async", "psycopg-pool", "psycopg-pool-async"]
OFTEN = 6
"""psycopg prepares what is said for the sixth time."""
MINE = "SELECT 'what the service says again and again'"


async def small(kind, url, stack, size=1):
    """A pool of a kind, with one connection or a few."""
    match kind:
        case "psycopg-pool":
            return stack.enter_context(
                psycopg_pool.ConnectionPool(conninfo(url), min_size=size, max_size=size, open=True)
            )
        case "psycopg-pool-async":
            pool = psycopg_pool.AsyncConnectionPool(
                conninfo(url), min_size=size, max_size=size, open=False
            )
            return await stack.enter_async_context(pool)
        case "alchemy":
            engine = create_engine(url, pool_size=size, max_overflow=0)
            stack.callback(engine.dispose)
            return engine
    engine = create_async_engine(url, pool_size=size, max_overflow=0)
    stack.push_async_callback(engine.dispose)
    return engine


@contextlib.asynccontextmanager
async def prepare(adapter):
    """Prepare a statement on an adapter's connection, as a service does; keep it for the block."""
    async with reading(adapter.open()) as db:
        for _ in range(OFTEN):
            await db.execute(MINE)
        yield


@contextlib.asynccontextmanager
async def is_prepared(adapter, statement=MINE):
    """Whether the statement is still prepared on the next connection."""
    async with reading(adapter.open()) as db:
        result = await db.execute("SELECT statement FROM pg_prepared_statements")
        yield any(statement in text for (text,) in result.rows)


@contextlib.asynccontextmanager
async def see_it_is_prepared(*adapters):
    """Check that statements on the only connection behind each adapter stay prepared."""
    for adapter in adapters:
        async with prepare(adapter):
            pass
    yield
    for adapter in adapters:
        async with is_prepared(adapter) as is_there:
            assert is_there, "a rollback has taken it away"
