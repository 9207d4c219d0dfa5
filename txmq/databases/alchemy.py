"""Adapters for SQLAlchemy: engines and sessionmakers, blocking and asyncio."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
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
from txmq.databases.postgres import (
    PsycopgForms,
    psycopg_execute,
    psycopg_execute_async,
    psycopg_forms,
)
from txmq.errors import ConfigError, DatabaseFailed, FenceUnsafe

__all__ = ["StandingGreenlet", "alchemy_adapter", "commits_each", "execute", "execute_async"]

T = TypeVar("T")

_PROBLEMS: Final = (SQLAlchemyError, OSError)
_IDLE: Final = 0
_IN_TRANSACTION: Final = 2
_IN_ERROR: Final = 3


def alchemy_adapter(source: object) -> DatabaseAdapter[Any] | None:
    """The adapter of an engine or sessionmaker; ``None`` for anything else.

    Raises:
        ConfigError: Its sessions can write to several databases, or to one that does not support a
            fence, such as one in memory.
    """
    if isinstance(source, Engine):
        # Callers use a function's result after the commit, so objects must not expire.
        return AlchemyAdapter(sessionmaker(source, expire_on_commit=False), source)
    if isinstance(source, AsyncEngine):
        return AsyncAlchemyAdapter(async_sessionmaker(source, expire_on_commit=False), source)
    if isinstance(source, async_sessionmaker):
        bound = _bound(source.kw, AsyncEngine)
        return AsyncAlchemyAdapter(source, bound)
    if isinstance(source, sessionmaker):
        bound = _bound(source.kw, Engine)
        return AlchemyAdapter(source, bound)
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
        raise ConfigError(f"a sessionmaker for a resource is bound to an {wanted.__name__}")
    if settings.get("binds") or settings.get("twophase"):
        raise ConfigError(
            "sessions with several databases have no single commit, so one fence cannot guard it"
        )
    return engine


class AlchemyAdapter:
    """Sessions of a blocking engine."""

    is_blocking = True
    problems = _PROBLEMS

    def __init__(self, sessions: Callable[..., Session], engine: Engine) -> None:
        _refuse_memory(engine)
        self.kind: str = kind_of(engine.dialect.name)
        self.can_prepare: bool = engine.dialect.driver == "psycopg"
        self._sessions = sessions
        self._engine = engine
        self._forms = _forms(engine)

    async def open(self, *, begins_at_once: bool = False) -> DatabaseSession[Session]:
        """See :meth:`DatabaseAdapter.open`; psycopg sends BEGIN with the first statement anyway."""
        del begins_at_once
        connection = self._engine.connect()
        try:
            session = self._sessions(bind=connection)
            _enter(session, connection)
            return _AlchemySession(session, connection, self._forms)
        except BaseException:
            connection.close()
            raise

    async def execute_outside(self, statement: str) -> None:
        """See :meth:`DatabaseAdapter.execute_outside`."""
        with self._engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql(statement)


class AsyncAlchemyAdapter:
    """Sessions of an asyncio engine."""

    is_blocking = False
    problems = _PROBLEMS

    def __init__(self, sessions: Callable[..., AsyncSession], engine: AsyncEngine) -> None:
        _refuse_memory(engine)
        self.kind: str = kind_of(engine.dialect.name)
        self.can_prepare: bool = engine.dialect.driver == "psycopg"
        self._sessions = sessions
        self._engine = engine
        self._forms = _forms(engine)
        self._launcher = AsyncSession()
        """A session of no database: sessions are SQLAlchemy's way to start a greenlet."""

    async def open(self, *, begins_at_once: bool = False) -> DatabaseSession[AsyncSession]:
        """See :meth:`DatabaseAdapter.open`."""
        del begins_at_once
        greenlet = StandingGreenlet(self._launcher)
        session, inner = await greenlet.run(self._open_in_greenlet)
        return _AsyncAlchemySession(session, inner, self._launcher, greenlet)

    def _open_in_greenlet(self) -> tuple[AsyncSession, _AlchemySession]:
        connection = self._engine.sync_engine.connect()
        try:
            session = self._sessions(bind=AsyncConnection(self._engine, connection))
            _enter(session.sync_session, connection)
            return session, _AlchemySession(session.sync_session, connection, self._forms)
        except BaseException:
            connection.close()
            raise

    async def execute_outside(self, statement: str) -> None:
        """See :meth:`DatabaseAdapter.execute_outside`."""
        async with self._engine.connect() as connection:
            alone = await connection.execution_options(isolation_level="AUTOCOMMIT")
            await alone.exec_driver_sql(statement)


