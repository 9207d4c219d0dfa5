"""psycopg without SQLAlchemy: pools, functions that connect, and notifications.

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
from psycopg.conninfo import make_conninfo
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import tuple_row
from psycopg.sql import SQL, Identifier
from psycopg.waiting import Ready, Wait
from sqlalchemy.dialects.postgresql.psycopg import dialect as psycopg_dialect
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from txmq.databases.adapter import DatabaseAdapter, DatabaseSession, SessionStatus, StatementResult
from txmq.databases.canary import Canary
from txmq.databases.tables import Forms
from txmq.errors import ConfigError, DatabaseFailed

__all__ = [
    "LISTENING_PROBLEMS",
    "AnyConnection",
    "FirstStatement",
    "PsycopgForms",
    "likeness",
    "listen",
    "psycopg_adapter",
    "psycopg_execute",
    "result_of",
]

AnyConnection: TypeAlias = "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]"


def psycopg_adapter(source: Any) -> DatabaseAdapter[Any] | None:
    """The adapter of a pool or connect function; ``None`` for anything else.

    Raises:
        ConfigError: The source is a connection, which checks cannot share with a local transaction.
    """
    if isinstance(source, psycopg.Connection | psycopg.AsyncConnection):
        raise ConfigError(
            "a single connection is not enough, because checks need their own: pass a pool, or a "
            "function that connects, such as functools.partial(psycopg.connect, conninfo)"
        )
    if hasattr(source, "getconn") and hasattr(source, "putconn"):
        return PsycopgAdapter(source.getconn, source.putconn)
    return PsycopgAdapter(source, None) if callable(source) else None


async def result_of(answer: Any) -> Any:
    """The result of a method that a blocking and an asyncio connection have in common."""
    return await answer if inspect.isawaitable(answer) else answer


class PsycopgForms(Forms):
    """Statements compiled for psycopg, and for libpq if they may travel with their BEGIN."""

    def __init__(self) -> None:
        super().__init__(psycopg_dialect())  # type: ignore[no-untyped-call]
        self._firsts: dict[str, FirstStatement | None] = {}

    def first(self, connection: AnyConnection, words: str) -> FirstStatement | None:
        """The statement, if the connection has no transaction and the statement may begin one.

        :func:`_run_first` decides, under the connection's lock.
        """
        if connection.pgconn.transaction_status != TransactionStatus.IDLE:
            return None
        if words not in self._firsts:
            self._firsts[words] = FirstStatement.of(words)
        return self._firsts[words]


async def psycopg_execute(
    connection: AnyConnection, forms: PsycopgForms, statement: Any, values: dict[str, object]
) -> StatementResult:
    """Run a statement, regardless of the connection's row factory and cursor class."""
    words, given = forms.of(statement, values)
    if given and (first := forms.first(connection, words)) is not None:
        if isinstance(connection, psycopg.AsyncConnection):
            async with connection.lock:
                changed = await connection.wait(_run_first(connection, first, given))
        else:
            with connection.lock:
                changed = connection.wait(_run_first(connection, first, given))
        if changed is not None:
            return StatementResult(changed, [])
    cursor: Any
    if isinstance(connection, psycopg.AsyncConnection):
        cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
        await cursor.execute(words.encode(), given)
        rows = await cursor.fetchall() if cursor.description else []
    else:
        cursor = psycopg.Cursor(connection, row_factory=tuple_row)
        cursor.execute(words.encode(), given)
        rows = cursor.fetchall() if cursor.description else []
    return StatementResult(cursor.rowcount, rows)


class _LazyTransaction(psycopg.Transaction):
    """A block whose BEGIN travels with its first statement."""

    def _get_enter_commands(self) -> Iterator[bytes]:
        return iter(())


class _AsyncLazyTransaction(psycopg.AsyncTransaction):
    """The asyncio twin."""

    def _get_enter_commands(self) -> Iterator[bytes]:
        return iter(())


class PsycopgAdapter:
    """Blocking or asyncio connections.

    Args:
        take: Takes a connection from a pool, or connects.
        give: Returns it to the pool; without it the connection is closed.
    """

    kind = "postgresql"
    can_prepare = True
    problems = (psycopg.Error, OSError)

    def __init__(self, take: Callable[[], Any], give: Callable[[Any], Any] | None) -> None:
        self.is_blocking: bool = not inspect.iscoroutinefunction(take)
        self._take = take
        connection = psycopg.Connection if self.is_blocking else psycopg.AsyncConnection
        self._give = give or connection.close
        self._forms = PsycopgForms()

    async def open(self, *, begins_at_once: bool = False) -> DatabaseSession[Any]:
        """See :meth:`DatabaseAdapter.open`."""
        connection = self._take()
        if not self.is_blocking:
            connection = await connection
        elif inspect.isawaitable(connection):
            raise ConfigError("a function that connects without blocking must be an `async def`")
        try:
            _refuse_used(connection)
            session = _PsycopgSession(connection, self._forms, self._give)
            await session.begin(is_lazy=begins_at_once and not connection.autocommit)
        except BaseException:
            await result_of(self._give(connection))
            raise
        return session

    async def execute_outside(self, statement: str) -> None:
        """See :meth:`DatabaseAdapter.execute_outside`."""
        connection = await result_of(self._take())
        try:
            await _execute_outside(connection, statement)
        finally:
            await result_of(self._give(connection))


