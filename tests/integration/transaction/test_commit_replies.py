"""The line to the database is cut at a COMMIT: the outcome is unknown until a check finds out."""

import asyncio
import contextlib
import functools

import psycopg
import psycopg_pool
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.integration.transaction.crash_bank import COMMITTED, ROLLED_BACK, Order
from tests.integration.transaction.crash_stage import on_scene, soak
from tests.integration.transaction.crash_wire import REPLY, REQUEST, DatabaseWire
from tests.running import in_loop, run_by
from tests.servers.databases import conninfo
from txmq import SQLResource, TransactionManager, TransactionState
from txmq.errors import OutcomeUnknown

KINDS = ["engine", "async engine", "pool", "connections of asyncio"]


@contextlib.asynccontextmanager
async def source_of(kind, url):
    async with contextlib.AsyncExitStack() as stack:
        if kind == "engine":
            found = create_engine(url)
            stack.callback(found.dispose)
        elif kind == "async engine":
            found = create_async_engine(url)
            stack.push_async_callback(found.dispose)
        elif kind == "pool":
            found = await asyncio.to_thread(psycopg_pool.ConnectionPool, conninfo(url), open=True)
            stack.callback(found.close)
        else:
            found = functools.partial(psycopg.AsyncConnection.connect, conninfo(url))
        yield found


def function_for(kind, manager):
    """The local transaction, for sessions of this kind."""
    form = text if "engine" in kind else str

    def plain(session, order):
        for statement in (order.written(manager.current().xid), order.taken()):
            session.execute(form(statement))

    async def awaited(session, order):
        for statement in (order.written(manager.current().xid), order.taken()):
            await session.execute(form(statement))

    return awaited if "async" in kind else plain


@pytest.mark.fault("P5")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("side", "truth"), [(REQUEST, ROLLED_BACK), (REPLY, COMMITTED)])
@run_by(in_loop)
async def test_a_lost_commit_reply_is_unknown_until_a_check_decides(
    broker, bank_for, kind, side, truth
):
    bank = bank_for("postgres")

    async def lost(scene, wire, transfer, name):
        wire.wait_for(side, name)
        outcome = await transfer(Order(name))
        assert (outcome.state, outcome.is_acknowledged) == (TransactionState.UNKNOWN, False)
        assert isinstance(outcome.problem, OutcomeUnknown)
        await scene.until_settled()
        assert bank.fence[outcome.xid] == truth
        assert (name in bank.debits) is (truth == COMMITTED)
        after = await transfer(Order(f"{name}-after"))
        assert after.state is TransactionState.COMMITTED
        scene.agree()

    async with on_scene(broker, bank) as scene, DatabaseWire(bank.url) as wire:
        url = bank.url.set(port=wire.port)
        async with source_of(kind, url) as source:
            manager = TransactionManager(scene.group, broker.names, SQLResource(source))
            decorate = manager.transactional(topic=scene.topic, keys=lambda order: order.id)
            transfer = decorate(function_for(kind, manager))
            async with manager:
                for number in range(soak(1, 20)):
                    await lost(scene, wire, transfer, f"t-{number}")
                assert manager.tally.conflicts == 0
