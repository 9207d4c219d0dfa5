"""What a start refuses, and what it says to do about it."""

import asyncio
import contextlib
import functools

import psycopg
import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import StaticPool

from tests.integration.resources.resource_stage import (
    COMMIT,
    KINDS,
    ROLLBACK,
    UNKNOWN,
    Bank,
    Stage,
    insert,
)
from tests.running import in_loop, run_by
from tests.servers.databases import conninfo
from txmq.errors import (
    ConfigError,
    DatabaseFailed,
    FenceElsewhere,
    FenceMissing,
    FenceOutdated,
    FenceUnsafe,
    LimitExceeded,
    UsageError,
)
from txmq.transaction.resources import SQLResource
from txmq.transaction.resources.schema import create_fence


def verified(bank, kind=None, **settings):
    async def story():
        async with bank.stage(kind, **settings) as stage:
            return stage.resource.identity

    return asyncio.run(story())


def refused(bank, error, match, **settings):
    with pytest.raises(error, match=match):
        verified(bank, **settings)


def test_all_sources_of_one_fence_have_the_same_identity(postgres_bank):
    kinds = ["postgres", "postgres-async", "psycopg", "psycopg-async-pool"]

    assert len({verified(postgres_bank, kind) for kind in kinds}) == 1


def test_verify_leaves_no_row_in_the_fence(bank):
    verified(bank)

    assert bank.fence == {}


@pytest.mark.fault("D4")
def test_a_missing_fence_table_is_refused_with_the_command_that_creates_it(bare_bank):
    refused(bare_bank, FenceMissing, "txmq schema create")


def test_a_missing_fence_table_in_sqlite_is_refused(sqlite_bank):
    sqlite_bank.order("DROP TABLE txmq_fence")
    sqlite_bank.order("DROP TABLE txmq_fence_mark")
    refused(sqlite_bank, FenceMissing, "txmq schema create")


@pytest.mark.parametrize(
    ("statement", "error", "words"),
    [
        ("DELETE FROM txmq_fence_mark", FenceMissing, "txmq schema sql"),
        ("UPDATE txmq_fence_mark SET version = 2", FenceOutdated, "version 2"),
        ("ALTER TABLE txmq_fence RENAME COLUMN owner TO holder", FenceOutdated, "columns"),
    ],
    ids=["empty mark", "another version", "other columns"],
)
def test_a_fence_of_another_shape_is_refused(postgres_bank, statement, error, words):
    postgres_bank.order(statement)

    refused(postgres_bank, error, words)


@pytest.mark.fault("D4")
def test_a_fence_in_another_schema_is_missing(postgres_bank):
    refused(postgres_bank, FenceMissing, "bank.txmq_fence", resource={"schema": "bank"})


@pytest.mark.parametrize(
    "bank",
    [kind for kind in KINDS if not kind.startswith("psycopg") and not kind.endswith("django")],
    indirect=True,
)
def test_an_autocommit_engine_is_refused(bank):
    refused(bank, FenceUnsafe, "autocommit", engine={"isolation_level": "AUTOCOMMIT"})
    assert bank.fence == {}