def _refuse_used(connection: AnyConnection) -> None:
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise DatabaseFailed(
            "the source returned a connection that is broken or already in a transaction"
        )


async def _execute_outside(connection: AnyConnection, statement: str) -> None:
    _refuse_used(connection)
    was = connection.autocommit
    await result_of(connection.set_autocommit(True))
    try:
        await result_of(connection.execute(statement.encode()))
    finally:
        if not connection.closed:
            await result_of(connection.set_autocommit(was))


class _PsycopgSession:
    def __init__(
        self, session: AnyConnection, forms: PsycopgForms, give: Callable[[Any], Any] | None
    ) -> None:
        self.session: Any = session
        self._forms = forms
        self._give = give
        """``None`` if another session owns the connection."""
        self._block: Any = None
        self._is_blocking = not isinstance(session, psycopg.AsyncConnection)
        self.canary = Canary(session)

    async def begin(self, *, is_lazy: bool = False) -> None:
        if is_lazy:
            lazy: Any = _LazyTransaction if self._is_blocking else _AsyncLazyTransaction
            block = lazy(self.session)
        else:
            block = self.session.transaction()
        await result_of(block.__enter__() if self._is_blocking else block.__aenter__())
        self._block = block

    async def execute(self, statement: Any, **values: object) -> StatementResult:
        return await psycopg_execute(self.session, self._forms, statement, values)

    async def flush(self) -> None:
        """A connection has no pending writes."""

    def status(self) -> SessionStatus:
        status = self.session.pgconn.transaction_status
        if status == TransactionStatus.INTRANS:
            return SessionStatus.OPEN if self.canary.is_sure() else SessionStatus.UNSURE
        if status == TransactionStatus.IDLE:
            return SessionStatus.ENDED
        return SessionStatus.ABORTED

    async def commit(self, *, is_last: bool = False) -> None:
        del is_last
        assert self._block is not None, "there is a transaction to commit"
        await self._leave(None)

    async def prepare(self, statement: str) -> str:
        cursor: Any = (psycopg.Cursor if self._is_blocking else psycopg.AsyncCursor)(self.session)
        await result_of(cursor.execute(statement.encode()))
        answer = str(cursor.statusmessage)
        if self.session.autocommit:
            # The block needs an open transaction to end.
            await result_of(cursor.execute(b"BEGIN"))
        return answer

    async def begin_again(self) -> DatabaseSession[Any]:
        await self._leave(psycopg.Rollback())
        again = _PsycopgSession(self.session, self._forms, None)
        await again.begin()
        return again

    async def execute_outside(self, statement: str) -> None:
        await self._leave(psycopg.Rollback())
        await _execute_outside(self.session, statement)

    async def close(self) -> None:
        try:
            await self._leave(psycopg.Rollback())
        finally:
            if self._give is not None:
                await result_of(self._give(self.session))

    async def _leave(self, problem: psycopg.Rollback | None) -> None:
        """End the block if it is open: commit, or roll back because of a problem."""
        block, self._block = self._block, None
        if block is not None:
            leave = block.__exit__ if self._is_blocking else block.__aexit__
            await result_of(leave(problem and type(problem), problem, None))


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


def _begins_alone(connection: AnyConnection) -> bool:
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


def _run_first(
    connection: AnyConnection, statement: FirstStatement, given: Mapping[str, object]
) -> PQGen[int | None]:
    """Begin a transaction with a statement, and return the number of changed rows; run this with
    ``connection.wait``, under the connection's lock.

    Returns ``None``, having done nothing, if the BEGIN must travel alone.

    Raises:
        psycopg.Error: The statement failed; its transaction is broken, or did not begin.
    """
    if _begins_alone(connection) or (values := statement.values(given)) is None:
        return None
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
        # Our notes about the connection's prepared statements were wrong.
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


LISTENING_PROBLEMS: Final = (psycopg.Error, OSError)

LOOK_S: Final = 10.0
"""The time between two checks that the connection is alive."""


async def likeness(session: Any) -> str | None:
    """The parameters to open another connection like a session's; ``None`` if the session does not
    use psycopg.
    """
    found: Any = session
    if isinstance(session, AsyncSession):
        raw = await (await session.connection()).get_raw_connection()
        found = raw.driver_connection
    elif isinstance(session, Session):
        found = session.connection().connection.driver_connection
    if not isinstance(found, psycopg.Connection | psycopg.AsyncConnection):
        return None
    known = found.info
    return make_conninfo(known.dsn, **({"password": known.password} if known.password else {}))


async def listen(like: str, channel: str, heard: Callable[[], None]) -> None:
    """Call a function at each NOTIFY of a channel, and once at the beginning.

    The connection stays outside transactions, so it does not hold back VACUUM.

    Args:
        like: The result of :func:`likeness`.
        channel: The channel.
        heard: The function to call; one call may cover several notifications.

    Raises:
        Exception: One of :data:`LISTENING_PROBLEMS`; the connection failed or was lost.
    """
    connection = await psycopg.AsyncConnection.connect(like, autocommit=True)
    try:
        await connection.execute(SQL("LISTEN {}").format(Identifier(channel)))
        heard()
        while True:
            async for _ in connection.notifies(timeout=LOOK_S):
                heard()
            await connection.execute("SELECT 1")
    finally:
        await connection.close()
