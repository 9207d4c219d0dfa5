"""Adapters for psycopg without SQLAlchemy: pools, and functions that connect.

The application's function receives the connection itself, inside a psycopg transaction block. There
psycopg refuses to commit or roll back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy.dialects.postgresql.psycopg import dialect as psycopg_dialect

from txmq.databases.adapter import DatabaseAdapter, DatabaseSession, SessionStatus, StatementResult
from txmq.databases.canary import Canary
from txmq.databases.first_statement import FirstStatement, begins_alone, run_first
from txmq.databases.forms import Forms
from txmq.errors import ConfigError, DatabaseFailed

__all__ = [
    "PsycopgForms",
    "psycopg_adapter",
    "psycopg_execute",
    "psycopg_execute_async",
    "psycopg_forms",
]

_PROBLEMS: Final = (psycopg.Error, OSError)


def psycopg_adapter(source: Any) -> DatabaseAdapter[Any] | None:
    """The adapter of a pool or connect function; ``None`` for anything else.

    Raises:
        ConfigError: The source is a connection, which checks cannot share with a local transaction.
    """
    if isinstance(source, psycopg.Connection | psycopg.AsyncConnection):
        raise ConfigError(
            "one connection is too few: checks need their own. Give a pool, or a function that "
            "connects, such as functools.partial(psycopg.connect, conninfo)"
        )
    pool = hasattr(source, "getconn") and hasattr(source, "putconn")
    if not pool and not callable(source):
        return None
    take = source.getconn if pool else source
    give = source.putconn if pool else None
    adapter = AsyncPsycopgAdapter if inspect.iscoroutinefunction(take) else PsycopgAdapter
    return adapter(take, give)


class PsycopgForms(Forms):
    """Statements compiled for psycopg, and for libpq if they may travel with their BEGIN."""

    def __init__(self) -> None:
        super().__init__(psycopg_dialect())  # type: ignore[no-untyped-call]
        self._firsts: dict[str, FirstStatement | None] = {}

    def first(
        self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], words: str
    ) -> FirstStatement | None:
        """The statement, if the connection has no transaction, and the statement may begin one.

        Under the connection's lock, :func:`begins_alone` decides.
        """
        if connection.pgconn.transaction_status != TransactionStatus.IDLE:
            return None
        if words not in self._firsts:
            self._firsts[words] = FirstStatement.of(words)
        return self._firsts[words]


def psycopg_forms() -> PsycopgForms:
    """Statements compiled for psycopg."""
    return PsycopgForms()


def psycopg_execute(
    connection: psycopg.Connection[Any],
    forms: PsycopgForms,
    statement: Any,
    values: dict[str, object],
) -> StatementResult:
    """Run a statement, regardless of the connection's row factory and cursor class."""
    words, given = forms.of(statement, values)
    if given and (first := forms.first(connection, words)) is not None:
        with connection.lock:
            if not begins_alone(connection) and (plain := first.values(given)) is not None:
                return StatementResult(connection.wait(run_first(connection, first, plain)), [])
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    cursor.execute(words.encode(), given)
    rows = cursor.fetchall() if cursor.description else []
    return StatementResult(cursor.rowcount, rows)


async def psycopg_execute_async(
    connection: psycopg.AsyncConnection[Any],
    forms: PsycopgForms,
    statement: Any,
    values: dict[str, object],
) -> StatementResult:
    """The same without blocking."""
    words, given = forms.of(statement, values)
    if given and (first := forms.first(connection, words)) is not None:
        async with connection.lock:
            if not begins_alone(connection) and (plain := first.values(given)) is not None:
                changed = await connection.wait(run_first(connection, first, plain))
                return StatementResult(changed, [])
    cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
    await cursor.execute(words.encode(), given)
    rows = await cursor.fetchall() if cursor.description else []
    return StatementResult(cursor.rowcount, rows)


class _LazyTransaction(psycopg.Transaction):
    """A block whose BEGIN travels with its first statement."""

    def _get_enter_commands(self) -> Iterator[bytes]:
        return iter(())


class _AsyncLazyTransaction(psycopg.AsyncTransaction):
    """The same for asyncio."""

    def _get_enter_commands(self) -> Iterator[bytes]:
        return iter(())


class PsycopgAdapter:
    """Blocking connections."""

    kind = "postgresql"
    can_prepare = True
    is_blocking = True
    problems = _PROBLEMS

    def __init__(
        self,
        take: Callable[[], psycopg.Connection[Any]],
        give: Callable[[psycopg.Connection[Any]], None] | None,
    ) -> None:
        self._take = take
        self._give = give or psycopg.Connection.close
        self._forms = psycopg_forms()

    async def open(
        self, *, begins_at_once: bool = False
    ) -> DatabaseSession[psycopg.Connection[Any]]:
        """See :meth:`DatabaseAdapter.open`."""
        connection = self._take()
        if inspect.isawaitable(connection):
            raise ConfigError("a function that connects without blocking is an `async def`")
        try:
            _refuse_used(connection)
            is_lazy = begins_at_once and not connection.autocommit
            block = _LazyTransaction(connection) if is_lazy else connection.transaction()
            block.__enter__()
        except BaseException:
            self._give(connection)
            raise
        return _PsycopgSession(connection, block, self._forms, self._give)

    async def execute_outside(self, statement: str) -> None:
        """See :meth:`DatabaseAdapter.execute_outside`."""
        connection = self._take()
        try:
            _execute_outside(connection, statement)
        finally:
            self._give(connection)