@run_by(in_loop)
async def test_an_autocommit_connection_of_psycopg_is_put_into_a_transaction(postgres_bank):
    connect = functools.partial(psycopg.connect, conninfo(postgres_bank.url), autocommit=True)
    resource = SQLResource(connect)
    await resource.verify()
    stage = Stage(resource)
    local = stage.begin("x-1")

    async def work(connection):
        connection.execute(insert("x-1"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await stage.run(local, work)
    assert local.state is ROLLBACK
    assert (postgres_bank.fence, postgres_bank.orders) == ({}, set())


@pytest.mark.fault("D2")
@pytest.mark.parametrize("kind", ["postgres", "psycopg-pool"])
def test_postgresql_without_synchronous_commit_is_refused(postgres_bank, kind):
    url = postgres_bank.url
    off = Bank(kind, url.update_query_dict({"options": "-csynchronous_commit=off"}))

    refused(off, FenceUnsafe, "synchronous_commit")
    off.close()


@pytest.mark.fault("D2")
@run_by("on_sqlite", verified=False)
async def test_sqlite_with_synchronous_off_is_refused(stage, /):
    engine = stage.resource._adapter._engine
    event.listen(engine, "connect", lambda made, _: made.execute("PRAGMA synchronous=OFF"))
    with pytest.raises(FenceUnsafe, match="synchronous"):
        await stage.resource.verify()


def test_a_read_only_connection_is_refused(postgres_bank):
    read_only = postgres_bank.url.update_query_dict(
        {"options": "-cdefault_transaction_read_only=on"}
    )
    bank = Bank("postgres", read_only)

    refused(bank, FenceUnsafe, "forbids")
    bank.close()


def test_an_unreachable_server_is_reported():
    bank = Bank("postgres", create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none").url)

    refused(bank, DatabaseFailed, "did not answer")
    bank.close()


@pytest.fixture
def elsewhere(postgres):
    """Another database with a fence."""
    with postgres.database() as url, contextlib.closing(Bank("postgres", url).prepare()) as found:
        yield found


@pytest.mark.fault("D4")
@run_by(in_loop)
async def test_a_source_that_switches_between_databases_is_refused(postgres_bank, elsewhere):
    """As behind a pooler that distributes connections over several servers."""
    places = [postgres_bank.url, elsewhere.url]

    def connect():
        places.reverse()
        return psycopg.connect(conninfo(places[0]))

    with pytest.raises(FenceElsewhere):
        await SQLResource(connect).verify()


@pytest.mark.fault("D4")
@run_by(in_loop)
async def test_a_local_transaction_in_another_database_does_nothing(postgres_bank, elsewhere):
    places = [postgres_bank.url]
    resource = SQLResource(lambda: psycopg.connect(conninfo(places[0])))
    await resource.verify()
    places[0] = elsewhere.url
    stage = Stage(resource)
    with pytest.raises(FenceElsewhere):
        await stage.order("x-1")
    assert await stage.check("x-1") is UNKNOWN
    assert (elsewhere.fence, elsewhere.orders) == ({}, set())
    assert (postgres_bank.fence, postgres_bank.orders) == ({}, set())


@run_by("on_postgres", verified=False)
async def test_a_resource_cannot_be_used_before_verify(stage, /):
    with pytest.raises(UsageError):
        stage.begin("x-1")
    with pytest.raises(UsageError):
        await stage.check("x-1")
    with pytest.raises(UsageError):
        await stage.resource.clean(1e6)


@pytest.mark.fault("D7")
def test_a_connection_left_in_a_transaction_is_refused(postgres_bank):
    shared = psycopg.connect(conninfo(postgres_bank.url))
    with pytest.raises(psycopg.errors.DivisionByZero):
        shared.execute("SELECT 1/0")

    with pytest.raises(DatabaseFailed, match="already in a transaction"):
        asyncio.run(SQLResource(lambda: shared).verify())
    shared.close()


def sources_that_cannot_be_guarded():
    engine = create_engine("sqlite://", poolclass=StaticPool)
    yield sessionmaker()
    yield sessionmaker(engine, twophase=True)
    yield sessionmaker(engine, binds={Session: engine})
    yield "postgresql:///bank"
    yield create_engine("postgresql+psycopg://").connect.__self__.dialect
    engine.dispose()


def test_unsupported_sources_are_refused():
    for source in sources_that_cannot_be_guarded():
        with pytest.raises(ConfigError):
            SQLResource(source)


def test_a_single_connection_as_a_source_is_refused(postgres_bank):
    connection = psycopg.connect(conninfo(postgres_bank.url))
    with connection, pytest.raises(ConfigError, match="pool"):
        SQLResource(connection)


@run_by("on_sqlite")
async def test_cleaning_within_the_horizon_is_refused(stage, /):
    with pytest.raises(ConfigError, match="still needed"):
        await stage.resource.clean(600)
    assert await stage.resource.clean(600, horizon=600) == 0


@run_by(in_loop)
async def test_a_fence_can_have_another_name_and_schema(bare_bank):
    bare_bank.order("CREATE SCHEMA IF NOT EXISTS tx")
    engine = create_engine(bare_bank.url)
    assert create_fence(engine, "fence", "tx")
    assert not create_fence(engine, "fence", "tx")
    resource = SQLResource(engine, fence="fence", schema="tx")
    await resource.verify()
    assert await resource.check("x-1", "icbc", 1) is ROLLBACK
    assert bare_bank.order("SELECT xid FROM tx.fence") == [("x-1",)]
    bare_bank.order("DROP SCHEMA tx CASCADE")
    engine.dispose()


def test_the_printed_ddl_creates_a_usable_fence(bank):
    from txmq.transaction.resources import Fence

    family = "sqlite" if bank.kind.startswith("sqlite") else "postgresql"
    dialect = "mysql" if bank.kind.startswith("mysql") else family
    bank.order("DROP TABLE txmq_fence")
    bank.order("DROP TABLE txmq_fence_mark")
    engine = create_engine(bank.url)
    with engine.begin() as connection:
        for statement in Fence().ddl(dialect):
            connection.execute(text(statement))
    engine.dispose()

    assert verified(bank)


@run_by(in_loop)
async def test_orm_objects_can_be_used_after_the_commit(postgres_bank):
    from sqlalchemy import Column, Integer, String
    from sqlalchemy.orm import declarative_base

    base = declarative_base()
    mapped = {"__tablename__": "accounts", "id": Column(String, primary_key=True)}
    account = type("Account", (base,), {**mapped, "amount": Column(Integer)})
    postgres_bank.order("DROP TABLE IF EXISTS accounts")
    postgres_bank.order("CREATE TABLE accounts (id VARCHAR PRIMARY KEY, amount INTEGER)")
    async with postgres_bank.stage() as stage:
        local, made = stage.begin("x-1"), account(id="a", amount=7)

        async def work(session):
            session.add(made)  # Written when the local transaction ends.

        await stage.run(local, work)
        assert (local.state, made.amount) == (COMMIT, 7)

        twice = stage.begin("x-2")

        async def again(session):
            session.add(account(id="a", amount=8))

        with pytest.raises(Exception, match="accounts_pkey"):
            await stage.run(twice, again)
        assert twice.state is ROLLBACK

        broken = stage.begin("x-3")

        async def never(session):
            event.listen(session, "before_flush", lambda *_: 1 / 0)
            session.add(account(id="b", amount=9))

        with pytest.raises(ZeroDivisionError):
            await stage.run(broken, never)  # The commit had not been requested yet.
        assert broken.state is ROLLBACK
    assert set(postgres_bank.fence) == {"x-1"}


@pytest.mark.parametrize("xid", ["", "\u4e2d", "x" * 256, "x-1 ", "x\0"])
@run_by("on_sqlite")
async def test_ids_that_some_databases_cannot_store_are_refused(stage, /, xid):
    with pytest.raises((UsageError, LimitExceeded)):
        stage.begin(xid)
    assert await stage.check(xid) is UNKNOWN


@run_by(in_loop)
async def test_a_fence_can_be_created_while_an_event_loop_runs(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path / 'bank.db'}")

    assert create_fence(engine)
    assert not create_fence(engine)
    engine.dispose()
