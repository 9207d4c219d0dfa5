"""Connections as a source may give them: in use already, begun by listeners, set otherwise."""

import asyncio
import contextlib

import psycopg
import psycopg_pool
import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.util import greenlet_spawn

from tests.integration.resources.resource_stage import Stage, insert, said
from tests.servers.databases import conninfo
from txmq.errors import ConfigError, DatabaseFailed, FenceMissing, FenceUnsafe
from txmq.transaction.resources import SQLResource
from txmq.transaction.state import LocalTransactionState

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
UNKNOWN = LocalTransactionState.UNKNOWN
AS_IT_IS = {"pool_reset_on_return": None, "pool_size": 1, "max_overflow": 0}


class Refused(Exception):
    """What an application raises."""


@contextlib.contextmanager
def staged(source):
    with contextlib.closing(SQLResource(source)) as resource:
        asyncio.run(resource.verify())
        yield Stage(resource)


@contextlib.contextmanager
def engine_on(bank, **settings):
    engine = create_engine(bank.url, **settings)
    try:
        yield engine
    finally:
        engine.dispose()


@pytest.mark.parametrize("bank", ["postgres"], indirect=True)
def test_a_connection_that_was_closed_in_its_pool_is_given_up(bank):
    one = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 5}
    with engine_on(bank, **one) as engine, staged(engine) as stage:
        pooled = engine.connect()
        driver = pooled.connection.driver_connection
        pooled.close()
        driver.close()
        with pytest.raises(OperationalError):
            asyncio.run(stage.order("x-1"))
        assert asyncio.run(stage.order("x-2")) is COMMIT
    assert bank.orders == {"x-2"}


def leave_open(connection):
    """Somebody's rows, neither committed nor rolled back."""
    cursor = connection.cursor()
    cursor.execute(insert("foreign"))
    cursor.close()


@pytest.mark.fault("D7")
@pytest.mark.parametrize("bank", ["postgres", "sqlite"], indirect=True)
def test_rows_that_somebody_left_uncommitted_are_not_committed_with_ours(bank):
    """A pool that gives connections back as they are."""
    with engine_on(bank, **AS_IT_IS) as engine, staged(engine) as stage:
        pooled = engine.raw_connection()
        leave_open(pooled)
        pooled.close()

        with pytest.raises(DatabaseFailed, match="already in a transaction"):
            asyncio.run(stage.order("x-1"))
        # That connection is given up, since nobody else would end what is on it.
        assert asyncio.run(stage.order("x-1")) is COMMIT

    assert bank.orders == {"x-1"}


@pytest.mark.parametrize("kind", ["postgres-async", "sqlite-async"])
def test_rows_that_somebody_left_uncommitted_are_seen_without_blocking(bank_of_kind, kind):
    bank = bank_of_kind(kind)

    async def story():
        async with bank.stage(engine=AS_IT_IS) as stage:
            engine = stage.resource._adapter._engine
            pooled = await engine.raw_connection()
            await pooled.driver_connection.execute(insert("foreign"))
            await greenlet_spawn(pooled.close)
            with pytest.raises(DatabaseFailed, match="already in a transaction"):
                await stage.order("x-1")

    asyncio.run(story())

    assert bank.orders == set()


def test_what_a_failed_commit_left_in_sqlite_is_not_committed_with_ours(sqlite_bank):
    """SQLAlchemy gives a connection back as it is after a commit that failed."""
    settings = {"pool_size": 1, "max_overflow": 0, "connect_args": {"timeout": 0.05}}
    with engine_on(sqlite_bank, **settings) as engine, staged(engine) as stage:
        with sqlite_bank.engine.connect() as reader:
            reader.exec_driver_sql("BEGIN")
            reader.exec_driver_sql("SELECT * FROM orders").all()
            with engine.connect() as somebody:
                somebody.exec_driver_sql(insert("foreign"))
                with pytest.raises(OperationalError, match="locked"):
                    somebody.commit()
        with contextlib.suppress(DatabaseFailed):
            asyncio.run(stage.order("x-1"))

    assert "foreign" not in sqlite_bank.orders


