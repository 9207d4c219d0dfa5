"""Cancelling at any point: both banks do the same, and every connection is returned."""

import asyncio
import contextlib
import functools
import itertools

import psycopg_pool
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from tests.integration.transaction.crash_stage import soak
from tests.integration.xa.xa_stage import COMMIT, GROUP, OPENING, attended, now_ms, order_of
from tests.running import in_loop, run_by
from tests.servers.databases import conninfo
from txmq.transaction.resources import XAResource

COMMITTED = 1


class Cut:
    """Awaits something, and cancels it where it waits for the ``at``-th time."""

    def __init__(self, work, at):
        self.work = work
        self.at = at
        self.count = 0

    def __await__(self):
        running = self.work.__await__()
        step = running.__next__
        while True:
            try:
                wanted = step()
            except StopIteration:
                return
            self.count += 1
            if self.count == self.at:
                asyncio.current_task().cancel()
            try:
                yield wanted
            except BaseException as problem:
                step = functools.partial(running.throw, problem)
            else:
                step = running.__next__


class Engines:
    def __init__(self, urls):
        self.sources = {
            name: create_async_engine(url, pool_size=2, max_overflow=0)
            for name, url in urls.items()
        }

    def out(self):
        return [engine.pool.checkedout() for engine in self.sources.values()]

    async def close(self):
        for engine in self.sources.values():
            await engine.dispose()


class Pools:
    def __init__(self, urls):
        self.sources = {
            name: psycopg_pool.AsyncConnectionPool(
                conninfo(url), min_size=2, max_size=2, open=False
            )
            for name, url in urls.items()
        }

    async def open(self):
        for pool in self.sources.values():
            await pool.open(wait=True)

    def out(self):
        stats = [pool.get_stats() for pool in self.sources.values()]
        return [2 - pool.get("pool_available", 0) for pool in stats]

    async def close(self):
        for pool in self.sources.values():
            await pool.close()


@contextlib.asynccontextmanager
async def counted(banks, kind, is_attended):
    urls = {name: bank.url for name, bank in banks.banks.items()}
    here = Engines(urls) if kind == "alchemy" else Pools(urls)
    if isinstance(here, Pools):
        await here.open()
    resource = XAResource(here.sources, recover_interval=3600.0)
    await resource.verify()
    try:
        async with attended(resource) if is_attended else contextlib.nullcontext():
            yield resource, here
    finally:
        resource.close()
        await here.close()


async def transfer(resource, xid, how):
    local = resource.local(xid, GROUP, now_ms())
    try:
        async with local as sessions:
            await order_of(1)(sessions)
            if how == "refused":
                raise ValueError
    except ValueError:
        return
    await resource.confirm(xid, local.state)


async def until_returned(here):
    async with asyncio.timeout(5):
        while any(here.out()):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["kept", "not kept", "refused"])
@pytest.mark.parametrize("kind", ["alchemy", "psycopg-pool"])
@run_by(in_loop)
async def test_cancelling_at_any_await_leaves_both_banks_alike_and_no_connection_out(
    banks, kind, how
):
    every = soak(3, 1)
    async with counted(banks, kind, how == "kept") as (resource, here):
        for at in itertools.count(1, every):
            xid = f"x-{at}"
            cut = Cut(transfer(resource, xid, how), at)

            async def cancelled(cut=cut):
                await cut

            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.create_task(cancelled())
            if how == "kept" and banks.fence.get(xid) == COMMITTED:
                await resource.confirm(xid, COMMIT)  # As its manager does.
            await resource.recover(0.0)
            try:
                await until_returned(here)
            except TimeoutError:
                pytest.fail(f"cancelled at {at}: {here.out()} are not given back")
            assert not banks.prepared, at
            if cut.count < at:
                break  # It ended before this point.
    moved = list(banks.fence.values()).count(COMMITTED)
    assert banks.balances == {"icbc": OPENING - moved, "ccb": OPENING + moved}
    banks.see_nothing_left()


@pytest.mark.parametrize("kind", ["alchemy", "psycopg-pool"])
@run_by(in_loop)
async def test_a_cancelled_confirmation_returns_its_connections(banks, kind):
    async with counted(banks, kind, True) as (resource, here):
        await asyncio.sleep(0)
        local = resource.local("x-1", GROUP, now_ms())
        async with local as sessions:
            await order_of(1)(sessions)
        async with asyncio.timeout(5):
            while here.out() != [1, 1]:  # A first recovery looks.
                await asyncio.sleep(0.01)
        confirming = asyncio.create_task(resource.confirm("x-1", local.state))
        await asyncio.sleep(0)
        confirming.cancel()
        await asyncio.gather(confirming, return_exceptions=True)
        await until_returned(here)
        await resource.recover()
    banks.see_nothing_left()
