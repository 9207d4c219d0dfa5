"""Async sessions as applications use them: shared, of their own classes, returned late."""

import asyncio
import contextlib

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from tests.integration.resources.resource_stage import COMMIT, ROLLBACK, Stage, insert, said
from tests.running import in_loop, run_by
from txmq.transaction.resources import SQLResource

pytestmark = pytest.mark.parametrize("bank", ["postgres-async"], indirect=True)
ONE = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 5}


class Refused(Exception):
    """What an application raises."""


@contextlib.asynccontextmanager
async def staged(bank, kind=AsyncSession, **settings):
    """A stage, and the engine below it."""
    engine = create_async_engine(bank.url, **settings)
    try:
        with contextlib.closing(SQLResource(async_sessionmaker(engine, class_=kind))) as resource:
            await resource.verify()
            yield Stage(resource), engine
    finally:
        await engine.dispose()


@run_by(in_loop)
async def test_a_second_session_on_the_same_bind_shares_the_transaction(bank):
    async def work(session):
        async with AsyncSession(session.bind) as other:
            await said(other, insert("x-1"))
            await other.flush()
        assert session.bind.dialect.name == "postgresql"
        raise Refused

    async with staged(bank, **ONE) as (stage, _):
        local = stage.begin("x-1")
        with pytest.raises(Refused):
            await stage.run(local, work)
        assert local.state is ROLLBACK
    assert bank.orders == set()


@run_by(in_loop)
async def test_overridden_flush_and_commit_of_a_session_class_are_called(bank):
    class Audited(AsyncSession):
        async def flush(self, *args):
            await said(self, insert("flushed"))
            await super().flush(*args)

        async def commit(self):
            await said(self, insert("audited"))
            await super().commit()

    async def work(session):
        await session.begin_nested()  # It is left open: the end takes it along.
        await said(session, insert("x-1"))

    async with staged(bank, Audited) as (stage, engine):
        local = stage.begin("x-1")
        await stage.run(local, work)
        assert local.state is COMMIT
        assert engine.pool.checkedout() == 0
    assert bank.orders == {"x-1", "audited", "flushed"}


@run_by(in_loop)
async def test_a_session_class_whose_commit_raises_leaves_nothing(bank):
    class Unwilling(AsyncSession):
        async def commit(self):
            raise Refused

    async with staged(bank, Unwilling, **ONE) as (stage, engine):
        local = stage.begin("x-1")
        with pytest.raises(Refused):
            await stage.say(local, insert("x-1"))
        assert local.state is not COMMIT
        assert engine.pool.checkedout() == 0
    assert bank.fence == {}
    assert bank.orders == set()


@run_by(in_loop)
async def test_cancelling_during_the_pool_reset_does_not_hide_the_commit(bank):
    """It is cancelled while the pool resets the connection by a slow statement."""
    async with staged(bank, **ONE) as (stage, engine):
        resets = asyncio.Event()

        @event.listens_for(engine.sync_engine.pool, "reset")
        def reset(connection, record, state):
            if state.asyncio_safe and not resets.is_set():
                resets.set()
                cursor = connection.cursor()
                cursor.execute("SELECT pg_sleep(60)")

        local = stage.begin("x-1")
        running = asyncio.ensure_future(stage.say(local, insert("x-1")))
        await resets.wait()
        while not bank.order("SELECT pid FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)'"):
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert local.state is COMMIT
        assert engine.pool.checkedout() == 0
        async with engine.connect() as connection:
            assert (await connection.execute(text("SELECT 1"))).scalar() == 1
    assert bank.orders == {"x-1"}
