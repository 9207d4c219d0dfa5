"""Bumps in transactions of the application, and updates that it writes itself."""

import asyncio
import contextlib
import inspect

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.integration.idempotent.shop_stage import Account
from tests.integration.resources.resource_stage import ON_MARIADB, said
from tests.running import in_loop, run_by
from tests.servers.databases import conninfo
from txmq.errors import ConfigError, UsageError, VersionGap
from txmq.idempotent.guard import Verdict
from txmq.idempotent.version import VersionGuard

SHAPES = {
    "session": "postgres",
    "connection": "postgres",
    "async-session": "postgres",
    "async-connection": "postgres",
    "psycopg": "postgres",
    "psycopg-async": "postgres",
    "sqlite": "sqlite",
    **dict.fromkeys(ON_MARIADB[:1], "mysql"),
}


@contextlib.asynccontextmanager
async def session_of(shape, bank):
    """A session in a transaction, which is committed at the end."""
    async with contextlib.AsyncExitStack() as stack:
        if shape.startswith("async"):
            engine = create_async_engine(bank.url)
            stack.push_async_callback(engine.dispose)
            made = AsyncSession(engine) if shape == "async-session" else engine.connect()
            session = await stack.enter_async_context(made)
            await stack.enter_async_context(session.begin())
        elif shape == "psycopg-async":
            session = await psycopg.AsyncConnection.connect(conninfo(bank.url))
            await stack.enter_async_context(session)
        elif shape == "psycopg":
            session = stack.enter_context(psycopg.connect(conninfo(bank.url)))
        else:
            made = bank.engine.connect() if shape == "connection" else Session(bank.engine)
            session = stack.enter_context(made)
            stack.enter_context(session.begin())
        yield session


async def come(found):
    return await found if inspect.isawaitable(found) else found


@pytest.fixture(params=SHAPES)
def shape(request):
    return request.param


@pytest.fixture
def bank(shape, shop_of):
    return shop_of("version", SHAPES[shape])


@run_by(in_loop)
async def test_a_bump_returns_first_or_done_or_raises_a_version_gap(bank, shape):
    guard = VersionGuard(bank.engine, Account)

    async def bump(version, **how):
        async with session_of(shape, bank) as session:
            verdict = await come(guard.bump(session, ("a", version), **how))
            if verdict is Verdict.FIRST and version == 1:
                await said(session, "INSERT INTO account VALUES ('a', 1, 100)")
            return verdict

    assert [await bump(version) for version in (1, 1)] == [Verdict.FIRST, Verdict.DONE]
    with pytest.raises(VersionGap):
        await bump(3)
    more = {Account.balance: Account.balance + 10}
    assert [await bump(2, values=more) for _ in range(3)] == [
        Verdict.FIRST,
        *[Verdict.DONE] * 2,
    ]
    assert await bump(3, values={"balance": 7}) is Verdict.FIRST
    with pytest.raises(ConfigError, match="not a column"):
        await bump(4, values={"name": 7})
    assert bank.order("SELECT version, balance FROM account") == [(3, 7)]


def test_a_rolled_back_bump_can_be_repeated(bank, shape):
    bank.order("INSERT INTO account VALUES ('a', 1, 0)")
    guard = VersionGuard(bank.engine, Account)

    async def story():
        async with session_of(shape, bank) as session:
            assert await come(guard.bump(session, ("a", 2))) is Verdict.FIRST
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            asyncio.run(story())

    assert bank.order("SELECT version FROM account") == [(1,)]


@run_by(in_loop)
async def test_a_version_gap_leaves_the_transaction_usable(bank, shape):
    bank.order("INSERT INTO account VALUES ('a', 1, 0)")
    guard = VersionGuard(bank.engine, Account)
    async with session_of(shape, bank) as session:
        with pytest.raises(VersionGap):
            await come(guard.bump(session, ("a", 3)))
        assert await come(guard.bump(session, ("a", 2))) is Verdict.FIRST
    assert bank.order("SELECT version FROM account") == [(2,)]


@run_by(in_loop)
async def test_judge_evaluates_an_update_of_the_application(bank, shape):
    bank.order("INSERT INTO account VALUES ('a', 1, 0)")
    guard = VersionGuard(bank.engine, Account)
    for version, wanted in [(2, Verdict.FIRST), (2, Verdict.DONE), (1, Verdict.DONE)]:
        async with session_of(shape, bank) as session:
            update = (
                f"UPDATE account SET version = {version}, balance = balance + 10 "
                f"WHERE id = 'a' AND version = {version - 1}"
            )
            changed = (await said(session, update)).rowcount
            assert await come(guard.judge(session, ("a", version), changed)) is wanted
    async with session_of(shape, bank) as session:
        with pytest.raises(VersionGap):
            await come(guard.judge(session, ("a", 4), 0))
        assert await come(guard.judge(session, ("a", 3), 0)) is Verdict.IN_PROGRESS
        assert await come(guard.judge(session, ("b", 1), 0)) is Verdict.FIRST
        with pytest.raises(UsageError, match="2 rows"):
            await come(guard.judge(session, ("a", 3), 2))
    assert bank.order("SELECT version, balance FROM account") == [(2, 10)]


def test_an_object_loaded_before_a_bump_is_refreshed(shop_of):
    bank = shop_of("version", "postgres")
    bank.order("INSERT INTO account VALUES ('a', 1, 0), ('b', 1, 0)")
    guard = VersionGuard(bank.engine, Account)

    with Session(bank.engine) as session, session.begin():
        mine, other = session.get(Account, "a"), session.get(Account, "b")
        bank.order("UPDATE account SET version = 2, balance = 10 WHERE id = 'a'")
        assert guard.bump(session, ("a", 3)) is Verdict.FIRST
        mine.balance += 1
        assert not sa.inspect(other).expired
        with pytest.raises(UsageError, match="bump first"):
            guard.bump(session, ("a", 4))

    assert bank.order("SELECT version, balance FROM account WHERE id = 'a'") == [(3, 11)]


def test_an_autocommit_connection_is_refused(shop_of):
    bank = shop_of("version", "postgres")
    bank.order("INSERT INTO account VALUES ('a', 1, 0)")
    guard = VersionGuard(bank.engine, Account)

    alone = bank.engine.execution_options(isolation_level="AUTOCOMMIT")
    with alone.connect() as connection, pytest.raises(UsageError, match="commits each"):
        guard.bump(connection, ("a", 2))

    assert bank.order("SELECT version FROM account") == [(1,)]
