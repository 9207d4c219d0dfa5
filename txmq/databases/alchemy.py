"""Doors for SQLAlchemy: engines and sessionmakers, blocking and not."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

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

from txmq.databases.dialects import kind_of
from txmq.databases.door import Answer, Borrowed, Door, Standing, drive
from txmq.databases.failures import Failure, failure
from txmq.databases.forms import Forms
from txmq.databases.postgres import asked, awaited, psycopg_forms
from txmq.databases.shown import Shown
from txmq.errors import ConfigError, DatabaseFailed, FenceUnsafe

__all__ = ["alchemy_door", "ask", "ask_async", "commits_each", "is_psycopg", "is_renamed"]

T = TypeVar("T")

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
            return _Borrowed(session, connection, self._forms)
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
        """Of no database: whoever wants a greenlet asks a session for it."""

    async def open(self) -> Borrowed[AsyncSession]:
        """See :meth:`Door.open`."""
        # In one go: a greenlet costs as much as a statement.
        return await self._launcher.run_sync(lambda _: self._opened())

    def _opened(self) -> _AsyncBorrowed:
        connection = self._engine.sync_engine.connect()
        try:
            session = self._sessions(bind=AsyncConnection(self._engine, connection))
            _enter(session.sync_session, connection)
            plain = _Borrowed(session.sync_session, connection, self._forms)
            return _AsyncBorrowed(session, plain, self._launcher)
        except BaseException:
            connection.close()
            raise

    async def say(self, statement: str) -> None:
        """See :meth:`Door.say`."""
        async with self._engine.connect() as connection:
            alone = await connection.execution_options(isolation_level="AUTOCOMMIT")
            await alone.exec_driver_sql(statement)


class _Borrowed:
    def __init__(self, session: Session, connection: Connection, forms: Forms | None) -> None:
        self.session = session
        self.connection = connection
        self.forms = None if is_renamed(connection) else forms
        self._root = session.get_transaction()
        self._shown = Shown(_driver(connection)) if is_psycopg(connection) else None

    async def ask(self, statement: Any, **values: object) -> Answer:
        return ask(self.connection, self.forms, statement, values)

    def keeps_back(self) -> bool:
        session = self.session
        is_nested = session.get_nested_transaction() is not None
        return is_nested or bool(session.new or session.dirty or session.deleted)

    def leave_savepoints(self) -> None:
        while (nested := self.session.get_nested_transaction()) is not None:
            nested.commit()  # As the commit would, to which it was left.

    async def flush(self) -> None:
        self.leave_savepoints()
        if self.keeps_back():
            self.session.flush()

    def know(self) -> None:
        if self._shown is not None:
            self._shown.know()

    def standing(self) -> Standing:
        return _standing(self.session, self._root, self.connection, self._shown)

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
        return str(_driver(self.connection).execute(statement).statusmessage)

    async def anew(self) -> _Borrowed:
        self.session.close()
        session = Session(self.connection)
        _begin(session)
        return _Lent(session, self.connection, self.forms)

    async def alone(self, statement: str) -> None:
        self.session.close()
        alone = self.connection.execution_options(isolation_level="AUTOCOMMIT")
        alone.exec_driver_sql(statement)

    async def close(self) -> None:
        try:
            self.session.close()
        finally:
            self.connection.close()

    def give_up(self) -> None:
        if not self.connection.closed:  # Cut off in the middle, it would stay taken.
            self.connection.invalidate()
            self.connection.close()


class _Lent(_Borrowed):
    async def close(self) -> None:
        self.session.close()

    def give_up(self) -> None:
        """Whoever has lent it still has it."""


class _AsyncBorrowed:
    """What its blocking twin does, in a greenlet; the driver is asked without one."""

    def __init__(self, session: AsyncSession, plain: _Borrowed, launcher: AsyncSession) -> None:
        self.session = session
        self._plain = plain
        self._launcher = launcher
        self._is_given_back = False
        self._unreturned: BaseException | None = None

    async def _there(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._launcher.run_sync(lambda _: drive(work()))

    def _has_its_own(self, method: str) -> bool:
        """Whether the application's class of sessions does something about it that we must not
        pass by.
        """
        return getattr(type(self.session), method) is not getattr(AsyncSession, method)

    async def ask(self, statement: Any, **values: object) -> Answer:
        plain = self._plain
        return await ask_async(plain.connection, plain.forms, statement, values, self._launcher)

    async def flush(self) -> None:
        if not self._plain.keeps_back():
            return
        if self._has_its_own("flush"):
            await self._launcher.run_sync(lambda _: self._plain.leave_savepoints())
            await self.session.flush()
        else:
            await self._there(self._plain.flush)

    def know(self) -> None:
        self._plain.know()

    def standing(self) -> Standing:
        return self._plain.standing()

    async def commit(self, *, is_last: bool = False) -> None:
        if self._has_its_own("commit"):
            await self._commit_by_its_own()
        elif is_last:
            await self._there(self._commit_and_close)
        else:
            await self._there(self._plain.commit)

    async def _commit_by_its_own(self) -> None:
        connection = self._plain.connection
        try:
            await self.session.commit()
        except Exception:
            await self._launcher.run_sync(lambda _: _abandon(connection))
            raise
        except BaseException:
            await self._launcher.run_sync(lambda _: connection.invalidate())
            raise

    async def _commit_and_close(self) -> None:
        await self._plain.commit()
        self._is_given_back = True
        try:
            await self._plain.close()
        except BaseException as problem:  # noqa: BLE001 - raised by close()
            # It is committed, and whatever is wrong with the connection says nothing else.
            self._plain.give_up()
            self._unreturned = problem

    async def prepare(self, statement: str) -> str:
        return str((await _driver(self._plain.connection).execute(statement)).statusmessage)

    async def anew(self) -> Borrowed[AsyncSession]:
        plain = await self._there(self._plain.anew)
        return _AsyncBorrowed(AsyncSession(), plain, self._launcher)  # Its session is for nobody.

    async def alone(self, statement: str) -> None:
        await self._there(lambda: self._plain.alone(statement))

    async def close(self) -> None:
        if self._is_given_back:
            problem, self._unreturned = self._unreturned, None
            if problem is not None:
                raise problem
            return
        try:
            await self._there(self._plain.close)
        except BaseException:
            await self._launcher.run_sync(lambda _: self._plain.give_up())
            raise


def ask(
    connection: Connection, forms: Forms | None, statement: Any, values: dict[str, object]
) -> Answer:
    """Run a statement on a connection that has begun, by psycopg itself where there are forms."""
    if forms is not None:
        try:
            return asked(_driver(connection), forms, statement, values)
        except Exception as problem:  # noqa: BLE001 - whatever it is
            _tell(problem, connection, forms, statement, values)
    return _ask_alchemy(connection, statement, values)


async def ask_async(
    connection: Connection,
    forms: Forms | None,
    statement: Any,
    values: dict[str, object],
    launcher: AsyncSession,
) -> Answer:
    """The same without blocking; the launcher is a session of no database."""
    if forms is not None:
        try:
            return await awaited(_driver(connection), forms, statement, values)
        except Exception as problem:  # noqa: BLE001 - whatever it is
            _tell(problem, connection, forms, statement, values)
    return await launcher.run_sync(lambda _: _ask_alchemy(connection, statement, values))


def _ask_alchemy(connection: Connection, statement: Any, values: dict[str, object]) -> Answer:
    result = connection.execute(_executable(statement), values)
    rows = [tuple(row) for row in result] if result.returns_rows else []
    return Answer(result.rowcount, rows)


def _forms(engine: Engine | AsyncEngine) -> Forms | None:
    """For asking psycopg itself, which costs half as much."""
    return psycopg_forms() if engine.dialect.driver == "psycopg" else None


def is_renamed(connection: Connection) -> bool:
    """Whether tables have names that only SQLAlchemy knows, so that it must be asked."""
    return "schema_translate_map" in connection.get_execution_options()


def is_psycopg(connection: Connection) -> bool:
    """Whether psycopg is below, blocking or not."""
    return connection.dialect.driver == "psycopg"


def commits_each(connection: Connection) -> bool:
    """Whether a connection that has begun says that it commits each statement. Those that say
    nothing are believed: to ask the database would be a round trip more for everybody.
    """
    proxied = connection.connection
    drivers = (proxied.driver_connection, proxied.dbapi_connection)
    return any(each is not None and _commits_each(each) for each in drivers)


def _commits_each(driver: Any) -> bool:
    in_transaction = getattr(driver, "in_transaction", None)  # Those to SQLite say so.
    if isinstance(in_transaction, bool) and hasattr(driver, "isolation_level"):
        is_off = driver.isolation_level is None or getattr(driver, "autocommit", None) is True
        return is_off and not in_transaction
    if callable(said := getattr(driver, "get_autocommit", None)):
        return bool(said())  # Those to MySQL.
    if getattr(driver, "autocommit", False) is not True:
        return False
    status = getattr(getattr(driver, "info", None), "transaction_status", _IDLE)
    return bool(status == _IDLE)


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
    if not is_psycopg(connection):
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
    if _driver(connection).autocommit if is_psycopg(connection) else commits_each(connection):
        raise FenceUnsafe(
            "the source gave a connection that commits each statement: switch autocommit off"
        )


def _begin(session: Session) -> None:
    session.begin()
    session.connection()


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
    session: Session,
    root: SessionTransaction | None,
    connection: Connection,
    shown: Shown | None,
) -> Standing:
    if session.get_transaction() is not root:
        return Standing.ENDED
    if not session.is_active or connection.closed or connection.invalidated:
        return Standing.ABORTED
    driver = _driver(connection)
    if driver is None:
        return Standing.ABORTED  # Somebody has detached it.
    if shown is None:
        return Standing.UNSURE
    # libpq keeps the transaction's status with every answer, so nobody has to be asked.
    status = driver.info.transaction_status
    if status == _IN_TRANSACTION:
        return Standing.OPEN if shown.is_sure() else Standing.UNSURE
    return Standing.ABORTED if status == _IN_ERROR else Standing.ENDED