class AsyncPsycopgAdapter:
    """Asyncio connections."""

    kind = "postgresql"
    can_prepare = True
    is_blocking = False
    problems = _PROBLEMS

    def __init__(self, take: Callable[[], Any], give: Callable[[Any], Any] | None) -> None:
        self._take = take
        self._give = give or psycopg.AsyncConnection.close
        self._forms = psycopg_forms()

    async def open(
        self, *, begins_at_once: bool = False
    ) -> DatabaseSession[psycopg.AsyncConnection[Any]]:
        """See :meth:`DatabaseAdapter.open`."""
        connection = await self._take()
        try:
            _refuse_used(connection)
            is_lazy = begins_at_once and not connection.autocommit
            block = _AsyncLazyTransaction(connection) if is_lazy else connection.transaction()
            await block.__aenter__()
        except BaseException:
            await self._give(connection)
            raise
        return _AsyncPsycopgSession(connection, block, self._forms, self._give)

    async def execute_outside(self, statement: str) -> None:
        """See :meth:`DatabaseAdapter.execute_outside`."""
        connection = await self._take()
        try:
            await _execute_outside_async(connection, statement)
        finally:
            await self._give(connection)


def _refuse_used(connection: Any) -> None:
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise DatabaseFailed(
            "the source gave a connection that is in a transaction already, or broken"
        )


def _execute_outside(connection: psycopg.Connection[Any], statement: str) -> None:
    _refuse_used(connection)
    was = connection.autocommit
    connection.set_autocommit(True)
    try:
        connection.execute(statement.encode())
    finally:
        if not connection.closed:
            connection.set_autocommit(was)


async def _execute_outside_async(connection: psycopg.AsyncConnection[Any], statement: str) -> None:
    _refuse_used(connection)
    was = connection.autocommit
    await connection.set_autocommit(True)
    try:
        await connection.execute(statement.encode())
    finally:
        if not connection.closed:
            await connection.set_autocommit(was)


def _keep(connection: psycopg.Connection[Any]) -> None:
    """Do nothing: the connection stays checked out."""


async def _akeep(connection: psycopg.AsyncConnection[Any]) -> None:
    """The same."""


class _PsycopgSession:
    def __init__(
        self,
        session: psycopg.Connection[Any],
        block: psycopg.Transaction | Any,
        forms: PsycopgForms,
        give: Callable[[psycopg.Connection[Any]], None],
    ) -> None:
        self.session = session
        self._block = block
        self._forms = forms
        self._give = give
        self._is_open = True
        self.canary = Canary(session)

    async def execute(self, statement: Any, **values: object) -> StatementResult:
        return psycopg_execute(self.session, self._forms, statement, values)

    async def flush(self) -> None:
        """A connection has no pending writes."""

    def status(self) -> SessionStatus:
        return _status_of(self.session, self.canary)

    async def commit(self, *, is_last: bool = False) -> None:
        del is_last
        self._is_open = False
        self._block.__exit__(None, None, None)

    async def prepare(self, statement: str) -> str:
        with psycopg.Cursor(self.session) as cursor:
            answer = cursor.execute(statement.encode()).statusmessage
            if self.session.autocommit:
                cursor.execute(b"BEGIN")  # The block needs an open transaction to end.
        return str(answer)

    async def begin_again(self) -> DatabaseSession[psycopg.Connection[Any]]:
        self._leave()
        block = self.session.transaction()
        block.__enter__()
        return _PsycopgSession(self.session, block, self._forms, _keep)

    async def execute_outside(self, statement: str) -> None:
        self._leave()
        _execute_outside(self.session, statement)

    async def close(self) -> None:
        try:
            self._leave()
        finally:
            self._give(self.session)

    def _leave(self) -> None:
        if self._is_open:
            self._is_open = False
            self._block.__exit__(psycopg.Rollback, psycopg.Rollback(), None)


class _AsyncPsycopgSession:
    def __init__(
        self,
        session: psycopg.AsyncConnection[Any],
        block: psycopg.AsyncTransaction | Any,
        forms: PsycopgForms,
        give: Callable[[psycopg.AsyncConnection[Any]], Any],
    ) -> None:
        self.session = session
        self._block = block
        self._forms = forms
        self._give = give
        self._is_open = True
        self.canary = Canary(session)

    async def execute(self, statement: Any, **values: object) -> StatementResult:
        return await psycopg_execute_async(self.session, self._forms, statement, values)

    async def flush(self) -> None:
        """A connection has no pending writes."""

    def status(self) -> SessionStatus:
        return _status_of(self.session, self.canary)

    async def commit(self, *, is_last: bool = False) -> None:
        del is_last
        self._is_open = False
        await self._block.__aexit__(None, None, None)

    async def prepare(self, statement: str) -> str:
        async with psycopg.AsyncCursor(self.session) as cursor:
            answer = (await cursor.execute(statement.encode())).statusmessage
            if self.session.autocommit:
                await cursor.execute(b"BEGIN")  # The block needs an open transaction to end.
        return str(answer)

    async def begin_again(self) -> DatabaseSession[psycopg.AsyncConnection[Any]]:
        await self._leave()
        block = self.session.transaction()
        await block.__aenter__()
        return _AsyncPsycopgSession(self.session, block, self._forms, _akeep)

    async def execute_outside(self, statement: str) -> None:
        await self._leave()
        await _execute_outside_async(self.session, statement)

    async def close(self) -> None:
        try:
            await self._leave()
        finally:
            await self._give(self.session)

    async def _leave(self) -> None:
        if self._is_open:
            self._is_open = False
            await self._block.__aexit__(psycopg.Rollback, psycopg.Rollback(), None)


def _status_of(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], canary: Canary
) -> SessionStatus:
    status = connection.pgconn.transaction_status
    if status == TransactionStatus.INTRANS:
        return SessionStatus.OPEN if canary.is_sure() else SessionStatus.UNSURE
    if status == TransactionStatus.IDLE:
        return SessionStatus.ENDED
    return SessionStatus.ABORTED
