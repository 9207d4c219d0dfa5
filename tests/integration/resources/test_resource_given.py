"""Connections in an unusual state: already in use, begun by listeners, with other settings."""

import asyncio
import contextlib

import psycopg
import psycopg_pool
import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.util import greenlet_spawn

from tests.integration.resources.resource_stage import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    Stage,
    insert,
    said,
)
from tests.running import in_loop, run_by
from tests.servers.databases import conninfo
from txmq.errors import ConfigError, DatabaseFailed, FenceMissing, FenceUnsafe
from txmq.transaction.resources import SQLResource

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
def test_a_pooled_connection_that_is_closed_is_discarded(bank):
    one_connection = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 5}
    with engine_on(bank, **one_connection) as engine, staged(engine) as stage:
        pooled = engine.connect()
        driver = pooled.connection.driver_connection
        pooled.close()
        driver.close()
        with pytest.raises(OperationalError):
            asyncio.run(stage.order("x-1"))
        assert asyncio.run(stage.order("x-2")) is COMMIT
    assert bank.orders == {"x-2"}


def leave_open(connection):
    """Insert a foreign row, and neither commit nor roll back."""
    cursor = connection.cursor()
    cursor.execute(insert("foreign"))
    cursor.close()


@pytest.mark.fault("D7")
@pytest.mark.parametrize("bank", ["postgres", "sqlite"], indirect=True)
def test_foreign_uncommitted_rows_are_not_committed_with_ours(bank):
    """With a pool that does not reset its connections."""
    with engine_on(bank, **AS_IT_IS) as engine, staged(engine) as stage:
        pooled = engine.raw_connection()
        leave_open(pooled)
        pooled.close()

        with pytest.raises(DatabaseFailed, match="already in a transaction"):
            asyncio.run(stage.order("x-1"))
        # That connection is closed, since nothing else would end its transaction.
        assert asyncio.run(stage.order("x-1")) is COMMIT

    assert bank.orders == {"x-1"}


class Careless:
    """A pool of one connection, which it gives back as it was left."""

    def __init__(self, connection):
        self._connection = connection

    def getconn(self):
        return self._connection

    def putconn(self, connection):
        pass


def fail(connection):
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("SELECT 1 / 0")


@pytest.mark.fault("D7")
@pytest.mark.parametrize("leave", [leave_open, fail], ids=["open", "failed"])
def test_a_pooled_connection_with_an_open_or_failed_transaction_is_refused(postgres_bank, leave):
    with psycopg.connect(conninfo(postgres_bank.url)) as connection:
        with staged(Careless(connection)) as stage:
            leave(connection)
            with pytest.raises(DatabaseFailed, match="already in a transaction"):
                asyncio.run(stage.order("x-1"))
        connection.rollback()
    assert (postgres_bank.fence, postgres_bank.orders) == ({}, set())


@pytest.mark.fault("D7")
def test_an_engine_connection_in_a_failed_transaction_is_refused_once(postgres_bank):
    with engine_on(postgres_bank, **AS_IT_IS) as engine, staged(engine) as stage:
        pooled = engine.raw_connection()
        fail(pooled.driver_connection)
        pooled.close()
        with pytest.raises(DatabaseFailed, match="already in a transaction"):
            asyncio.run(stage.order("x-1"))
        assert postgres_bank.fence == {}
        assert asyncio.run(stage.order("x-2")) is COMMIT
    assert postgres_bank.orders == {"x-2"}


@pytest.mark.parametrize("kind", ["postgres-async", "sqlite-async"])
@run_by(in_loop)
async def test_foreign_uncommitted_rows_are_detected_by_async_engines(bank_of_kind, kind):
    bank = bank_of_kind(kind)
    async with bank.stage(engine=AS_IT_IS) as stage:
        engine = stage.resource._adapter._engine
        pooled = await engine.raw_connection()
        await pooled.driver_connection.execute(insert("foreign"))
        await greenlet_spawn(pooled.close)
        with pytest.raises(DatabaseFailed, match="already in a transaction"):
            await stage.order("x-1")
    assert bank.orders == set()


def test_rows_of_a_failed_sqlite_commit_are_not_committed_with_ours(sqlite_bank):
    """SQLAlchemy returns a connection to its pool without a rollback after a failed commit."""
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


def test_a_connection_on_which_a_listener_has_begun_is_refused(postgres_bank):
    """A session would join the open transaction, and not commit it."""
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
def test_a_statement_of_a_pool_listener_is_not_taken_for_a_foreign_transaction(postgres_bank, when):
    """psycopg begins a transaction with the first statement of any kind."""
    with engine_on(postgres_bank) as engine:

        @event.listens_for(engine, when)
        def settle(connection, *_):
            with connection.cursor() as cursor:
                cursor.execute("SET statement_timeout = 30000")

        with staged(engine) as stage:
            assert asyncio.run(stage.order("x-1")) is COMMIT
            assert asyncio.run(stage.check("x-2")) is ROLLBACK


def test_autocommit_connections_are_refused(postgres_bank):
    """Autocommit was switched on before the connection went back to its pool."""
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


def test_sessions_with_a_get_bind_of_their_own_are_refused(postgres_bank):
    with engine_on(postgres_bank) as engine, engine_on(postgres_bank) as other:

        class Routed(Session):
            def get_bind(self, *_, **__):
                return other

        with (
            contextlib.closing(SQLResource(sessionmaker(engine, class_=Routed))) as resource,
            pytest.raises(ConfigError, match="choose"),
        ):
            asyncio.run(resource.verify())


def test_the_schema_translate_map_of_a_sessionmaker_applies_to_the_fence(postgres_bank):
    moved = {"schema_translate_map": {None: "elsewhere"}}
    with engine_on(postgres_bank) as engine:
        sessions = sessionmaker(engine, execution_options=moved)
        with (
            contextlib.closing(SQLResource(sessions)) as resource,
            pytest.raises(FenceMissing, match="elsewhere"),
        ):
            asyncio.run(resource.verify())


def test_inspecting_a_used_connection_does_not_hide_the_exception_raised(postgres_bank):
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


@pytest.mark.parametrize("factory", [psycopg.Cursor, psycopg.ClientCursor, psycopg.RawCursor])
def test_cursor_and_row_factories_do_not_affect_the_fence(postgres_bank, factory):
    chosen = {"cursor_factory": factory, "row_factory": psycopg.rows.dict_row}
    where = conninfo(postgres_bank.url)
    with (
        psycopg_pool.ConnectionPool(where, kwargs={**chosen, "prepare_threshold": None}) as pool,
        staged(pool) as stage,
    ):
        assert asyncio.run(stage.order("x-1")) is COMMIT
        assert asyncio.run(stage.check("x-1")) is COMMIT
        assert asyncio.run(stage.check("x-2")) is ROLLBACK