def test_a_listener_that_begins_cannot_make_a_commit_out_of_none(postgres_bank):
    """A session joins what it finds, and leaves its commit to whoever began it."""
    with engine_on(postgres_bank) as engine:
        begins = False

        @event.listens_for(engine, "engine_connect")
        def ping(connection):
            if begins:
                connection.scalar(text("SELECT 1"))

        with staged(engine) as stage:
            begins = True
            with pytest.raises(DatabaseFailed, match="already in a transaction"):
                asyncio.run(stage.order("x-1"))
            assert asyncio.run(stage.check("x-1")) is UNKNOWN

    assert postgres_bank.fence == {}


@pytest.mark.parametrize("when", ["connect", "checkout"])
def test_what_a_listener_of_the_pool_says_is_no_foreign_transaction(postgres_bank, when):
    """psycopg begins with the first statement, whatever that is."""
    with engine_on(postgres_bank) as engine:

        @event.listens_for(engine, when)
        def settle(connection, *_):
            with connection.cursor() as cursor:
                cursor.execute("SET statement_timeout = 30000")

        with staged(engine) as stage:
            assert asyncio.run(stage.order("x-1")) is COMMIT
            assert asyncio.run(stage.check("x-2")) is ROLLBACK


def test_connections_that_commit_each_statement_are_refused(postgres_bank):
    """Somebody has switched it on, and given the connection back so."""
    with engine_on(postgres_bank, pool_size=1, max_overflow=0) as engine, staged(engine) as stage:
        pooled = engine.raw_connection()
        pooled.driver_connection.autocommit = True
        pooled.close()
        local = stage.begin("x-1")

        async def work(session):
            await said(session, insert("x-1"))
            raise Refused

        with pytest.raises(FenceUnsafe, match="autocommit"):
            asyncio.run(stage.run(local, work))
        assert local.state is ROLLBACK

    assert (postgres_bank.fence, postgres_bank.orders) == ({}, set())


def test_sessions_that_choose_their_database_themselves_are_refused(postgres_bank):
    with engine_on(postgres_bank) as engine, engine_on(postgres_bank) as other:

        class Routed(Session):
            def get_bind(self, *_, **__):
                return other

        with (
            contextlib.closing(SQLResource(sessionmaker(engine, class_=Routed))) as resource,
            pytest.raises(ConfigError, match="choose"),
        ):
            asyncio.run(resource.verify())


def test_tables_that_a_sessionmaker_renames_are_asked_through_it(postgres_bank):
    moved = {"schema_translate_map": {None: "elsewhere"}}
    with engine_on(postgres_bank) as engine:
        sessions = sessionmaker(engine, execution_options=moved)
        with (
            contextlib.closing(SQLResource(sessions)) as resource,
            pytest.raises(FenceMissing, match="elsewhere"),
        ):
            asyncio.run(resource.verify())


def test_a_look_at_a_connection_in_use_does_not_hide_what_was_raised(postgres_bank):
    given = []

    def connects():
        connection = psycopg.connect(conninfo(postgres_bank.url))
        if len(given) == 1:
            connection.execute("SELECT 1")
        given.append(connection)
        return connection

    with staged(postgres_bank.engine) as known:
        identity = known.resource.identity
    with contextlib.closing(SQLResource(connects)) as resource:
        resource._identity = identity
        local = Stage(resource).begin("x-1")
        with pytest.raises(Refused), local:
            raise Refused


@pytest.mark.parametrize("factory", [psycopg.ClientCursor, psycopg.RawCursor])
def test_the_fence_is_asked_in_its_own_way_whatever_cursors_are_chosen(postgres_bank, factory):
    chosen = {"cursor_factory": factory, "row_factory": psycopg.rows.dict_row}
    where = conninfo(postgres_bank.url)
    with (
        psycopg_pool.ConnectionPool(where, kwargs={**chosen, "prepare_threshold": None}) as pool,
        staged(pool) as stage,
    ):
        assert asyncio.run(stage.order("x-1")) is COMMIT
        assert asyncio.run(stage.check("x-1")) is COMMIT
        assert asyncio.run(stage.check("x-2")) is ROLLBACK
