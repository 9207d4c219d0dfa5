"""Doors for psycopg without SQLAlchemy: pools, and functions that connect.

The application's function is given the connection itself. A transaction block of psycopg's stands
around it, in which psycopg refuses to commit or roll back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy.dialects.postgresql.psycopg import dialect as psycopg_dialect
from sqlalchemy.engine import Compiled

from txmq.errors import ConfigError, DatabaseFailed
from txmq.transaction.resources.door import Answer, Borrowed, Door, Standing

__all__ = ["psycopg_door"]

_PROBLEMS: Final = (psycopg.Error, OSError)


def psycopg_door(source: Any) -> Door[Any] | None:
    """The door of a pool, or of a function that connects; none for anything else.

    Raises:
        ConfigError: It is a connection, which checks cannot share with a local transaction.
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
    door = AsyncPsycopgDoor if inspect.iscoroutinefunction(take) else PsycopgDoor
    return door(take, give)


class _Forms:
    """Statements as psycopg takes them; each is put into words once."""

    def __init__(self) -> None:
        self._dialect = psycopg_dialect()  # type: ignore[no-untyped-call]
        self._done: dict[Any, Compiled] = {}

    def of(self, statement: Any, values: dict[str, object]) -> tuple[bytes, Any]:
        if isinstance(statement, str):
            return statement.encode(), None
        form = self._done.get(statement)
        if form is None:
            form = self._done[statement] = statement.compile(
                dialect=self._dialect, compile_kwargs={"render_postcompile": True}
            )
        return str(form).encode(), form.construct_params(values)


class PsycopgDoor:
    """Blocking connections."""

    kind = "postgresql"
    is_blocking = True
    problems = _PROBLEMS

    def __init__(
        self,
        take: Callable[[], psycopg.Connection[Any]],
        give: Callable[[psycopg.Connection[Any]], None] | None,
    ) -> None:
        self._take = take
        self._give = give or psycopg.Connection.close
        self._forms = _Forms()

    async def open(self) -> Borrowed[psycopg.Connection[Any]]:
        """See :meth:`Door.open`."""
        connection = self._take()
        if inspect.isawaitable(connection):
            raise ConfigError("a function that connects without blocking is an `async def`")
        try:
            _refuse_used(connection)
            block = connection.transaction()
            block.__enter__()
        except BaseException:
            self._give(connection)
            raise
        return _Borrowed(connection, block, self._forms, self._give)


class AsyncPsycopgDoor:
    """Connections of asyncio."""

    kind = "postgresql"
    is_blocking = False
    problems = _PROBLEMS

    def __init__(self, take: Callable[[], Any], give: Callable[[Any], Any] | None) -> None:
        self._take = take
        self._give = give or psycopg.AsyncConnection.close
        self._forms = _Forms()

    async def open(self) -> Borrowed[psycopg.AsyncConnection[Any]]:
        """See :meth:`Door.open`."""
        connection = await self._take()
        try:
            _refuse_used(connection)
            block = connection.transaction()
            await block.__aenter__()
        except BaseException:
            await self._give(connection)
            raise
        return _AsyncBorrowed(connection, block, self._forms, self._give)


def _refuse_used(connection: Any) -> None:
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise DatabaseFailed(
            "the source gave a connection that is in a transaction already, or broken"
        )


class _Borrowed:
    def __init__(
        self,
        session: psycopg.Connection[Any],
        block: psycopg.Transaction | Any,
        forms: _Forms,
        give: Callable[[psycopg.Connection[Any]], None],
    ) -> None:
        self.session = session
        self._block = block
        self._forms = forms
        self._give = give
        self._is_open = True

    async def ask(self, statement: Any, **values: object) -> Answer:
        # The application may have chosen other rows and cursors for its connection.
        with psycopg.Cursor(self.session, row_factory=tuple_row) as cursor:
            cursor.execute(*self._forms.of(statement, values))
            rows = cursor.fetchall() if cursor.description else []
            return Answer(cursor.rowcount, rows)

    async def flush(self) -> None:
        """A connection keeps nothing back."""

    def standing(self) -> Standing:
        return _standing(self.session)

    async def commit(self) -> None:
        self._is_open = False
        self._block.__exit__(None, None, None)

    async def close(self) -> None:
        try:
            if self._is_open:
                self._is_open = False
                undo = psycopg.Rollback()
                self._block.__exit__(psycopg.Rollback, undo, None)
        finally:
            self._give(self.session)


class _AsyncBorrowed:
    def __init__(
        self,
        session: psycopg.AsyncConnection[Any],
        block: psycopg.AsyncTransaction | Any,
        forms: _Forms,
        give: Callable[[psycopg.AsyncConnection[Any]], Any],
    ) -> None:
        self.session = session
        self._block = block
        self._forms = forms
        self._give = give
        self._is_open = True

    async def ask(self, statement: Any, **values: object) -> Answer:
        async with psycopg.AsyncCursor(self.session, row_factory=tuple_row) as cursor:
            await cursor.execute(*self._forms.of(statement, values))
            rows = await cursor.fetchall() if cursor.description else []
            return Answer(cursor.rowcount, rows)

    async def flush(self) -> None:
        """A connection keeps nothing back."""

    def standing(self) -> Standing:
        return _standing(self.session)

    async def commit(self) -> None:
        self._is_open = False
        await self._block.__aexit__(None, None, None)

    async def close(self) -> None:
        try:
            if self._is_open:
                self._is_open = False
                undo = psycopg.Rollback()
                await self._block.__aexit__(psycopg.Rollback, undo, None)
        finally:
            await self._give(self.session)


def _standing(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Standing:
    status = connection.info.transaction_status
    if status == TransactionStatus.INTRANS:
        return Standing.OPEN
    if status == TransactionStatus.IDLE:
        return Standing.ENDED
    return Standing.ABORTED
