"""Adapters (doors) for SQLAlchemy: engines and sessionmakers, blocking and asyncio."""

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
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool.base import ResetStyle

from txmq.databases.canary import Canary
from txmq.databases.dialects import kind_of
from txmq.databases.door import Borrowed, Door, Standing, StatementResult
from txmq.databases.failures import Failure, failure
from txmq.databases.forms import Forms
from txmq.databases.postgres import asked, awaited, psycopg_forms
from txmq.errors import ConfigError, DatabaseFailed, FenceUnsafe

__all__ = ["alchemy_door", "ask", "ask_async", "commits_each", "is_psycopg", "is_renamed"]

_PROBLEMS: Final = (SQLAlchemyError, OSError)
_IDLE: Final = 0
_IN_TRANSACTION: Final = 2
_IN_ERROR: Final = 3


def alchemy_door(source: object) -> Door[Any] | None:
    """The adapter of an engine or sessionmaker; ``None`` for anything else.

    Raises:
        ConfigError: Its sessions can write to several databases, or to one that does not support a
            fence.
    """
    if isinstance(source, Engine):
        # Callers use a function's result after the commit, so objects must not expire.
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
            return _AlchemySession(session, connection, self._forms)
        except BaseException:
            connection.close()
            raise

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
        self._launcher = AsyncSession()
        """A session of no database: sessions are SQLAlchemy's way to start a greenlet."""

    async def open(self) -> Borrowed[AsyncSession]:
        """See :meth:`Door.open`."""
        # Use one greenlet for all calls, because a greenlet costs as much as a statement.
        return await self._launcher.run_sync(self._open_in_greenlet)

    def _open_in_greenlet(self, _: Session) -> _AsyncAlchemySession:
        connection = self._engine.sync_engine.connect()
        try:
            session = self._sessions(bind=AsyncConnection(self._engine, connection))
            _enter(session.sync_session, connection)
            return _AsyncAlchemySession(session, connection, self._forms, self._launcher)
        except BaseException:
            connection.close()
            raise

    async def say(self, statement: str) -> None:
        """See :meth:`Door.say`."""
        async with self._engine.connect() as connection:
            alone = await connection.execution_options(isolation_level="AUTOCOMMIT")
            await alone.exec_driver_sql(statement)


class _BorrowedConnection:
    """The blocking code of both kinds of sessions; an asyncio session runs it in a greenlet."""

    is_lent = False
    """Whether the connection stays with the session that lends it."""

    def __init__(self, sync_session: Session, connection: Connection, forms: Forms | None) -> None:
        self.sync_session = sync_session
        self.connection = connection
        self.forms = None if is_renamed(connection) else forms
        self._root = sync_session.get_transaction()
        is_direct = connection.dialect.driver == "psycopg"
        self._canary = Canary(_driver(connection)) if is_direct else None

    def know(self) -> None:
        if self._canary is not None:
            self._canary.know()

    def standing(self) -> Standing:
        session, connection = self.sync_session, self.connection
        if session.get_transaction() is not self._root:
            return Standing.ENDED
        if not session.is_active or connection.closed or connection.invalidated:
            return Standing.ABORTED
        driver = _driver(connection)
        if driver is None:
            return Standing.ABORTED  # The application detached it.
        if self._canary is None:
            return Standing.UNSURE
        # libpq stores the transaction's status with every answer, which saves a round trip.
        status = driver.info.transaction_status
        if status == _IN_TRANSACTION:
            return Standing.OPEN if self._canary.is_sure() else Standing.UNSURE
        return Standing.ABORTED if status == _IN_ERROR else Standing.ENDED

    def holds_back(self) -> bool:
        """Whether the session has unflushed changes."""
        session = self.sync_session
        is_nested = session.get_nested_transaction() is not None
        return is_nested or bool(session.new or session.dirty or session.deleted)

    def leave_savepoints(self) -> None:
        while (nested := self.sync_session.get_nested_transaction()) is not None:
            nested.commit()  # The commit would do the same later.

    def flush_now(self) -> None:
        self.leave_savepoints()
        if self.holds_back():
            self.sync_session.flush()

    def commit_now(self) -> None:
        try:
            self.sync_session.commit()
        except Exception:
            _abandon(self.connection)
            raise
        except BaseException:
            self.connection.invalidate()
            raise

    def say_now(self, statement: str) -> None:
        self.sync_session.close()
        alone = self.connection.execution_options(isolation_level="AUTOCOMMIT")
        alone.exec_driver_sql(statement)

    def close_now(self) -> None:
        try:
            self.sync_session.close()
        finally:
            if not self.is_lent:
                self.connection.close()

    def give_up(self) -> None:
        # A connection cancelled halfway would stay checked out.
        if not self.is_lent and not self.connection.closed:
            self.connection.invalidate()
            self.connection.close()


