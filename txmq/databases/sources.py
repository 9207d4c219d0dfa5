"""Finds the adapter for a source of connections, or for a session of the application."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeGuard, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Table
from sqlalchemy.dialects.postgresql.psycopg import dialect as psycopg_dialect
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from txmq.databases.adapter import DatabaseAdapter, StatementResult
from txmq.databases.alchemy import alchemy_adapter, commits_each, execute
from txmq.databases.dialects import kind_of
from txmq.databases.postgres import AnyConnection, PsycopgForms, psycopg_adapter, psycopg_execute
from txmq.databases.tables import Forms
from txmq.errors import ConfigError, UsageError

__all__ = [
    "AsyncPool",
    "AwaitedSession",
    "BlockingSession",
    "CallerSession",
    "CallerSessions",
    "DjangoConnection",
    "Pool",
    "adapter_of",
]

S = TypeVar("S")


class Pool(Protocol[S]):
    """A pool of psycopg connections."""

    def getconn(self) -> S:
        """Take a connection."""
        ...

    def putconn(self, conn: S) -> None:
        """Return a connection."""
        ...


class AsyncPool(Protocol[S]):
    """A pool of psycopg connections for asyncio."""

    async def getconn(self) -> S:
        """Take a connection."""
        ...

    async def putconn(self, conn: S) -> None:
        """Return a connection."""
        ...


class DjangoConnection(Protocol):
    """``django.db.connection``, or one of ``django.db.connections``."""

    @property
    def alias(self) -> str:
        """The key of the database in Django's settings."""
        ...

    @property
    def vendor(self) -> str:
        """Django's name for the family of the database."""
        ...


BlockingSession: TypeAlias = (
    Session | scoped_session[Any] | Connection | psycopg.Connection[Any] | DjangoConnection
)
AwaitedSession: TypeAlias = (
    AsyncSession | async_scoped_session[Any] | AsyncConnection | psycopg.AsyncConnection[Any]
)


def adapter_of(source: Any) -> DatabaseAdapter[Any]:
    """The adapter of a source.

    Raises:
        ConfigError: The source is not supported, or its sessions are not usable.
    """
    adapter = alchemy_adapter(source) or psycopg_adapter(source)
    if adapter is None and _is_django(source):
        from txmq.databases.django import django_adapter

        adapter = django_adapter(source)
    if adapter is None:
        raise ConfigError(
            f"{type(source).__name__} is not a source of sessions: pass an engine, a sessionmaker, "
            "a psycopg pool, or a function that connects"
        )
    return adapter


class CallerSession(NamedTuple):
    """A session of the application, used within the application's transaction."""

    kind: str
    """The family of databases: postgresql, mysql or sqlite."""
    is_blocking: bool
    """Whether its coroutines never suspend."""
    execute: Callable[..., Awaitable[StatementResult]]
    """Runs a statement; see :meth:`txmq.databases.adapter.DatabaseSession.execute`. Raises
    :class:`UsageError` if the session is in autocommit mode."""


class CallerSessions:
    """Runs statements in the application's own sessions and transactions.

    It never commits or rolls back. A transaction begins when its session is first used, as usual
    with SQLAlchemy and psycopg. Sessions in autocommit mode are refused where that can be detected
    without a round trip to the database.

    Args:
        table: The table that the statements use, because an ORM session may have several databases.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._forms = PsycopgForms()
        self._django_forms = Forms(psycopg_dialect(paramstyle="pyformat"))  # type: ignore[no-untyped-call]
        self._launcher = AsyncSession()
        """A session without a database; SQLAlchemy starts greenlets only through sessions."""

    def find(self, session: object) -> CallerSession:
        """How to run statements in a session.

        Raises:
            UsageError: It is not a session, or has no database.
            ConfigError: Its kind of database is not supported.
        """
        if isinstance(session, scoped_session | async_scoped_session):
            session = session()
        if isinstance(session, psycopg.Connection | psycopg.AsyncConnection):
            is_blocking = isinstance(session, psycopg.Connection)
            return CallerSession("postgresql", is_blocking, partial(self._in_psycopg, session))
        if isinstance(session, Session | Connection):
            kind = _kind(session, self._table)
            return CallerSession(kind, True, partial(self._in_alchemy, session, None))
        if isinstance(session, AsyncSession | AsyncConnection):
            plain = (
                session.sync_session
                if isinstance(session, AsyncSession)
                else session.sync_connection
            )
            if plain is None:
                raise UsageError("this connection is not open; use it with `async with`")
            kind = _kind(plain, self._table)
            return CallerSession(kind, False, partial(self._in_alchemy, plain, self._in_greenlet))
        if _is_django(session):
            return CallerSession(kind_of(session.vendor), True, partial(self._in_django, session))
        raise UsageError(
            f"{type(session).__name__} is not a session: pass a Session or Connection of "
            "SQLAlchemy, its asyncio twin, a psycopg connection, or django.db.connection"
        )

    async def _in_psycopg(
        self, session: AnyConnection, statement: Any, /, **values: object
    ) -> StatementResult:
        if session.autocommit and session.info.transaction_status == TransactionStatus.IDLE:
            raise _autocommit("put it into a block of connection.transaction()")
        return await psycopg_execute(session, self._forms, statement, values)

    async def _in_alchemy(
        self,
        session: Session | Connection,
        run: Callable[[Callable[[], Any]], Awaitable[Any]] | None,
        statement: Any,
        /,
        **values: object,
    ) -> StatementResult:
        if run is None:
            connection = _begun(session, self._table)
        elif isinstance(session, Connection) and session.in_transaction():
            connection = session  # It needs no greenlet.
        else:
            connection = await run(lambda: _begun(session, self._table))
        if commits_each(connection):
            raise _autocommit("begin it on a connection whose isolation level is not AUTOCOMMIT")
        is_psycopg = connection.dialect.driver == "psycopg"
        is_renamed = "schema_translate_map" in connection.get_execution_options()
        forms = self._forms if is_psycopg and not is_renamed else None
        return await execute(connection, forms, statement, values, run)

    async def _in_greenlet(self, work: Callable[[], Any]) -> Any:
        return await self._launcher.run_sync(lambda _: work())

    async def _in_django(
        self, session: Any, statement: Any, /, **values: object
    ) -> StatementResult:
        if not session.in_atomic_block and session.get_autocommit():
            raise _autocommit("put it into a block of transaction.atomic()")
        with session.cursor() as cursor:
            return self._django_forms.run(cursor, statement, values)


def _is_django(session: object) -> TypeGuard[DjangoConnection]:
    # A Django connection exists only if Django, which is optional, is imported.
    if "django.db" not in sys.modules:
        return False
    from txmq.databases.django import is_connection

    return is_connection(session)


def _kind(session: Session | Connection, table: Table) -> str:
    try:
        bound = session.get_bind(clause=table) if isinstance(session, Session) else session
    except UnboundExecutionError as error:
        raise UsageError(f"this session has no database for {table.name}: {error}") from None
    return kind_of(bound.dialect.name)


def _begun(session: Session | Connection, table: Table) -> Connection:
    """The connection of a session, with a transaction begun."""
    if isinstance(session, Session):
        return session.connection(bind_arguments={"clause": table})
    if not session.in_transaction():
        # Otherwise, SQLAlchemy would not commit statements that psycopg runs directly.
        session.begin()
    return session


def _autocommit(advice: str) -> UsageError:
    return UsageError(
        f"this session commits each statement, so the new row would commit alone; {advice}"
    )
