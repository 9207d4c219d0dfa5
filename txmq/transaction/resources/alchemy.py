"""Doors for SQLAlchemy: engines and sessionmakers, blocking and not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection, Engine, Executable, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
)
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker
from sqlalchemy.pool.base import ResetStyle

from txmq.errors import ConfigError, DatabaseFailed, FenceUnsafe
from txmq.transaction.resources.dialects import kind_of
from txmq.transaction.resources.door import Answer, Borrowed, Door, Standing
from txmq.transaction.resources.failures import Failure, failure
from txmq.transaction.resources.forms import Forms
from txmq.transaction.resources.postgres import asked, awaited, psycopg_forms
from txmq.transaction.resources.prepared import prepared

__all__ = ["alchemy_door"]

_PROBLEMS: Final = (SQLAlchemyError, OSError)
_IDLE: Final = 0
_IN_TRANSACTION: Final = 2
_IN_ERROR: Final = 3


def alchemy_door(source: object) -> Door[Any] | None:
    """The door of an engine or sessionmaker; none for anything else.

    Raises:
        ConfigError: Its sessions can write to several databases, or to one that has no fence.
    """
    if isinstance(source, Engine):
        # What a function returns is used after the commit: it must not be read anew then.
        return AlchemyDoor(sessionmaker(source, expire_on_commit=False), source)
    if isinstance(source, AsyncEngine):
        return AsyncAlchemyDoor(async_sessionmaker(source, expire_on_commit=False), source)
    if isinstance(source, async_sessionmaker):
        bound = _bound(source.kw, AsyncEngine)
        return AsyncAlchemyDoor(source, bound)
    if isinstance(source, sessionmaker):
        bound = _bound(source.kw, Engine)
        return AlchemyDoor(source, bound)
    return None


def _bound(settings: dict[str, Any], wanted: type[Any]) -> Any:
    engine = settings.get("bind")
    if not isinstance(engine, wanted):
        raise ConfigError(f"a sessionmaker for a resource is bound to an {wanted.__name__}")
    if settings.get("binds") or settings.get("twophase"):
        raise ConfigError(
            "sessions with several databases have no single commit, so one fence cannot guard it"
        )
    return engine


class AlchemyDoor:
    """Sessions of a blocking engine."""

    is_blocking = True
    problems = _PROBLEMS

    def __init__(self, sessions: Callable[..., Session], engine: Engine) -> None:
        self.kind = kind_of(engine.dialect.name)
        self.can_prepare = engine.dialect.driver == "psycopg"
        self._sessions = sessions
        self._engine = engine
        self._forms = _forms(engine)

    async def open(self) -> Borrowed[Session]:
        """See :meth:`Door.open`."""
        connection = self._engine.connect()
        try:
            session = self._sessions(bind=connection)
            _enter(session, connection)
        except BaseException:
            connection.close()
            raise
        return _Borrowed(session, connection, self._forms)

    async def say(self, statement: str) -> None:
        """See :meth:`Door.say`."""
        with self._engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql(statement)


class AsyncAlchemyDoor:
    """Sessions of an asyncio engine."""

    is_blocking = False
    problems = _PROBLEMS

    def __init__(self, sessions: Callable[..., AsyncSession], engine: AsyncEngine) -> None:
        self.kind = kind_of(engine.dialect.name)
        self.can_prepare = engine.dialect.driver == "psycopg"
        self._sessions = sessions
        self._engine = engine
        self._forms = _forms(engine)

    async def open(self) -> Borrowed[AsyncSession]:
        """See :meth:`Door.open`."""
        connection = await self._engine.connect()
        try:
            session = self._sessions(bind=connection)
            await session.run_sync(_enter, _plain(connection))
        except BaseException:
            await connection.close()
            raise
        return _AsyncBorrowed(session, connection, self._forms)

    async def say(self, statement: str) -> None:
        """See :meth:`Door.say`."""
        async with self._engine.connect() as connection:
            alone = await connection.execution_options(isolation_level="AUTOCOMMIT")
            await alone.exec_driver_sql(statement)


class _Borrowed:
    def __init__(self, session: Session, connection: Connection, forms: Forms | None) -> None:
        self.session = session
        self._connection = connection
        self._forms = None if _is_renamed(connection) else forms
        self._root = session.get_transaction()

    async def ask(self, statement: Any, **values: object) -> Answer:
        if (forms := self._forms) is not None:
            try:
                return asked(_driver(self._connection), forms, statement, values)
            except Exception as problem:  # noqa: BLE001 - whatever it is
                _tell(problem, self._connection, forms, statement, values)
        result = self._connection.execute(_executable(statement), values)
        rows = [tuple(row) for row in result] if result.returns_rows else []
        return Answer(result.rowcount, rows)

    async def flush(self) -> None:
        while (nested := self.session.get_nested_transaction()) is not None:
            nested.commit()  # As the commit would, to which it was left.
        if _keeps_back(self.session):
            self.session.flush()

    def standing(self) -> Standing:
        return _standing(self.session, self._root, self._connection)

    async def commit(self) -> None:
        try:
            self.session.commit()
        except BaseException:
            _abandon(self._connection)
            raise

    async def prepare(self, gid: str) -> str:
        driver: Any = self._connection.connection.driver_connection
        return str(driver.execute(prepared(gid)).statusmessage)

    async def anew(self) -> Borrowed[Session]:
        self.session.close()
        session = Session(self._connection)
        _begin(session)
        return _Lent(session, self._connection, self._forms)

    async def alone(self, statement: str) -> None:
        self.session.close()
        alone = self._connection.execution_options(isolation_level="AUTOCOMMIT")
        alone.exec_driver_sql(statement)

    async def close(self) -> None:
        _close(self._connection, self.session)


class _Lent(_Borrowed):
    async def close(self) -> None:
        self.session.close()


class _AsyncBorrowed:
    def __init__(
        self, session: AsyncSession, connection: AsyncConnection, forms: Forms | None
    ) -> None:
        self.session = session
        self._connection = connection
        self._forms = None if _is_renamed(_plain(connection)) else forms
        self._root = session.sync_session.get_transaction()

    async def ask(self, statement: Any, **values: object) -> Answer:
        plain = self._connection.sync_connection
        if plain is not None and (forms := self._forms) is not None:
            try:
                return await awaited(_driver(plain), forms, statement, values)
            except Exception as problem:  # noqa: BLE001 - whatever it is
                _tell(problem, plain, forms, statement, values)
        result = await self._connection.execute(_executable(statement), values)
        rows = [tuple(row) for row in result] if result.returns_rows else []
        return Answer(result.rowcount, rows)

    async def flush(self) -> None:
        while (nested := self.session.get_nested_transaction()) is not None:
            await nested.commit()
        if _keeps_back(self.session.sync_session):
            await self.session.flush()

    def standing(self) -> Standing:
        connection = self._connection.sync_connection
        return _standing(self.session.sync_session, self._root, connection)

    async def commit(self) -> None:
        try:
            await self.session.commit()
        except Exception:
            await self._connection.run_sync(_abandon)
            raise
        except BaseException:
            await self._connection.invalidate()
            raise

    async def prepare(self, gid: str) -> str:
        driver: Any = (await self._connection.get_raw_connection()).driver_connection
        return str((await driver.execute(prepared(gid))).statusmessage)

    async def anew(self) -> Borrowed[AsyncSession]:
        await self.session.close()
        session = AsyncSession(self._connection)
        await session.run_sync(_begin)
        return _AsyncLent(session, self._connection, self._forms)

    async def alone(self, statement: str) -> None:
        await self.session.close()
        alone = await self._connection.execution_options(isolation_level="AUTOCOMMIT")
        await alone.exec_driver_sql(statement)

    async def close(self) -> None:
        try:
            await self._connection.run_sync(_close, self.session.sync_session)
        except BaseException:
            if not self._connection.closed:  # Cut off in the middle, it would stay taken.
                await self._connection.invalidate()
                await self._connection.close()
            raise


class _AsyncLent(_AsyncBorrowed):
    async def close(self) -> None:
        await self.session.close()


def _forms(engine: Engine | AsyncEngine) -> Forms | None:
    """For asking psycopg itself, which costs half as much."""
    return psycopg_forms() if engine.dialect.driver == "psycopg" else None


def _is_renamed(connection: Connection) -> bool:
    """Whether tables have names that only SQLAlchemy knows, so that it must be asked."""
    return "schema_translate_map" in connection.get_execution_options()


def _plain(connection: AsyncConnection) -> Connection:
    assert connection.sync_connection is not None, "connected"
    return connection.sync_connection


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _tell(
    problem: Exception,
    connection: Connection,
    forms: Forms,
    statement: Any,
    values: dict[str, object],
) -> None:
    """Raise what psycopg has raised as SQLAlchemy does, unless the connection is lost: that it
    must see for itself, to give up all others of its pool.
    """
    if failure(problem) is Failure.LOST and _driver(connection).closed:
        return
    words, given = forms.of(statement, values)
    engine, base = connection.engine, connection.dialect.loaded_dbapi.Error
    raise DBAPIError.instance(
        words, given, problem, base, hide_parameters=engine.hide_parameters, dialect=engine.dialect
    ) from problem


def _is_used(connection: Connection) -> bool:
    """Whether somebody has begun on it: a session joins what it finds, and does not commit it, and
    what somebody has left there would be committed with ours.
    """
    if connection.in_transaction():
        return True
    driver = _driver(connection)
    if connection.dialect.driver != "psycopg":
        return bool(getattr(driver, "in_transaction", False))  # Those to SQLite say so.
    # What a pool has reset is nobody's: there a listener has spoken, with which psycopg begins.
    is_reset = connection.engine.pool._reset_on_return is not ResetStyle.reset_none  # noqa: SLF001
    return not is_reset and driver.info.transaction_status != _IDLE


def _enter(session: Session, connection: Connection) -> None:
    if _is_used(connection):
        connection.invalidate()  # Nobody else would end what is on it.
        raise DatabaseFailed("the source gave a connection that is in a transaction already")
    _begin(session)
    if session.connection() is not connection:
        session.close()
        raise ConfigError("sessions that choose their connection themselves write past the fence")
    if connection.dialect.driver == "psycopg" and _driver(connection).autocommit:
        raise FenceUnsafe("the source gave a connection that commits each statement: autocommit")


def _begin(session: Session) -> None:
    session.begin()
    session.connection()


def _keeps_back(session: Session) -> bool:
    return bool(session.new or session.dirty or session.deleted)


def _close(connection: Connection, session: Session) -> None:
    try:
        session.close()
    finally:
        connection.close()


def _abandon(connection: Connection) -> None:
    """SQLAlchemy gives a connection back as it is after a commit that failed: whoever has it next
    would find rows that nobody has committed.
    """
    if connection.closed or connection.invalidated:
        return
    try:
        connection.dialect.do_rollback(connection.connection)
    except Exception as problem:  # noqa: BLE001 - whatever it is, nobody uses this one again
        connection.invalidate(problem)


def _executable(statement: Any) -> Executable:
    return text(statement) if isinstance(statement, str) else statement


def _standing(
    session: Session, root: SessionTransaction | None, connection: Connection | None
) -> Standing:
    if connection is None or session.get_transaction() is not root:
        return Standing.ENDED
    if not session.is_active:
        return Standing.ABORTED
    if connection.closed or connection.invalidated:
        return Standing.ABORTED
    if connection.dialect.driver != "psycopg":
        return Standing.UNSURE
    # libpq keeps the transaction's status with every answer, so nobody has to be asked.
    driver: Any = connection.connection.driver_connection
    status = driver.info.transaction_status
    if status == _IN_TRANSACTION:
        return Standing.OPEN
    return Standing.ABORTED if status == _IN_ERROR else Standing.ENDED
