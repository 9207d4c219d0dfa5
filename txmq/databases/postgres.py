"""Adapters for psycopg without SQLAlchemy: pools, and functions that connect.

The application's function receives the connection itself, inside a psycopg transaction block. There
psycopg refuses to commit or roll back.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import tuple_row
from psycopg.waiting import Ready, Wait
from sqlalchemy.dialects.postgresql.psycopg import dialect as psycopg_dialect

from txmq.databases.adapter import DatabaseAdapter, DatabaseSession, SessionStatus, StatementResult
from txmq.databases.canary import Canary
from txmq.databases.forms import Forms
from txmq.errors import ConfigError, DatabaseFailed

__all__ = [
    "FirstStatement",
    "PsycopgForms",
    "begins_alone",
    "psycopg_adapter",
    "psycopg_execute",
    "psycopg_execute_async",
    "psycopg_forms",
    "run_first",
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


AnyConnection: TypeAlias = "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]"

_PLACE: Final = re.compile(r"%\((\w+)\)s(::)?|%%")
_CAST: Final = "CAST("

_NO_SUCH: Final = "26000"
"""The SQLSTATE for a prepared statement that does not exist."""
_EXISTS: Final = "42P05"
"""The SQLSTATE for a prepared statement that exists already."""

_ENCODING: Final = b"client_encoding"

_PREPARED: Final[WeakKeyDictionary[AnyConnection, set[bytes]]] = WeakKeyDictionary()
"""The names of our prepared statements, by connection. psycopg or the application may have
deallocated them."""


class FirstStatement(NamedTuple):
    """A statement as libpq takes it."""

    name: bytes
    words: bytes
    places: tuple[str, ...]
    """The names of its values, in the order of their numbers."""

    @staticmethod
    def of(words: str) -> FirstStatement | None:
        """The statement for an INSERT with psycopg's named placeholders.

        Returns ``None`` if it returns rows, or if a placeholder has no cast: its type would depend
        on the value.
        """
        if not words.startswith("INSERT") or "RETURNING" in words:
            return None
        places: list[str] = []
        for found in _PLACE.finditer(words):
            name, cast = found.groups()
            if name is None:
                continue
            if cast is None and not words.endswith(_CAST, 0, found.start()):
                return None
            if name not in places:
                places.append(name)

        def numbered(found: re.Match[str]) -> str:
            name, cast = found.groups()
            return "%" if name is None else f"${places.index(name) + 1}{cast or ''}"

        text = _PLACE.sub(numbered, words).encode()
        return FirstStatement(
            b"txmq_" + hashlib.sha256(text).hexdigest()[:16].encode(), text, tuple(places)
        )

    def values(self, given: Mapping[str, object]) -> list[bytes] | None:
        """The values as libpq takes them; ``None`` if only psycopg can convert one of them."""
        values = []
        for place in self.places:
            value = given[place]
            if type(value) is str and "\0" not in value:
                values.append(value.encode())
            elif type(value) is int:
                values.append(b"%d" % value)
            else:
                return None
        return values


def begins_alone(connection: AnyConnection) -> bool:
    """Whether BEGIN must travel alone: a transaction is open, the connection commits each
    statement, or libpq has no pipeline mode.
    """
    pgconn = connection.pgconn
    return (
        pgconn.transaction_status != TransactionStatus.IDLE
        or connection.autocommit
        or pgconn.pipeline_status != 0
        or pgconn.parameter_status(_ENCODING) != b"UTF8"
        or not psycopg.Pipeline.is_supported()
    )


def run_first(
    connection: AnyConnection, statement: FirstStatement, values: list[bytes]
) -> PQGen[int]:
    """Begin a transaction with a statement, and return the number of changed rows; run this with
    ``connection.wait``, under the connection's lock.

    Raises:
        psycopg.Error: The statement failed; its transaction is broken, or did not begin.
    """
    pgconn, begin = connection.pgconn, _begin(connection)
    prepared = _PREPARED.get(connection)
    if prepared is None:
        prepared = _PREPARED[connection] = set()
    is_kept = connection.prepare_threshold is not None
    may_repeat = True
    while True:
        is_prepared = statement.name in prepared
        pgconn.enter_pipeline_mode()
        pgconn.send_query_params(begin, None)
        if not is_kept:
            pgconn.send_query_params(statement.words, values)
        else:
            if not is_prepared:
                pgconn.send_prepare(statement.name, statement.words)
            pgconn.send_query_prepared(statement.name, values)
        pgconn.pipeline_sync()
        yield from _flush(pgconn)
        results = yield from _results(pgconn)
        pgconn.exit_pipeline_mode()
        failed = next((one for one in results if one.status == ExecStatus.FATAL_ERROR), None)
        if failed is None:
            if is_kept:
                prepared.add(statement.name)
            return results[-1].command_tuples or 0
        error = errors.error_from_result(failed, encoding="utf-8")
        if not may_repeat or error.sqlstate != (_NO_SUCH if is_prepared else _EXISTS):
            raise error
        # The connection's statements are not those that we know.
        may_repeat = False
        (prepared.discard if is_prepared else prepared.add)(statement.name)
        pgconn.send_query(b"ROLLBACK")
        yield from _flush(pgconn)
        while (yield from _next_result(pgconn)) is not None:
            pass


def _begin(connection: AnyConnection) -> bytes:
    """The BEGIN that psycopg would send."""
    parts = [b"BEGIN"]
    if (level := connection.isolation_level) is not None:
        parts += [b"ISOLATION LEVEL", level.name.replace("_", " ").encode()]
    if (is_read_only := connection.read_only) is not None:
        parts.append(b"READ ONLY" if is_read_only else b"READ WRITE")
    if (is_deferrable := connection.deferrable) is not None:
        parts.append(b"DEFERRABLE" if is_deferrable else b"NOT DEFERRABLE")
    return b" ".join(parts)


def _flush(pgconn: PGconn) -> PQGen[None]:
    while pgconn.flush():
        ready = yield Wait.RW
        # After an interruption psycopg resumes without saying what is ready.
        if ready and ready & Ready.R:
            pgconn.consume_input()


def _next_result(pgconn: PGconn) -> PQGen[PGresult | None]:
    while pgconn.is_busy():
        yield Wait.R
        pgconn.consume_input()
    return pgconn.get_result()


def _results(pgconn: PGconn) -> PQGen[list[PGresult]]:
    """The results of all statements, up to the end of the pipeline."""
    results: list[PGresult] = []
    while True:
        result = yield from _next_result(pgconn)
        if result is None:
            if pgconn.status != ConnStatus.OK:
                raise errors.OperationalError("the connection was lost at the first statement")
            continue  # The results of one statement have ended.
        if result.status == ExecStatus.PIPELINE_SYNC:
            return results
        results.append(result)
