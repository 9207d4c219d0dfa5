"""The exactly-once guard: its row is committed together with the work, or neither is."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from hashlib import blake2b
from typing import Any, Final, Generic, Literal, Protocol, TypedDict, TypeVar, Unpack, overload

from txmq.settings.extras import named_extra
from txmq.settings.units import DurationLike, seconds

with named_extra():
    from sqlalchemy import (
        BigInteger,
        Column,
        Delete,
        Engine,
        Executable,
        Index,
        MetaData,
        Table,
        Text,
        Update,
        bindparam,
        cast,
        delete,
        insert,
        inspect,
        literal_column,
        select,
        text,
        tuple_,
        update,
    )
    from sqlalchemy.dialects import mysql as _mysql
    from sqlalchemy.dialects import postgresql as _postgresql
    from sqlalchemy.dialects import sqlite as _sqlite
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
    from sqlalchemy.orm import Session

from txmq.databases.adapter import (
    DatabaseAdapter,
    DatabaseSession,
    lock_timeout,
    open_with_lock_timeout,
)
from txmq.databases.canary import TRANSACTION, TURN
from txmq.databases.dialects import NOW_MS
from txmq.databases.failures import Failure, failure, words
from txmq.databases.guarded_transaction import drive
from txmq.databases.sources import AsyncPool, DjangoConnection, Pool, adapter_of
from txmq.databases.tables import (
    any_text,
    create_command,
    plain_names,
    plain_text,
    statements,
)
from txmq.errors import ConfigError, DatabaseFailed, FenceUnsafe, TableMissing
from txmq.idempotent.guard import (
    Attempt,
    KeyState,
    Payload,
    Verdict,
    check_text,
    fingerprint,
    judge,
    redelivery_horizon,
)
from txmq.idempotent.transaction_attempt import NothingToDo, TransactionAttempt
from txmq.limits import DONE_ROWS_REMOVED, KEY_CHARS_MAX

__all__ = ["DoneTable", "UniqueKeyTable", "create_done"]


class _AwaitedSession(Protocol):
    """A session whose commit is awaited."""

    def commit(self) -> Coroutine[Any, Any, None]: ...


class _BlockingSession(Protocol):
    """A session whose commit blocks."""

    def commit(self) -> None: ...


S = TypeVar("S")
AwaitedS = TypeVar("AwaitedS", bound=_AwaitedSession)
BlockingS = TypeVar("BlockingS", bound=_BlockingSession)
C = TypeVar("C", bound=DjangoConnection)

_WAIT_MS: Final = 1_000
"""MySQL has no try-lock: the second attempt waits, and this is the shortest wait it offers."""

_TRIAL: Final = "txmq:trial"


class UniqueKeyOptions(TypedDict, total=False):
    """The options of a :class:`UniqueKeyTable`."""

    table: str
    schema: str | None


class CleanOptions(TypedDict, total=False):
    """The options of :meth:`UniqueKeyTable.clean`."""

    horizon: DurationLike | None
    batch: int


class UniqueKeyTable(Generic[S]):
    """A guard in the database of the work.

    The row of a key is inserted before the work, in the same database transaction. Both are
    committed, or neither is: no crash, lost answer or simultaneous second delivery leaves the work
    half done. It does not cover effects of the function outside its session.

    Work can be repeated in two cases: the database lost an acknowledged commit, or :meth:`clean`
    removed a row whose message could still be delivered again.

    An attempt at a key that another attempt works on gets ``IN_PROGRESS`` at once; on MySQL after a
    second; on SQLite, where one transaction writes at a time, after the driver's time-out.

    Args:
        source: As for :class:`txmq.SQLResource`: an SQLAlchemy ``Engine``, ``sessionmaker``,
            ``AsyncEngine`` or ``async_sessionmaker``; a psycopg pool, or a function that connects;
            ``django.db.connection``.
        table: The table's name.
        schema: Its schema; by default, the session's default schema.

    Raises:
        ConfigError: The source is not one of these.
    """

    has_session: Literal[True] = True

    @overload
    def __init__(
        self: UniqueKeyTable[Session], source: Engine, **options: Unpack[UniqueKeyOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: UniqueKeyTable[AsyncSession], source: AsyncEngine, **options: Unpack[UniqueKeyOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: UniqueKeyTable[C], source: C, **options: Unpack[UniqueKeyOptions]
    ) -> None: ...
    @overload
    def __init__(
        self,
        source: AsyncPool[S] | Pool[S] | Callable[[], Coroutine[Any, Any, S]],
        **options: Unpack[UniqueKeyOptions],
    ) -> None: ...
    @overload
    def __init__(self, source: Callable[[], S], **options: Unpack[UniqueKeyOptions]) -> None: ...
    def __init__(self, source: Any, *, table: str = "txmq_done", schema: str | None = None) -> None:
        self._adapter: DatabaseAdapter[S] = adapter_of(source)
        self._done = DoneTable(table, schema)
        self.is_blocking: bool = self._adapter.is_blocking
        """True if its attempts use ``with``; otherwise they use ``async with``."""

    def attempt(self, key: str, *, scope: str = "", payload: Payload = None) -> Attempt[S]:
        """See :meth:`txmq.idempotent.guard.Guard.attempt`.

        Raises:
            UsageError: The key is invalid.
            LimitExceeded: It is too long.
        """
        checked = check_text(scope, "scope"), check_text(key), fingerprint(payload)
        return UniqueKeyAttempt(self._done, self._adapter, *checked)

    async def verify(self) -> None:
        """Check that the table exists, and that a rollback removes its rows.

        Raises:
            TableMissing: There is no such table.
            FenceUnsafe: Rows survive a rollback.
            DatabaseFailed: The database does not answer.
        """
        work = self.verify_here()
        await (asyncio.to_thread(drive, work) if self.is_blocking else work)

    async def verify_here(self) -> None:
        """Like :meth:`verify`, but in this thread.

        Raises:
            TableMissing: There is no such table.
            FenceUnsafe: Rows survive a rollback.
            DatabaseFailed: The database does not answer.
        """
        done, trial = self._done, secrets.token_hex(16)
        try:
            # Closing the session rolls the row back.
            async with open_with_lock_timeout(self._adapter, _WAIT_MS) as db:
                attempt = UniqueKeyAttempt(done, self._adapter, _TRIAL, trial, "")
                await attempt._insert_row(db)  # noqa: SLF001 - in a session with a lock timeout
            async with open_with_lock_timeout(self._adapter, _WAIT_MS) as db:
                this = {"of_scope": _TRIAL, "of_key": trial}
                if (await db.execute(done.look, **this)).rows:
                    await db.execute(done.remove, **this)
                    await db.commit()
                    raise FenceUnsafe(
                        f"a row stayed in {done.name} after a rollback: switch autocommit off, and "
                        "use a storage engine with transactions"
                    )
        except NothingToDo as locked:
            raise DatabaseFailed(f"another session locks {done.name}; try again") from locked
        except self._adapter.problems as error:
            _check_missing(done, error)
            raise DatabaseFailed(f"the database did not answer: {words(error)}") from error

    @overload
    def clean(
        self: UniqueKeyTable[AwaitedS], older_than: DurationLike, **options: Unpack[CleanOptions]
    ) -> Coroutine[Any, Any, int]: ...
    @overload
    def clean(
        self: UniqueKeyTable[BlockingS] | UniqueKeyTable[C],
        older_than: DurationLike,
        **options: Unpack[CleanOptions],
    ) -> int: ...
    def clean(
        self,
        older_than: DurationLike,
        *,
        horizon: DurationLike | None = None,
        batch: int = DONE_ROWS_REMOVED,
    ) -> int | Coroutine[Any, Any, int]:
        """Remove the rows of old keys, in batches; call it from time to time.

        It does not wait for locks, and other transactions never wait for more than one batch. Await
        it for an asyncio source; with a blocking source it blocks.

        Args:
            older_than: The age from which rows are removed, by the database's clock.
            horizon: How long messages can be delivered again; see :func:`redelivery_horizon`.
            batch: The number of rows that one database transaction removes.

        Returns:
            The number of removed rows.

        Raises:
            ConfigError: Messages of this age can still be delivered again.
            TableMissing: There is no such table.
            DatabaseFailed: The database does not answer; call again.
        """
        least_s = redelivery_horizon() if horizon is None else seconds("horizon", horizon)
        older_s = seconds("older_than", older_than)
        if older_s < least_s:
            raise ConfigError(
                f"a message can be delivered again for {least_s:.0f} s, so rows that are "
                f"{older_s:.0f} s old are still needed: keep them longer, or set horizon "
                "(--horizon) to the real time"
            )
        work = self._clean(int(older_s * 1000), max(1, batch))
        return drive(work) if self.is_blocking else work

    async def _clean(self, older_ms: int, batch: int) -> int:
        removed, last = 0, batch
        try:
            async with open_with_lock_timeout(self._adapter, _WAIT_MS) as db:
                clock = await db.execute(f"SELECT {NOW_MS[self._adapter.kind]}")
                before_ms = int(clock.rows[0][0]) - older_ms
            while last >= batch:
                async with open_with_lock_timeout(self._adapter, _WAIT_MS) as db:
                    last = await self._remove(db, before_ms, batch)
                    await db.commit()
                removed += last
        except self._adapter.problems as error:
            _check_missing(self._done, error)
            raise DatabaseFailed(
                f"{self._done.name} could not be cleaned: {words(error)}; try again"
            ) from error
        return removed

    async def _remove(self, db: DatabaseSession[Any], before_ms: int, batch: int) -> int:
        done, old = self._done, {"before_ms": before_ms, "batch": batch}
        if self._adapter.kind != "mysql":
            return (await db.execute(done.remove_old[self._adapter.kind], **old)).changed
        gone = 0
        for scope, key in (await db.execute(done.old, **old)).rows:
            gone += (await db.execute(done.remove, of_scope=scope, of_key=key)).changed
        return gone


class UniqueKeyAttempt(TransactionAttempt[S]):
    """An attempt that inserts the row of its key first.

    Args:
        done: The table.
        adapter: The database.
        scope: The scope of the key.
        key: The key.
        payload: The fingerprint of the payload.
    """

    def __init__(
        self, done: DoneTable, adapter: DatabaseAdapter[S], scope: str, key: str, payload: str
    ) -> None:
        super().__init__(adapter)
        self._done = done
        self._payload = payload
        self._this: dict[str, object] = {"of_scope": scope, "of_key": key}
        self._values: dict[str, object] = {"as_fingerprint": payload}
        if adapter.kind == "postgresql":
            self._values["of_lock"] = done.lock(scope, key)

    @property
    def _name(self) -> str:
        return f"the transaction of key {self._this['of_key']!r}"

    async def _insert_row(self, db: DatabaseSession[Any]) -> None:
        adapter = self._adapter
        try:
            if adapter.kind == "mysql":
                async with lock_timeout(adapter, db, _WAIT_MS):
                    is_new = await self._claim(db)
            else:
                is_new = await self._claim(db)
            if not is_new:
                raise NothingToDo(await self._look(db))
        except adapter.problems as error:
            if failure(error) is Failure.LOCKED:
                raise NothingToDo(KeyState(Verdict.IN_PROGRESS)) from error
            _check_missing(self._done, error)
            raise

    async def _claim(self, db: DatabaseSession[Any]) -> bool:
        claim = self._done.claims[self._adapter.kind]
        try:
            answer = await db.execute(claim, **self._this, **self._values)
        except self._adapter.problems as error:
            if failure(error) is not Failure.DUPLICATE:
                raise
            return False
        if answer.rows:
            self._transaction = answer.rows[0][0]
        return answer.changed == 1

    async def _look(self, db: DatabaseSession[Any]) -> KeyState:
        look = self._done.look_now if self._adapter.kind == "mysql" else self._done.look
        found = (await db.execute(look, **self._this)).rows
        if not found:
            # Another attempt holds the key, or has just rolled back; the next one will know.
            return KeyState(Verdict.IN_PROGRESS)
        theirs, result = found[0]
        return judge(self._payload, theirs, result)

    async def _before_commit(self, db: DatabaseSession[Any]) -> None:
        if self.kept is not None:
            await db.execute(self._done.keep, **self._this, as_result=self.kept)

    async def _is_row_committed(self, db: DatabaseSession[Any]) -> bool:
        return bool((await db.execute(self._done.look, **self._this)).rows)


def _check_missing(done: DoneTable, error: Exception) -> None:
    """Raise :class:`TableMissing` if the error means that the table or a column is missing."""
    if failure(error) in {Failure.MISSING, Failure.CHANGED}:
        raise TableMissing(
            f"there is no table {done.name} with the columns that this version needs: run "
            f"`{create_command('done', done.table)}`, or have a migration run the output of "
            f"`txmq schema sql done` ({words(error)})"
        ) from error


def create_done(engine: Engine, name: str = "txmq_done", schema: str | None = None) -> bool:
    """Create the table if it is missing, and verify it; returns whether it was missing.

    Raises:
        ConfigError: A name needs quotes in some database.
        DatabaseFailed: The database refused, or does not answer.
        ResourceError: It exists but cannot be used; see :meth:`UniqueKeyTable.verify`.
    """
    done = DoneTable(name, schema)
    try:
        with engine.begin() as connection:
            is_new = not inspect(connection).has_table(name, schema)
            done.metadata.create_all(connection, checkfirst=True)
    except SQLAlchemyError as error:
        raise DatabaseFailed(f"could not create {done.name}: {words(error)}") from error
    guard = UniqueKeyTable(engine, table=name, schema=schema)
    # It never awaits on a blocking engine, so this works even inside an event loop.
    drive(guard.verify_here())
    return is_new


_LOCK: Final = "pg_try_advisory_xact_lock(CAST(:of_lock AS BIGINT))"


class DoneTable:
    """The table, and the statements that use it.

    Args:
        name: The table's name.
        schema: Its schema; by default, the session's default schema.
        metadata: Your own metadata, if a tool such as Alembic should see the table.

    Raises:
        ConfigError: A name needs quotes in some database.
    """

    def __init__(
        self,
        name: str = "txmq_done",
        schema: str | None = None,
        metadata: MetaData | None = None,
    ) -> None:
        plain_names(name, schema)
        self.metadata: MetaData = MetaData() if metadata is None else metadata
        self.table: Table = _done(name, schema, self.metadata)
        done = self.table.c
        self._is_this = (
            done.scope == bindparam("of_scope"),
            done.done_key == bindparam("of_key"),
        )
        self.claims: dict[str, Executable] = {
            # SQLAlchemy does not count the inserted rows unless asked to.
            kind: self._claim(kind).execution_options(preserve_rowcount=True)
            for kind in NOW_MS
        }
        look = select(done.fingerprint, done.result).where(*self._is_this)
        self.look: Executable = look
        self.look_now: Executable = look.with_for_update(read=True)
        """Reads the current row; a plain SELECT of MySQL may read an old snapshot."""
        self.keep: Update = (
            update(self.table).where(*self._is_this).values(result=bindparam("as_result"))
        )
        self.remove: Delete = delete(self.table).where(*self._is_this)
        old = (
            select(done.scope, done.done_key)
            .where(done.done_ms < bindparam("before_ms"))
            .order_by(done.done_ms)
            .limit(bindparam("batch"))
        )
        self.old: Executable = old.with_for_update(skip_locked=True)
        self.remove_old: dict[str, Delete] = {
            # A removal does not wait for locks, so it cannot be part of a deadlock.
            "postgresql": delete(self.table).where(tuple_(done.scope, done.done_key).in_(self.old)),
            "sqlite": delete(self.table).where(tuple_(done.scope, done.done_key).in_(old)),
        }

    @property
    def name(self) -> str:
        """The table's name, with its schema."""
        return self.table.fullname

    def lock(self, scope: str, key: str) -> int:
        """The number of PostgreSQL's advisory lock for a key."""
        named = f"{self.table.name}\0{scope}\0{key}".encode()
        return int.from_bytes(blake2b(named, digest_size=8).digest(), signed=True)

    def _claim(self, kind: str) -> Executable:
        """Insert a row, unless one exists or its key is locked."""
        rows: Any = select(
            cast(bindparam("of_scope"), Text),
            cast(bindparam("of_key"), Text),
            cast(bindparam("as_fingerprint"), Text),
            text(NOW_MS[kind]),
        )
        columns = ["scope", "done_key", "fingerprint", "done_ms"]
        if kind == "postgresql":
            # Without the lock this statement would wait for the running attempt, and occupy a
            # connection.
            rows = rows.where(text(_LOCK), text(TURN))
            statement = _postgresql.insert(self.table).from_select(columns, rows)
            return statement.on_conflict_do_nothing().returning(literal_column(TRANSACTION))
        if kind == "sqlite":
            rows = rows.where(text("true"))  # Without it the parser takes ON as part of a join.
            return _sqlite.insert(self.table).from_select(columns, rows).on_conflict_do_nothing()
        # MySQL's INSERT IGNORE would hide other errors, so a duplicate key raises there.
        return insert(self.table).from_select(columns, rows)

    def ddl(self, dialect: str) -> list[str]:
        """The statements that create the table, for ``postgresql``, ``mysql`` or ``sqlite``.

        Raises:
            ConfigError: The dialect is not supported.
        """
        return statements([self.table], dialect)


def _done(name: str, schema: str | None, metadata: MetaData) -> Table:
    table = Table(
        name,
        metadata,
        Column("scope", any_text(KEY_CHARS_MAX), primary_key=True),
        Column("done_key", any_text(KEY_CHARS_MAX), primary_key=True),
        Column("fingerprint", plain_text(32), nullable=False),
        Column(
            "result", Text().with_variant(_mysql.MEDIUMTEXT(charset="utf8mb4"), "mysql", "mariadb")
        ),
        Column("done_ms", BigInteger, nullable=False),
        schema=schema,
        mysql_engine="InnoDB",
    )
    Index(f"{name}_time", table.c.done_ms)
    return table