class _AlchemySession(_BorrowedConnection):
    @property
    def session(self) -> Session:
        return self.sync_session

    async def ask(self, statement: Any, **values: object) -> StatementResult:
        return ask(self.connection, self.forms, statement, values)

    async def flush(self) -> None:
        self.flush_now()

    async def commit(self, *, is_last: bool = False) -> None:
        del is_last
        self.commit_now()

    async def prepare(self, statement: str) -> str:
        return str(_driver(self.connection).execute(statement).statusmessage)

    async def anew(self) -> _AlchemySession:
        self.sync_session.close()
        session = Session(self.connection)
        _begin(session)
        return _LentAlchemySession(session, self.connection, self.forms)

    async def alone(self, statement: str) -> None:
        self.say_now(statement)

    async def close(self) -> None:
        self.close_now()


class _LentAlchemySession(_AlchemySession):
    is_lent = True


class _AsyncAlchemySession(_BorrowedConnection):
    """Runs blocking calls in a greenlet, and driver calls without one."""

    def __init__(
        self,
        session: AsyncSession,
        connection: Connection,
        forms: Forms | None,
        launcher: AsyncSession,
        sync_session: Session | None = None,
    ) -> None:
        super().__init__(sync_session or session.sync_session, connection, forms)
        self.session = session
        self._launcher = launcher
        self.is_lent = sync_session is not None
        self._is_given_back = False
        self._close_error: BaseException | None = None

    async def ask(self, statement: Any, **values: object) -> StatementResult:
        return await ask_async(self.connection, self.forms, statement, values, self._launcher)

    async def flush(self) -> None:
        if not self.holds_back():
            return
        # The application's session class may override these methods.
        if type(self.session).flush is not AsyncSession.flush:
            await self._launcher.run_sync(lambda _: self.leave_savepoints())
            await self.session.flush()
        else:
            await self._launcher.run_sync(lambda _: self.flush_now())

    async def commit(self, *, is_last: bool = False) -> None:
        if type(self.session).commit is not AsyncSession.commit:
            await self._commit_by_its_own()
        elif is_last:
            await self._launcher.run_sync(self._commit_and_close)
        else:
            await self._launcher.run_sync(lambda _: self.commit_now())

    async def _commit_by_its_own(self) -> None:
        try:
            await self.session.commit()
        except Exception:
            await self._launcher.run_sync(lambda _: _abandon(self.connection))
            raise
        except BaseException:
            await self._launcher.run_sync(lambda _: self.connection.invalidate())
            raise

    def _commit_and_close(self, _: Session) -> None:
        self.commit_now()
        self._is_given_back = True
        try:
            self.close_now()
        except BaseException as error:  # noqa: BLE001 - raised by close()
            # The transaction is committed; a broken connection does not change that.
            self.give_up()
            self._close_error = error

    async def prepare(self, statement: str) -> str:
        return str((await _driver(self.connection).execute(statement)).statusmessage)

    async def anew(self) -> Borrowed[AsyncSession]:
        return await self._launcher.run_sync(self._anew_in_greenlet)

    def _anew_in_greenlet(self, _: Session) -> _AsyncAlchemySession:
        self.sync_session.close()
        session = Session(self.connection)
        _begin(session)
        # The application never sees this session, so an empty asyncio session is enough.
        return _AsyncAlchemySession(
            AsyncSession(), self.connection, self.forms, self._launcher, session
        )

    async def alone(self, statement: str) -> None:
        await self._launcher.run_sync(lambda _: self.say_now(statement))

    async def close(self) -> None:
        if self._is_given_back:
            error, self._close_error = self._close_error, None
            if error is not None:
                raise error
            return
        try:
            await self._launcher.run_sync(lambda _: self.close_now())
        except BaseException:
            await self._launcher.run_sync(lambda _: self.give_up())
            raise


def ask(
    connection: Connection, forms: Forms | None, statement: Any, values: dict[str, object]
) -> StatementResult:
    """Run a statement in an open transaction; with ``forms``, psycopg runs it directly."""
    if forms is not None:
        try:
            return asked(_driver(connection), forms, statement, values)
        except Exception as error:  # noqa: BLE001 - translated
            _raise_translated(error, connection, forms, statement, values)
    return _ask_alchemy(connection, statement, values)


