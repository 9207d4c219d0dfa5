"""Run statements in the application's own sessions and transactions.

This module never commits or rolls back. A transaction begins as SQLAlchemy and psycopg begin one,
when a session is first used. Sessions in autocommit mode are refused, as far as they are detectable
without a round trip to the database.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Table
from sqlalchemy.dialects.postgresql.psycopg import dialect as psycopg_dialect
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from txmq.databases.adapter import StatementResult
from txmq.databases.alchemy import commits_each, execute, execute_async
from txmq.databases.dialects import kind_of
from txmq.databases.forms import Forms
from txmq.databases.postgres import (
    PsycopgForms,
    psycopg_execute,
    psycopg_execute_async,
    psycopg_forms,
)
from txmq.databases.sources import DjangoConnection
from txmq.errors import UsageError

__all__ = ["AwaitedSession", "BlockingSession", "CallerSession", "SessionAdapters"]


BlockingSession: TypeAlias = (
    Session | scoped_session[Any] | Connection | psycopg.Connection[Any] | DjangoConnection
)
AwaitedSession: TypeAlias = (
    AsyncSession | async_scoped_session[Any] | AsyncConnection | psycopg.AsyncConnection[Any]
)


class CallerSession(Protocol):
    """A session of the application, in its transaction."""

    kind: str
    """The family of databases: postgresql, mysql or sqlite."""
    is_blocking: bool
    """Whether its coroutines never wait."""

    async def execute(self, statement: Any, **values: object) -> StatementResult:
        """Run an SQLAlchemy statement.

        Raises:
            UsageError: The session is in autocommit mode.
            Exception: Any error of the session's library.
        """
        ...


class SessionAdapters:
    """Finds the adapter of a session.

    Args:
        table: The table of the statements, because an ORM session may have several databases.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._forms = psycopg_forms()
        self._django_forms = Forms(psycopg_dialect(paramstyle="pyformat"))  # type: ignore[no-untyped-call]
        self._launcher = AsyncSession()
        """A session of no database: sessions are SQLAlchemy's way to start a greenlet."""

    def find(self, session: object) -> CallerSession:
        """The adapter of a session.

        Raises:
            UsageError: It is not a session, or has no database.
            ConfigError: Its kind of database is not supported.
        """
        if isinstance(session, scoped_session | async_scoped_session):
            session = session()
        if isinstance(session, psycopg.Connection):
            return _Psycopg(session, self._forms)
        if isinstance(session, psycopg.AsyncConnection):
            return _AsyncPsycopg(session, self._forms)
        if isinstance(session, Session | Connection):
            return _Alchemy(session, self._table, self._forms)
        if isinstance(session, AsyncSession | AsyncConnection):
            return _AsyncAlchemy(session, self._table, self._forms, self._launcher)
        if _is_django(session):
            return _Django(session, self._django_forms)
        raise UsageError(
            f"{type(session).__name__} is not a session: give SQLAlchemy's Session, Connection or "
            "their asyncio twins, a connection of psycopg's, or django.db.connection"
        )


class _Psycopg:
    kind = "postgresql"
    is_blocking = True

    def __init__(self, session: psycopg.Connection[Any], forms: PsycopgForms) -> None:
        self._session = session
        self._forms = forms

    async def execute(self, statement: Any, **values: object) -> StatementResult:
        _refuse_idle_autocommit(self._session)
        return psycopg_execute(self._session, self._forms, statement, values)


class _AsyncPsycopg:
    kind = "postgresql"
    is_blocking = False

    def __init__(self, session: psycopg.AsyncConnection[Any], forms: PsycopgForms) -> None:
        self._session = session
        self._forms = forms

    async def execute(self, statement: Any, **values: object) -> StatementResult:
        _refuse_idle_autocommit(self._session)
        return await psycopg_execute_async(self._session, self._forms, statement, values)


class _Alchemy:
    is_blocking = True

    def __init__(self, session: Session | Connection, table: Table, forms: PsycopgForms) -> None:
        self.kind = _kind(session, table)
        self._session = session
        self._table = table
        self._forms = forms

    async def execute(self, statement: Any, **values: object) -> StatementResult:
        connection = _begun(self._session, self._table)
        return execute(connection, _forms_for(connection, self._forms), statement, values)


class _AsyncAlchemy:
    is_blocking = False

    def __init__(
        self,
        session: AsyncSession | AsyncConnection,
        table: Table,
        forms: PsycopgForms,
        launcher: AsyncSession,
    ) -> None:
        plain = (
            session.sync_session if isinstance(session, AsyncSession) else session.sync_connection
        )
        if plain is None:
            raise UsageError("this connection is not open; use it with `async with`")
        self.kind = _kind(plain, table)
        self._session = plain
        self._table = table
        self._forms = forms
        self._launcher = launcher

    async def execute(self, statement: Any, **values: object) -> StatementResult:
        plain = self._session
        if isinstance(plain, Connection) and plain.in_transaction():
            connection = plain  # The transaction has begun, so no greenlet is needed.
            _refuse_autocommit(connection)
        else:
            connection = await self._launcher.run_sync(lambda _: _begun(plain, self._table))
        forms = _forms_for(connection, self._forms)
        return await execute_async(connection, forms, statement, values, self._launcher)


class _Django:
    is_blocking = True

    def __init__(self, session: Any, forms: Forms) -> None:
        self.kind = kind_of(session.vendor)
        self._session = session
        self._forms = forms

    async def execute(self, statement: Any, **values: object) -> StatementResult:
        session = self._session
        if not session.in_atomic_block and session.get_autocommit():
            raise _autocommit("put it into a block of transaction.atomic()")
        with session.cursor() as cursor:
            cursor.execute(*self._forms.of(statement, values))
            rows = cursor.fetchall() if cursor.description else []
            return StatementResult(cursor.rowcount, [tuple(row) for row in rows])


def _is_django(session: object) -> bool:
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
        connection = session.connection(bind_arguments={"clause": table})
    else:
        connection = session
        if not connection.in_transaction():
            # Otherwise, SQLAlchemy would not commit statements that psycopg runs directly.
            connection.begin()
    _refuse_autocommit(connection)
    return connection


def _forms_for(connection: Connection, forms: PsycopgForms) -> PsycopgForms | None:
    """The forms for psycopg, if that is the driver and SQLAlchemy renames no tables."""
    is_psycopg = connection.dialect.driver == "psycopg"
    is_renamed = "schema_translate_map" in connection.get_execution_options()
    return forms if is_psycopg and not is_renamed else None


def _refuse_autocommit(connection: Connection) -> None:
    if commits_each(connection):
        raise _autocommit("begin it on a connection whose isolation level is not AUTOCOMMIT")


def _refuse_idle_autocommit(
    session: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
) -> None:
    if session.autocommit and session.info.transaction_status == TransactionStatus.IDLE:
        raise _autocommit("put it into a block of connection.transaction()")


def _autocommit(advice: str) -> UsageError:
    return UsageError(
        f"this session commits each statement, so the new row would commit alone; {advice}"
    )