class _AlchemySession:
    """A blocking session. An asyncio session drives its coroutines in a greenlet."""

    def __init__(
        self,
        session: Session,
        connection: Connection,
        forms: PsycopgForms | None,
        *,
        is_lent: bool = False,
    ) -> None:
        self.session = session
        self.connection = connection
        # Only SQLAlchemy can run statements on tables that it renames.
        is_renamed = "schema_translate_map" in connection.get_execution_options()
        self.forms = None if is_renamed else forms
        self._is_lent = is_lent
        """Whether the connection stays with the session that lends it."""
        self._root = session.get_transaction()
        is_direct = connection.dialect.driver == "psycopg"
        self.canary = Canary(connection.connection.driver_connection) if is_direct else None

    def status(self) -> SessionStatus:
        session, connection = self.session, self.connection
        if session.get_transaction() is not self._root:
            return SessionStatus.ENDED
        if not session.is_active or connection.closed or connection.invalidated:
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
        return execute(self.connection, self.forms, statement, values)

    async def flush(self) -> None:
        session = self.session
        if session.get_nested_transaction() is not None:
            _release_savepoints(session)
        if session.new or session.dirty or session.deleted:
            session.flush()

    async def commit(self, *, is_last: bool = False) -> None:
        del is_last
        try:
            self.session.commit()
        except Exception:
            _abandon(self.connection)
            raise
        except BaseException:
            self.connection.invalidate()
            raise

    async def prepare(self, statement: str) -> str:
        driver: Any = self.connection.connection.driver_connection
        return str(driver.execute(statement).statusmessage)

    async def begin_again(self) -> _AlchemySession:
        self.session.close()
        session = Session(self.connection)
        session.begin()
        session.connection()
        return _AlchemySession(session, self.connection, self.forms, is_lent=True)

    async def execute_outside(self, statement: str) -> None:
        self.session.close()
        alone = self.connection.execution_options(isolation_level="AUTOCOMMIT")
        alone.exec_driver_sql(statement)

    async def close(self) -> None:
        try:
            self.session.close()
        finally:
            if not self._is_lent:
                self.connection.close()

    def give_up(self) -> None:
        """Close the connection of a session whose close was interrupted."""
        # A connection cancelled halfway would stay checked out.
        if not self._is_lent and not self.connection.closed:
            self.connection.invalidate()
            self.connection.close()