async def ask_async(
    connection: Connection,
    forms: Forms | None,
    statement: Any,
    values: dict[str, object],
    launcher: AsyncSession,
) -> StatementResult:
    """The same for asyncio; ``launcher`` is a session without a database."""
    if forms is not None:
        try:
            return await awaited(_driver(connection), forms, statement, values)
        except Exception as error:  # noqa: BLE001 - translated
            _raise_translated(error, connection, forms, statement, values)
    return await launcher.run_sync(lambda _: _ask_alchemy(connection, statement, values))


def _ask_alchemy(
    connection: Connection, statement: Any, values: dict[str, object]
) -> StatementResult:
    result = connection.execute(_executable(statement), values)
    rows = [tuple(row) for row in result] if result.returns_rows else []
    return StatementResult(result.rowcount, rows)


def _forms(engine: Engine | AsyncEngine) -> Forms | None:
    """Compiled statements that psycopg runs directly, at half the cost."""
    return psycopg_forms() if engine.dialect.driver == "psycopg" else None


def is_renamed(connection: Connection) -> bool:
    """Whether SQLAlchemy renames tables, so that only it can run the statements."""
    return "schema_translate_map" in connection.get_execution_options()


def is_psycopg(connection: Connection) -> bool:
    """Whether its driver is psycopg, blocking or asyncio."""
    return connection.dialect.driver == "psycopg"


def commits_each(connection: Connection) -> bool:
    """Whether a connection reports that it commits each statement.

    A driver that does not report it is trusted, because a query would cost every transaction a
    round trip.
    """
    proxied = connection.connection
    drivers = (proxied.driver_connection, proxied.dbapi_connection)
    return any(driver is not None and _commits_each(driver) for driver in drivers)


def _commits_each(driver: Any) -> bool:
    in_transaction = getattr(driver, "in_transaction", None)  # SQLite drivers report it.
    if isinstance(in_transaction, bool) and hasattr(driver, "isolation_level"):
        is_off = driver.isolation_level is None or getattr(driver, "autocommit", None) is True
        return is_off and not in_transaction
    if callable(said := getattr(driver, "get_autocommit", None)):
        return bool(said())  # MySQL drivers.
    if getattr(driver, "autocommit", False) is not True:
        return False
    status = getattr(getattr(driver, "info", None), "transaction_status", _IDLE)
    return bool(status == _IDLE)


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _raise_translated(
    error: Exception,
    connection: Connection,
    forms: Forms,
    statement: Any,
    values: dict[str, object],
) -> None:
    """Raise psycopg's error as SQLAlchemy's.

    A lost connection is not raised: SQLAlchemy must detect it itself, so that it discards all other
    connections of its pool.
    """
    if failure(error) is Failure.LOST and _driver(connection).closed:
        return
    words, given = forms.of(statement, values)
    engine, base = connection.engine, connection.dialect.loaded_dbapi.Error
    raise DBAPIError.instance(
        words, given, error, base, hide_parameters=engine.hide_parameters, dialect=engine.dialect
    ) from error


def _enter(session: Session, connection: Connection) -> None:
    driver = _driver(connection)
    is_direct = connection.dialect.driver == "psycopg"
    # A session joins an open transaction and does not commit it. Otherwise, a previous user's
    # uncommitted work would be committed with ours.
    if connection.in_transaction():
        is_used = True
    elif not is_direct:
        is_used = bool(getattr(driver, "in_transaction", False))  # SQLite drivers report it.
    else:
        # A pool that resets its connections returns clean ones. Only an event listener may have run
        # a statement, and psycopg begins a transaction with the first one.
        is_reset = connection.engine.pool._reset_on_return is not ResetStyle.reset_none  # noqa: SLF001
        is_used = not is_reset and driver.info.transaction_status != _IDLE
    if is_used:
        connection.invalidate()  # No other code would end its transaction.
        raise DatabaseFailed("the source gave a connection that is in a transaction already")
    session.begin()
    if session.connection() is not connection:
        session.close()
        raise ConfigError("sessions that choose their connection themselves write past the fence")
    if driver.autocommit if is_direct else commits_each(connection):
        raise FenceUnsafe(
            "the source gave a connection that commits each statement: switch autocommit off"
        )


def _begin(session: Session) -> None:
    session.begin()
    session.connection()


def _abandon(connection: Connection) -> None:
    """Roll back after a failed commit.

    SQLAlchemy would return the connection as it is, and its next user would find uncommitted rows.
    """
    if connection.closed or connection.invalidated:
        return
    try:
        connection.dialect.do_rollback(connection.connection)
    except Exception as error:  # noqa: BLE001 - it is not used again
        connection.invalidate(error)


def _executable(statement: Any) -> Executable:
    return text(statement) if isinstance(statement, str) else statement
