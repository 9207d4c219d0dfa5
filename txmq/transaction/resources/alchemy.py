"""Doors for SQLAlchemy: engines and sessionmakers, blocking and not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection, Engine, Executable, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
)
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker

from txmq.errors import ConfigError
from txmq.transaction.resources.dialects import kind_of
from txmq.transaction.resources.door import Answer, Borrowed, Door, Standing

__all__ = ["alchemy_door"]

_PROBLEMS: Final = (SQLAlchemyError, OSError)
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
        self._sessions = sessions
        self._engine = engine

    async def open(self) -> Borrowed[Session]:
        """See :meth:`Door.open`."""
        connection = self._engine.connect()
        try:
            session = self._sessions(bind=connection)
            session.begin()
            session.connection()
        except BaseException:
            connection.close()
            raise
        return _Borrowed(session, connection)


class AsyncAlchemyDoor:
    """Sessions of an asyncio engine."""

    is_blocking = False
    problems = _PROBLEMS

    def __init__(self, sessions: Callable[..., AsyncSession], engine: AsyncEngine) -> None:
        self.kind = kind_of(engine.dialect.name)
        self._sessions = sessions
        self._engine = engine

    async def open(self) -> Borrowed[AsyncSession]:
        """See :meth:`Door.open`."""
        connection = await self._engine.connect()
        try:
            session = self._sessions(bind=connection)
            await session.begin()
            await session.connection()
        except BaseException:
            await connection.close()
            raise
        return _AsyncBorrowed(session, connection)


class _Borrowed:
    def __init__(self, session: Session, connection: Connection) -> None:
        self.session = session
        self._connection = connection
        self._root = session.get_transaction()

    async def ask(self, statement: Any, **values: object) -> Answer:
        result = self._connection.execute(_executable(statement), values)
        rows = [tuple(row) for row in result] if result.returns_rows else []
        return Answer(result.rowcount, rows)

    async def flush(self) -> None:
        self.session.flush()

    def standing(self) -> Standing:
        return _standing(self.session, self._root, self._connection)

    async def commit(self) -> None:
        try:
            self.session.commit()
        except BaseException:
            _abandon(self._connection)
            raise

    async def close(self) -> None:
        try:
            self.session.close()
        finally:
            self._connection.close()


class _AsyncBorrowed:
    def __init__(self, session: AsyncSession, connection: AsyncConnection) -> None:
        self.session = session
        self._connection = connection
        self._root = session.sync_session.get_transaction()

    async def ask(self, statement: Any, **values: object) -> Answer:
        result = await self._connection.execute(_executable(statement), values)
        rows = [tuple(row) for row in result] if result.returns_rows else []
        return Answer(result.rowcount, rows)

    async def flush(self) -> None:
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

    async def close(self) -> None:
        try:
            await self.session.close()
        finally:
            await self._connection.close()


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