class _AsyncAlchemySession:
    """Drives a blocking session in a greenlet; driver calls need no greenlet.

    Args:
        session: The application's session.
        inner: The blocking session below it.
        launcher: Starts greenlets.
        greenlet: The one that has opened the session.
    """

    def __init__(
        self,
        session: AsyncSession,
        inner: _AlchemySession,
        launcher: AsyncSession,
        greenlet: StandingGreenlet,
    ) -> None:
        self.session = session
        self.canary = inner.canary
        self._inner = inner
        self._launcher = launcher
        self._greenlet = greenlet
        self._is_given_back = False
        self._close_error: BaseException | None = None

    def status(self) -> SessionStatus:
        return self._inner.status()

    def execute(self, statement: Any, **values: object) -> Coroutine[Any, Any, StatementResult]:
        inner = self._inner
        return execute_async(inner.connection, inner.forms, statement, values, self._launcher)

    def _drive(
        self, work: Coroutine[Any, Any, T], *, is_last: bool = False
    ) -> Coroutine[Any, Any, T]:
        return self._greenlet.run(lambda: drive(work), is_last=is_last)

    async def flush(self) -> None:
        session = self._inner.session
        is_nested = session.get_nested_transaction() is not None
        if not (is_nested or session.new or session.dirty or session.deleted):
            return
        # The application's session class may override these methods.
        if type(self.session).flush is not AsyncSession.flush:
            await self._launcher.run_sync(lambda _: _release_savepoints(session))
            await self.session.flush()
        else:
            await self._drive(self._inner.flush())

    def commit(self, *, is_last: bool = False) -> Coroutine[Any, Any, None]:
        if type(self.session).commit is not AsyncSession.commit:
            return self._commit_by_its_own()
        if is_last:
            return self._drive(self._commit_and_close(), is_last=True)
        return self._drive(self._inner.commit())

    async def _commit_by_its_own(self) -> None:
        connection = self._inner.connection
        try:
            await self.session.commit()
        except Exception:
            await self._launcher.run_sync(lambda _: _abandon(connection))
            raise
        except BaseException:
            await self._launcher.run_sync(lambda _: connection.invalidate())
            raise

    async def _commit_and_close(self) -> None:
        await self._inner.commit()
        self._is_given_back = True
        try:
            await self._inner.close()
        except BaseException as error:  # noqa: BLE001 - raised by close()
            # The transaction is committed; a broken connection does not change that.
            self._inner.give_up()
            self._close_error = error

    async def prepare(self, statement: str) -> str:
        driver: Any = self._inner.connection.connection.driver_connection
        return str((await driver.execute(statement)).statusmessage)

    async def begin_again(self) -> _AsyncAlchemySession:
        inner = await self._drive(self._inner.begin_again())
        # The application never sees this session, so an empty asyncio session is enough.
        return _AsyncAlchemySession(AsyncSession(), inner, self._launcher, self._greenlet)

    async def execute_outside(self, statement: str) -> None:
        await self._drive(self._inner.execute_outside(statement))

    async def close(self) -> None:
        if self._is_given_back:
            error, self._close_error = self._close_error, None
            if error is not None:
                raise error
            return
        try:
            await self._drive(self._inner.close(), is_last=True)
        except BaseException:
            await self._launcher.run_sync(lambda _: self._inner.give_up())
            raise


def execute(
    connection: Connection, forms: PsycopgForms | None, statement: Any, values: dict[str, object]
) -> StatementResult:
    """Run a statement in an open transaction; with ``forms``, psycopg runs it directly."""
    if forms is not None:
        driver: Any = connection.connection.driver_connection
        try:
            return psycopg_execute(driver, forms, statement, values)
        except Exception as error:  # noqa: BLE001 - translated
            _raise_translated(error, connection, forms, statement, values)
    found = connection.execute(text(statement) if isinstance(statement, str) else statement, values)
    rows = [tuple(row) for row in found] if found.returns_rows else []
    return StatementResult(found.rowcount, rows)


async def execute_async(
    connection: Connection,
    forms: PsycopgForms | None,
    statement: Any,
    values: dict[str, object],
    launcher: AsyncSession,
) -> StatementResult:
    """The same for asyncio; ``launcher`` is a session without a database."""
    if forms is not None:
        driver: Any = connection.connection.driver_connection
        try:
            return await psycopg_execute_async(driver, forms, statement, values)
        except Exception as error:  # noqa: BLE001 - translated
            _raise_translated(error, connection, forms, statement, values)
    return await launcher.run_sync(lambda _: execute(connection, None, statement, values))


def _forms(engine: Engine | AsyncEngine) -> PsycopgForms | None:
    """Compiled statements that psycopg runs directly, at half the cost."""
    return psycopg_forms() if engine.dialect.driver == "psycopg" else None


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


def _enter(session: Session, connection: Connection) -> None:
    driver: Any = connection.connection.driver_connection
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


def _release_savepoints(session: Session) -> None:
    while (nested := session.get_nested_transaction()) is not None:
        nested.commit()  # The commit would do the same later.


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
        launcher: A session of no database: sessions are SQLAlchemy's way to start a greenlet.
    """

    __slots__ = ("_inside", "_job", "_launcher")

    def __init__(self, launcher: AsyncSession) -> None:
        self._launcher = launcher
        self._inside: Coroutine[Any, Any, None] | None = None
        self._job = _Job()

    async def run(self, work: Callable[[], T], *, is_last: bool = False) -> T:
        """Run a function that awaits as SQLAlchemy's own do, and return its result.

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
