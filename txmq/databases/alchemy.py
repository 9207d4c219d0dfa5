"""The adapter for SQLAlchemy: engines and sessionmakers, blocking and asyncio.

SQLAlchemy's asyncio sessions are blocking sessions that run in a greenlet. So everything is written
once, for blocking sessions; asyncio sessions run the same coroutines in a greenlet. Only statements
that psycopg runs directly need no greenlet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, TypeVar, cast

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
)
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool.base import ResetStyle
from sqlalchemy.util import await_only

from txmq.databases.adapter import DatabaseAdapter, DatabaseSession, SessionStatus, StatementResult
from txmq.databases.canary import Canary
from txmq.databases.dialects import kind_of
from txmq.databases.failures import Failure, failure
from txmq.databases.guarded_transaction import drive
from txmq.databases.postgres import PsycopgForms, psycopg_execute, result_of
from txmq.errors import ConfigError, DatabaseFailed, FenceUnsafe

__all__ = ["StandingGreenlet", "alchemy_adapter", "commits_each", "execute"]

T = TypeVar("T")

_IDLE: Final = 0
_IN_TRANSACTION: Final = 2
_IN_ERROR: Final = 3


def alchemy_adapter(source: object) -> DatabaseAdapter[Any] | None:
    """The adapter of an engine or sessionmaker; ``None`` for anything else.

    Raises:
        ConfigError: Its sessions can write to several databases, or to one that does not support a
            fence, such as one in memory.
    """
    # Callers use a function's result after the commit, so objects must not expire.
    if isinstance(source, Engine):
        return AlchemyAdapter(sessionmaker(source, expire_on_commit=False), source)
    if isinstance(source, AsyncEngine):
        return AlchemyAdapter(async_sessionmaker(source, expire_on_commit=False), source)
    if isinstance(source, async_sessionmaker):
        return AlchemyAdapter(source, _bound(source.kw, AsyncEngine))
    if isinstance(source, sessionmaker):
        return AlchemyAdapter(source, _bound(source.kw, Engine))
    return None


def _refuse_memory(engine: Engine | AsyncEngine) -> None:
    """Refuse an SQLite database in memory: other threads would miss its tables."""
    if engine.dialect.name != "sqlite":
        return
    url = engine.url
    name = url.database or ":memory:"
    if name.startswith((":memory:", "file::memory:")) or url.query.get("mode") == "memory":
        raise ConfigError(
            f"{url} is an in-memory SQLite database: other threads do not see it, and nobody does "
            "after a crash; name a file, as in sqlite:///bank.db (with creator=, too)"
        )


def _bound(settings: dict[str, Any], wanted: type[Any]) -> Any:
    engine = settings.get("bind")
    if not isinstance(engine, wanted):
        raise ConfigError(f"a sessionmaker for a resource must be bound to an {wanted.__name__}")
    if settings.get("binds") or settings.get("twophase"):
        raise ConfigError(
            "sessions with several databases have no single commit, so one fence cannot guard it"
        )
    return engine


class AlchemyAdapter:
    """Sessions of an engine, blocking or asyncio.

    Args:
        sessions: Makes the sessions.
        engine: The engine.
    """

    problems = (SQLAlchemyError, OSError)

    def __init__(self, sessions: Callable[..., Any], engine: Engine | AsyncEngine) -> None:
        _refuse_memory(engine)
        self.kind: str = kind_of(engine.dialect.name)
        self.is_blocking: bool = isinstance(engine, Engine)
        self.can_prepare: bool = engine.dialect.driver == "psycopg"
        self._sessions = sessions
        self._engine = engine
        self._blocking_engine = engine if isinstance(engine, Engine) else engine.sync_engine
        # psycopg runs these statements directly, at half the cost.
        self._forms = PsycopgForms() if self.can_prepare else None
        self._launcher = None if self.is_blocking else AsyncSession()

    async def open(self, *, begins_at_once: bool = False) -> DatabaseSession[Any]:
        """See :meth:`DatabaseAdapter.open`; psycopg sends BEGIN with the first statement anyway."""
        del begins_at_once
        if self._launcher is None:
            return self._open(None)
        greenlet = StandingGreenlet(self._launcher)
        return await greenlet.run(lambda: self._open(greenlet))

    def _open(self, greenlet: StandingGreenlet | None) -> _AlchemySession:
        engine = self._engine
        connection = self._blocking_engine.connect()
        try:
            if isinstance(engine, Engine):
                session = plain = self._sessions(bind=connection)
            else:
                session = self._sessions(bind=AsyncConnection(engine, connection))
                plain = session.sync_session
            _enter(plain, connection)
            kind = _AlchemySession if greenlet is None else _AsyncAlchemySession
            return kind(session, plain, connection, self._forms, greenlet)
        except BaseException:
            connection.close()
            raise

    async def execute_outside(self, statement: str) -> None:
        """See :meth:`DatabaseAdapter.execute_outside`."""

        def work() -> None:
            with self._blocking_engine.connect() as connection:
                _execute_outside(connection, statement)

        if self._launcher is None:
            work()
        else:
            await self._launcher.run_sync(lambda _: work())


def _enter(session: Session, connection: Connection) -> None:
    driver: Any = connection.connection.driver_connection
    is_direct = connection.dialect.driver == "psycopg"
    # If SQLAlchemy has a transaction open, the session would join it and never commit it. If only
    # the driver has, a previous user's uncommitted work would be committed with ours.
    if connection.in_transaction():
        is_used = True
    elif not is_direct:
        is_used = bool(getattr(driver, "in_transaction", False))  # SQLite drivers report it.
    else:
        # A pool that resets its connections returns clean ones. If psycopg has a transaction open
        # anyway, an event listener began it with a statement after the reset.
        is_reset = connection.engine.pool._reset_on_return is not ResetStyle.reset_none  # noqa: SLF001
        is_used = not is_reset and driver.info.transaction_status != _IDLE
    if is_used:
        connection.invalidate()  # No other code would end its transaction.
        raise DatabaseFailed("the source returned a connection that is already in a transaction")
    session.begin()
    if session.connection() is not connection:
        session.close()
        raise ConfigError("sessions that choose their own connection would bypass the fence")
    if driver.autocommit if is_direct else commits_each(connection):
        raise FenceUnsafe(
            "the source returned a connection that commits each statement: switch autocommit off"
        )


def _execute_outside(connection: Connection, statement: str) -> None:
    connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql(statement)


class _AlchemySession:
    """A blocking session: none of its coroutines suspends.

    Args:
        session: The application's session.
        plain: The blocking session: ``session`` itself, or the one inside an asyncio session.
        connection: The connection of both.
        forms: Statements compiled for psycopg, if that is the driver.
        greenlet: The greenlet that opened an asyncio session.
        is_lent: Whether the connection belongs to another session, which returns it.
    """

    def __init__(
        self,
        session: Any,
        plain: Session,
        connection: Connection,
        forms: PsycopgForms | None,
        greenlet: StandingGreenlet | None,
        *,
        is_lent: bool = False,
    ) -> None:
        self.session = session
        self._plain = plain
        self._connection = connection
        # Only SQLAlchemy can run statements on tables that it renames.
        is_renamed = "schema_translate_map" in connection.get_execution_options()
        self._forms = None if is_renamed else forms
        self._greenlet = greenlet
        self._is_lent = is_lent
        self._root = plain.get_transaction()
        is_direct = connection.dialect.driver == "psycopg"
        self.canary = Canary(connection.connection.driver_connection) if is_direct else None

    def status(self) -> SessionStatus:
        plain, connection = self._plain, self._connection
        if plain.get_transaction() is not self._root:
            return SessionStatus.ENDED
        if not plain.is_active or connection.closed or connection.invalidated:
            return SessionStatus.ABORTED
        driver: Any = connection.connection.driver_connection
        if driver is None:
            return SessionStatus.ABORTED  # The application detached it.
        if self.canary is None:
            return SessionStatus.UNSURE
        # libpq stores the transaction's status with every answer, which saves a round trip.
        status = driver.pgconn.transaction_status
        if status == _IN_TRANSACTION:
            return SessionStatus.OPEN if self.canary.is_sure() else SessionStatus.UNSURE
        return SessionStatus.ABORTED if status == _IN_ERROR else SessionStatus.ENDED

    async def execute(self, statement: Any, **values: object) -> StatementResult:
        run = None if self._greenlet is None else self._greenlet.run
        return await execute(self._connection, self._forms, statement, values, run)

    async def flush(self) -> None:
        plain, session = self._plain, self.session
        while (nested := plain.get_nested_transaction()) is not None:
            nested.commit()  # The commit would end it later anyway.
        # The application's session class may override the method.
        if isinstance(session, AsyncSession) and type(session).flush is not AsyncSession.flush:
            await_only(session.flush())
        elif plain.new or plain.dirty or plain.deleted:
            plain.flush()

    async def commit(self, *, is_last: bool = False) -> None:
        del is_last
        session, connection = self.session, self._connection
        is_asyncio = isinstance(session, AsyncSession)
        try:
            if is_asyncio and type(session).commit is not AsyncSession.commit:
                await_only(session.commit())
            else:
                self._plain.commit()
        except Exception:
            _abandon(connection)
            raise
        except BaseException:
            connection.invalidate()
            raise

    async def prepare(self, statement: str) -> str:
        driver: Any = self._connection.connection.driver_connection
        return str((await result_of(driver.execute(statement))).statusmessage)

    async def begin_again(self) -> _AlchemySession:
        connection = self._connection
        self._plain.close()
        plain = Session(connection)
        plain.begin()
        plain.connection()
        # The application never sees this session, so a blocking one will do for asyncio, too.
        return type(self)(plain, plain, connection, self._forms, self._greenlet, is_lent=True)

    async def execute_outside(self, statement: str) -> None:
        self._plain.close()
        _execute_outside(self._connection, statement)

    async def close(self) -> None:
        connection = self._connection
        try:
            try:
                self._plain.close()
            finally:
                if not self._is_lent:
                    connection.close()
        except BaseException:
            # A connection whose close was interrupted would stay checked out.
            if not self._is_lent and not connection.closed:
                connection.invalidate()
                connection.close()
            raise


class _AsyncAlchemySession(_AlchemySession):
    """An asyncio session: runs the coroutines of a blocking session in its greenlet."""

    _is_closed = False
    _close_error: BaseException | None = None

    def _run(
        self, work: Coroutine[Any, Any, T], *, is_last: bool = False
    ) -> Coroutine[Any, Any, T]:
        assert self._greenlet is not None, "a session for asyncio"
        return self._greenlet.run(lambda: drive(work), is_last=is_last)

    async def flush(self) -> None:
        plain = self._plain
        is_nested = plain.get_nested_transaction() is not None
        if is_nested or plain.new or plain.dirty or plain.deleted:
            await self._run(super().flush())

    async def commit(self, *, is_last: bool = False) -> None:
        work = self._commit_and_close() if is_last else super().commit()
        await self._run(work, is_last=is_last)

    async def _commit_and_close(self) -> None:
        await super().commit()
        self._is_closed = True
        try:
            await super().close()
        except BaseException as error:  # noqa: BLE001 - raised by close()
            # The transaction is committed; a broken connection does not change that.
            self._close_error = error

    async def begin_again(self) -> _AlchemySession:
        return await self._run(super().begin_again())

    async def execute_outside(self, statement: str) -> None:
        await self._run(super().execute_outside(statement))

    async def close(self) -> None:
        if not self._is_closed:
            await self._run(super().close(), is_last=True)
        elif self._close_error is not None:
            error, self._close_error = self._close_error, None
            raise error


async def execute(
    connection: Connection,
    forms: PsycopgForms | None,
    statement: Any,
    values: dict[str, object],
    run: Callable[[Callable[[], StatementResult]], Awaitable[StatementResult]] | None,
) -> StatementResult:
    """Run a statement in an open transaction.

    Args:
        connection: The blocking connection.
        forms: psycopg runs the statement directly, from these; without them SQLAlchemy runs it.
        statement: An SQLAlchemy statement or a text.
        values: Its values.
        run: Runs a function in a greenlet, for asyncio.
    """
    if forms is not None:
        driver: Any = connection.connection.driver_connection
        try:
            return await psycopg_execute(driver, forms, statement, values)
        except Exception as error:  # noqa: BLE001 - translated
            _raise_translated(error, connection, forms, statement, values)
    if run is not None:
        return await run(lambda: drive(execute(connection, None, statement, values, None)))
    found = connection.execute(text(statement) if isinstance(statement, str) else statement, values)
    rows = [tuple(row) for row in found] if found.returns_rows else []
    return StatementResult(found.rowcount, rows)


def commits_each(connection: Connection) -> bool:
    """Whether a connection reports that it commits each statement.

    A driver that does not report it is trusted, because a query would cost every transaction a
    round trip.
    """
    proxied = connection.connection
    driver: Any = proxied.driver_connection
    adapted: Any = proxied.dbapi_connection
    for reporter in (driver,) if adapted is driver else (driver, adapted):
        in_transaction = getattr(reporter, "in_transaction", None)  # SQLite drivers report it.
        if isinstance(in_transaction, bool) and hasattr(reporter, "isolation_level"):
            autocommit = getattr(reporter, "autocommit", None)
            is_off = reporter.isolation_level is None or autocommit is True
            commits = is_off and not in_transaction
        elif callable(get_autocommit := getattr(reporter, "get_autocommit", None)):
            commits = bool(get_autocommit())  # MySQL drivers.
        else:
            status = getattr(getattr(reporter, "info", None), "transaction_status", _IDLE)
            commits = getattr(reporter, "autocommit", False) is True and status == _IDLE
        if commits:
            return True
    return False


def _raise_translated(
    error: Exception,
    connection: Connection,
    forms: PsycopgForms,
    statement: Any,
    values: dict[str, object],
) -> None:
    """Raise psycopg's error as SQLAlchemy's.

    A lost connection is not raised: SQLAlchemy must detect it itself, so that it discards all other
    connections of its pool.
    """
    driver: Any = connection.connection.driver_connection
    if failure(error) is Failure.LOST and driver.closed:
        return
    words, given = forms.of(statement, values)
    engine, base = connection.engine, connection.dialect.loaded_dbapi.Error
    raise DBAPIError.instance(
        words, given, error, base, hide_parameters=engine.hide_parameters, dialect=engine.dialect
    ) from error


def _abandon(connection: Connection) -> None:
    """Roll back after a failed commit.

    SQLAlchemy would return the connection without a rollback, and its next user would find
    uncommitted rows.
    """
    if connection.closed or connection.invalidated:
        return
    try:
        connection.dialect.do_rollback(connection.connection)
    except Exception as error:  # noqa: BLE001 - it is not used again
        connection.invalidate(error)


_PAUSE: Final = object()


class _Pause:
    """Awaited inside the greenlet: its function has returned, and it waits for the next one."""

    def __await__(self) -> Generator[object, None, None]:
        yield _PAUSE


class _Job:
    """A function for the greenlet, and its result.

    A paused greenlet holds only this: a cycle through its frames would never be collected.
    """

    __slots__ = ("error", "is_last", "result", "work")

    def __init__(self) -> None:
        self.work: Callable[[], object] | None = None
        self.is_last = False
        self.result: object = None
        self.error: BaseException | None = None

    def serve(self, _: Session) -> None:
        while (work := self.work) is not None:
            try:
                self.result = work()
            except GeneratorExit:
                raise  # Nothing awaits it any more.
            except BaseException as error:  # noqa: BLE001 - the caller receives it
                self.error = error
                return
            if self.is_last:
                return
            del work
            await_only(_Pause())


class StandingGreenlet:
    """Runs functions in a greenlet of the running task, one after another.

    It starts with the first function, and ends with the last one or with one that raises. Later
    functions start it again.

    Args:
        launcher: A session without a database; SQLAlchemy starts greenlets only through sessions.
    """

    __slots__ = ("_inside", "_job", "_launcher")

    def __init__(self, launcher: AsyncSession) -> None:
        self._launcher = launcher
        self._inside: Coroutine[Any, Any, None] | None = None
        self._job = _Job()

    async def run(self, work: Callable[[], T], *, is_last: bool = False) -> T:
        """Run a function, which may await through SQLAlchemy's ``await_only``; return its result.

        Args:
            work: The function.
            is_last: Whether the greenlet ends with it.

        Raises:
            Exception: What the function raised.
        """
        job = self._job
        job.work, job.is_last = work, is_last
        await self
        error, result = job.error, job.result
        job.work = job.error = job.result = None
        if error is None:
            return cast("T", result)
        try:
            raise error
        finally:
            del error  # Its traceback refers to this frame.

    def __await__(self) -> Generator[object, object, None]:
        """Let the greenlet run until it pauses or ends."""
        inside = self._inside
        if inside is None:
            inside = self._inside = self._launcher.run_sync(self._job.serve)
        try:
            waits_for = inside.send(None)
            while waits_for is not _PAUSE:
                try:
                    found = yield waits_for
                except BaseException as error:  # noqa: BLE001 - the greenlet receives it
                    waits_for = inside.throw(error)
                else:
                    waits_for = inside.send(found)
        except StopIteration:
            self._inside = None
