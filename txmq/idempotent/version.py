"""The guard without a table: the version of the changed row shows which changes are done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from hashlib import blake2b
from typing import (
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    NoReturn,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from sqlalchemy import (
    Column,
    ColumnElement,
    Engine,
    MetaData,
    Select,
    Table,
    bindparam,
    inspect,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.exc import NoInspectionAvailable
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
)
from sqlalchemy.orm import InstrumentedAttribute, Mapper, Session, scoped_session

from txmq.databases.adapter import DatabaseAdapter, DatabaseSession, StatementResult, reading
from txmq.databases.canary import TRANSACTION, TURN
from txmq.databases.dialects import NOW_MS
from txmq.databases.failures import Failure, failure
from txmq.databases.guarded_transaction import drive
from txmq.databases.sources import (
    AsyncPool,
    AwaitedSession,
    BlockingSession,
    CallerSession,
    CallerSessions,
    DjangoConnection,
    Pool,
    adapter_of,
)
from txmq.errors import ConfigError, DatabaseFailed, UsageError, VersionGap
from txmq.idempotent.guard import Attempt, KeyState, Payload, Verdict
from txmq.idempotent.transaction_attempt import NothingToDo, TransactionAttempt
from txmq.runtime.clock import Clock, SystemClock
from txmq.settings.units import DurationLike, seconds

__all__ = ["Gaps", "VersionGuard"]

S = TypeVar("S")
C = TypeVar("C", bound=DjangoConnection)

Gaps: TypeAlias = Literal["retry", "wait", "accept"]

FIRST_PAUSE_S: Final = 0.01
LONGEST_PAUSE_S: Final = 0.5
"""The longest pause between two looks at a row whose previous version has not arrived."""


class VersionOptions(TypedDict, total=False):
    """The options of a :class:`VersionGuard`."""

    version: Any
    key: Any
    gaps: Gaps
    wait: DurationLike
    first: int
    clock: Clock


class VersionGuard(Generic[S]):
    """A guard in the changed rows: a message creates version v of a row, which happens only once.

    The key is a pair of the row's key and v. Before the function runs, the guard sets the row's
    version from v - 1 to v in the same database transaction; both are committed, or neither is. A
    version that the row has reached or passed is ``DONE``, whichever message it came with. The row
    is locked while the function works, so two versions of a row never run in parallel; the second
    transaction waits for the lock.

    Before the first version there is no row: the function inserts it with that version, and the
    guard checks that it did. Use a plain INSERT: under MySQL's READ COMMITTED two functions may
    work on the first version at once, and the second INSERT undoes one of them.

    The guard does not compare payloads: another message with the same version is ``DONE``, never
    ``CONFLICT``. So one owner must count the versions. It stores no results. If a row is deleted,
    all its versions are forgotten; mark rows as deleted instead.

    Args:
        source: As for :class:`txmq.SQLResource`.
        model: A mapped class, or a table of SQLAlchemy.
        version: The version column.
        key: The column or columns that uniquely identify a row; by default its primary key.
        gaps: What to do with a version that arrives before an earlier one. ``retry``: raise
            :class:`VersionGap`; consumers of txmq deliver the message again later. ``wait``: wait
            for the missing versions without holding a connection, then raise if they are still
            missing. ``accept``: skip the missing versions for good, because the newest state
            contains them.
        wait: The longest wait with ``gaps="wait"``.
        first: The version of a new row.
        clock: The source of time.

    Raises:
        ConfigError: A column does not exist, or the source is not supported.
    """

    has_session: Literal[True] = True
    keeps_result: Literal[False] = False

    @overload
    def __init__(
        self: VersionGuard[Session], source: Engine, model: Any, **options: Unpack[VersionOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: VersionGuard[AsyncSession],
        source: AsyncEngine,
        model: Any,
        **options: Unpack[VersionOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: VersionGuard[C], source: C, model: Any, **options: Unpack[VersionOptions]
    ) -> None: ...
    @overload
    def __init__(
        self,
        source: AsyncPool[S] | Pool[S] | Callable[[], Coroutine[Any, Any, S]],
        model: Any,
        **options: Unpack[VersionOptions],
    ) -> None: ...
    @overload
    def __init__(
        self, source: Callable[[], S], model: Any, **options: Unpack[VersionOptions]
    ) -> None: ...
    def __init__(
        self,
        source: Any,
        model: Any,
        *,
        version: Any = "version",
        key: Any = None,
        gaps: Gaps = "retry",
        wait: DurationLike = 5.0,
        first: int = 1,
        clock: Clock | None = None,
    ) -> None:
        if gaps not in {"retry", "wait", "accept"}:
            raise ConfigError(f"gaps is {gaps!r}; choose 'retry', 'wait' or 'accept'")
        self._adapter: DatabaseAdapter[S] = adapter_of(source)
        self.is_blocking: bool = self._adapter.is_blocking
        """True if its attempts use ``with``; otherwise they use ``async with``."""
        self._rows = VersionedRows(model, version, key, first=first, takes_gaps=gaps == "accept")
        self._bump = self._rows.bump(self._adapter.kind)
        self._sessions = CallerSessions(self._rows.table)
        self._wait_s = seconds("wait", wait) if gaps == "wait" else 0.0
        self._clock = clock or SystemClock()

    def attempt(
        self, key: tuple[Any, int], *, scope: str = "", payload: Payload = None
    ) -> Attempt[S]:
        """See :meth:`txmq.idempotent.guard.Guard.attempt`; a row has one version for all scopes,
        and payloads are not compared.

        Raises:
            UsageError: The key is not a pair of a key and a version.
        """
        del scope, payload
        target = self._rows.parse(key)
        return VersionAttempt(
            self._adapter, self._rows, target, self._bump, self._wait_s, self._clock
        )

    @overload
    def bump(
        self,
        session: AwaitedSession,
        key: tuple[Any, int],
        values: Mapping[Any, object] | None = None,
    ) -> Coroutine[Any, Any, Verdict]: ...
    @overload
    def bump(
        self,
        session: BlockingSession,
        key: tuple[Any, int],
        values: Mapping[Any, object] | None = None,
    ) -> Verdict: ...
    def bump(
        self,
        session: AwaitedSession | BlockingSession,
        key: tuple[Any, int],
        values: Mapping[Any, object] | None = None,
    ) -> Verdict | Coroutine[Any, Any, Verdict]:
        """Bump the version in your own transaction, by one ``UPDATE`` that changes the row only if
        this version is next. Await it for an asyncio session.

        ``FIRST``: the version is bumped. Do its work in the same transaction; if there was no row,
        insert it with that version. ``DONE``: there is nothing to do. The bump counts once you
        commit. An ORM session reloads its objects of the row, because they may be older than the
        lock.

        Args:
            session: A ``Session`` or ``Connection`` of SQLAlchemy or its asyncio twin, a connection
                of psycopg, or ``django.db.connection``.
            key: The row's key and the version.
            values: Other columns, or their names, to set in the same statement, with values or
                expressions. They have no effect if there is no row.

        Raises:
            VersionGap: An earlier version has not arrived yet, and ``gaps`` is not ``accept``.
                ``wait`` does not wait here, because your transaction would stay open. Nothing was
                changed.
            UsageError: The key is not a pair; the session is not supported, commits each statement
                by itself, or has unwritten changes of the row.
            Exception: What the session's library raises.
        """
        target, given = self._rows.parse(key), self._sessions.find(session)
        statement = self._rows.bump(given.kind, values)
        _expire_loaded(session, self._rows, target)
        work = self._bump_in(given, target, statement)
        return drive(work) if given.is_blocking else work

    async def _bump_in(self, given: CallerSession, target: RowVersion, statement: Any) -> Verdict:
        return (await self._rows.bump_to(given.kind, given.execute, target, statement)).verdict

    @overload
    def judge(
        self, session: AwaitedSession, key: tuple[Any, int], changed: int
    ) -> Coroutine[Any, Any, Verdict]: ...
    @overload
    def judge(self, session: BlockingSession, key: tuple[Any, int], changed: int) -> Verdict: ...
    def judge(
        self, session: AwaitedSession | BlockingSession, key: tuple[Any, int], changed: int
    ) -> Verdict | Coroutine[Any, Any, Verdict]:
        """The verdict after your own ``UPDATE``, which sets the version to v ``WHERE`` it was
        v - 1, from the number of rows that it changed.

        Returns:
            ``FIRST`` if it changed a row, or if no row exists yet and this is the first version,
            which you then insert. ``DONE`` if the row already had this version. ``IN_PROGRESS`` if
            the version was too early for the statement but is next now: run it again.

        Raises:
            VersionGap: An earlier version has not arrived yet.
            UsageError: The statement changed several rows; or as for :meth:`bump`.
            Exception: What the session's library raises.
        """
        target, given = self._rows.parse(key), self._sessions.find(session)
        work = self._judge_in(given, target, changed)
        return drive(work) if given.is_blocking else work

    async def _judge_in(self, given: CallerSession, target: RowVersion, changed: int) -> Verdict:
        if changed not in {0, 1}:
            raise UsageError(f"the statement for {target} changed {changed} rows, not 0 or 1")
        if changed:
            return Verdict.FIRST
        found = await self._rows.look(given.execute, target, given.kind)
        return self._rows.judge(target, found)


class VersionAttempt(TransactionAttempt[S]):
    """An attempt that bumps the version first: its guard row is the changed row.

    Args:
        adapter: The database.
        rows: The rows of the table.
        target: The row's key and version.
        bump: The statement.
        wait_s: How long to wait for missing versions.
        clock: The source of time.
    """

    def __init__(
        self,
        adapter: DatabaseAdapter[S],
        rows: VersionedRows,
        target: RowVersion,
        bump: Any,
        wait_s: float,
        clock: Clock,
    ) -> None:
        super().__init__(adapter)
        self._rows = rows
        self._target = target
        self._bump = bump
        self._wait_s = wait_s
        self._clock = clock
        self._is_new = False
        """Whether the function must insert the row."""

    def keep(self, result: object) -> NoReturn:
        """Refuse a result.

        Raises:
            UsageError: Always.
        """
        del result
        raise UsageError("a VersionGuard cannot store results")

    async def begin(self) -> Self:
        """See :meth:`Attempt.begin`."""
        until, pause_s = self._clock.monotonic() + self._wait_s, FIRST_PAUSE_S
        while True:
            try:
                return await super().begin()
            except VersionGap:
                while not await self._is_next():
                    left_s = until - self._clock.monotonic()
                    if left_s <= 0:
                        raise
                    await self._pause(min(pause_s, left_s))
                    pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            self._db = None  # The loop begins again.

    async def _pause(self, seconds: float) -> None:
        if self.is_blocking:
            time.sleep(seconds)  # noqa: ASYNC251 - a blocking source has no event loop
        else:
            await asyncio.sleep(seconds)

    async def _is_next(self) -> bool:
        """Whether all earlier versions have arrived; reads in a separate transaction."""
        if not self._wait_s:
            return False
        async with reading(self._adapter.open()) as db:
            found = await self._rows.look(db.execute, self._target)
        try:
            self._rows.judge(self._target, found)
        except VersionGap:
            return False
        return True

    def is_undone_for_others(self, error: Exception) -> bool:
        """See :meth:`Attempt.is_undone_for_others`; also true after a concurrent INSERT of the
        first version.
        """
        is_overtaken = self._is_new and failure(error) is Failure.DUPLICATE
        return is_overtaken or super().is_undone_for_others(error)

    @property
    def _name(self) -> str:
        return f"the transaction of {self._target}"

    async def _insert_row(self, db: DatabaseSession[Any]) -> None:
        self._is_new = False
        try:
            result = await self._rows.bump_to(
                self._adapter.kind, db.execute, self._target, self._bump
            )
        except Exception as error:
            if failure(error) is Failure.LOCKED:
                raise NothingToDo(KeyState(Verdict.IN_PROGRESS)) from error
            raise
        if result.verdict is not Verdict.FIRST:
            raise NothingToDo(KeyState(result.verdict))
        self._is_new, self._transaction = result.is_new, result.transaction

    async def _before_commit(self, db: DatabaseSession[Any]) -> None:
        """Check that the function inserted a new row; otherwise the next message of this version
        would repeat the work.
        """
        if not self._is_new:
            return
        found = await self._rows.look(db.execute, self._target)
        if found != [self._target.version]:
            raise UsageError(
                f"{self._target} is the first, so the function must insert its row into "
                f"{self._rows.table.name}, with this version"
            )

    async def _is_row_committed(self, db: DatabaseSession[Any]) -> bool:
        found = await self._rows.look(db.execute, self._target)
        return bool(found) and found[0] is not None and found[0] >= self._target.version


Execute: TypeAlias = Callable[..., Awaitable[StatementResult]]
"""Runs a statement in a session; see :meth:`txmq.databases.adapter.DatabaseSession.execute`."""

LOOKS_MAX: Final = 4
"""The bump is retried if, between the UPDATE and the SELECT, the row appeared, or reached the
version before ours. Each of the two can happen once."""

_LOCK: Final = text("SELECT pg_advisory_xact_lock(CAST(:txmq_lock AS BIGINT))")


class RowVersion(NamedTuple):
    """A version of a row."""

    key: tuple[object, ...]
    """The values of the key columns."""
    version: int

    def __str__(self) -> str:
        key = self.key[0] if len(self.key) == 1 else self.key
        return f"version {self.version} of {key!r}"


class BumpResult(NamedTuple):
    """The result of a bump."""

    verdict: Verdict
    is_new: bool = False
    """There is no row yet: the caller inserts it."""
    transaction: int | None = None
    """PostgreSQL's id of the transaction."""


class VersionedRows:
    """The rows of one table, by key and version.

    Args:
        model: A mapped class, or a table.
        version: The version column: its name, its attribute, or the column.
        key: The key columns, given in the same ways; by default the primary key.
        first: The version with which a row is inserted.
        takes_gaps: Whether to accept a version even if earlier versions are missing.

    Raises:
        ConfigError: A column does not exist, or cannot be used.
    """

    def __init__(self, model: Any, version: Any, key: Any, *, first: int, takes_gaps: bool) -> None:
        if first < 1:
            raise ConfigError(f"the first version is {first}: it must be 1 or more")
        self.mapper: Mapper[Any] | None = _mapper(model)
        self.version: Column[Any] = _column(model, self.mapper, version)
        table = self.version.table
        if not isinstance(table, Table):
            raise ConfigError(
                f"{self.version} is a column of a {type(table).__name__}: use a column of a table"
            )
        self.table = table
        self.key: list[Column[Any]] = _key(model, self.mapper, table, key)
        if (
            self.mapper is not None
            and self.mapper.version_id_col is self.version
            and self.mapper.version_id_generator is not False
        ):
            raise ConfigError(
                f"the mapper increments {self.version} itself: set version_id_generator=False, so "
                "that the messages set it"
            )
        self._model = model
        self._first = first
        self._takes_gaps = takes_gaps
        self._names = [f"txmq_key_{number}" for number in range(len(self.key))]
        self._look: Select[Any] = select(self.version).where(*self._is_this(self.key))
        self._look_now = self._look.with_for_update(read=True)
        self._bumps = {kind: self._bump(kind) for kind in NOW_MS}

    def _is_this(self, key: Sequence[Column[Any]]) -> list[ColumnElement[bool]]:
        pairs = zip(key, self._names, strict=True)
        return [column == bindparam(name, type_=column.type) for column, name in pairs]

    def _bump(self, kind: str) -> Any:
        # A copy of the table, without the columns that have an onupdate.
        columns = {column: Column(column.name, column.type) for column in (*self.key, self.version)}
        copy = Table(self.table.name, MetaData(), *columns.values(), schema=self.table.schema)
        key = [columns[column] for column in self.key]
        return self._update(kind, copy, key, columns[self.version], {})

    def bump(self, kind: str, values: Mapping[Any, object] | None = None) -> Any:
        """The statement for a kind of database. With ``values`` it also sets other columns, and
        those with an ``onupdate``.

        Raises:
            ConfigError: There is no such column.
        """
        if values is None:
            return self._bumps[kind]
        updated: Any = [column for column in self.table.columns if column.onupdate is not None]
        defaults = {
            column: column.onupdate.arg(None)
            if column.onupdate.is_callable
            else column.onupdate.arg
            for column in updated
        }
        given = {_column(self._model, self.mapper, name): value for name, value in values.items()}
        return self._update(kind, self.table, self.key, self.version, {**defaults, **given})

    def _update(
        self,
        kind: str,
        table: Table,
        key: Sequence[Column[Any]],
        version: Column[Any],
        changed: dict[Any, object],
    ) -> Any:
        new, old = (bindparam(name, type_=version.type) for name in ("txmq_version", "txmq_before"))
        is_old = version < new if self._takes_gaps else version == old
        statement = update(table).where(*self._is_this(key), is_old)
        statement = statement.values({**changed, version: new})
        if kind != "postgresql":
            return statement
        # In RETURNING and not in WHERE: PostgreSQL may evaluate a condition twice.
        return statement.returning(literal_column(TRANSACTION), literal_column(TURN))

    def parse(self, given: object) -> RowVersion:
        """Parse a pair of a key and a version.

        Raises:
            UsageError: It is not a pair, or a part of it is invalid.
        """
        if not isinstance(given, tuple) or len(given) != 2:
            raise UsageError(f"{given!r} is not a pair of a key and a version")
        row_key, version = given
        if not isinstance(version, int) or isinstance(version, bool) or version < self._first:
            raise UsageError(
                f"{version!r} is not a version: versions are whole numbers from {self._first} on"
            )
        key = row_key if len(self.key) > 1 else (row_key,)
        if not isinstance(key, tuple) or len(key) != len(self.key) or None in key:
            names = ", ".join(column.name for column in self.key)
            raise UsageError(
                f"{row_key!r} is not a key of {self.table.name}: a key has a value for {names}"
            )
        return RowVersion(key, version)

    def values(self, target: RowVersion) -> dict[str, object]:
        """The values of a bump's parameters."""
        key = dict(zip(self._names, target.key, strict=True))
        return {**key, "txmq_version": target.version, "txmq_before": target.version - 1}

    async def bump_to(
        self, kind: str, execute: Execute, target: RowVersion, statement: Any
    ) -> BumpResult:
        """Run the statement; if it changed no row, find the reason.

        Raises:
            VersionGap: An earlier version has not arrived yet.
            UsageError: The row has no version, or several rows have the key.
            DatabaseFailed: The row kept changing between the looks.
            Exception: What the session's library raises.
        """
        is_locked = kind != "postgresql"
        for _ in range(LOOKS_MAX):
            answer = await execute(statement, **self.values(target))
            if answer.changed:
                if answer.changed > 1:
                    raise UsageError(f"{self.table.name} has several rows for {target}")
                found = answer.rows[0][0] if answer.rows else None
                return BumpResult(Verdict.FIRST, transaction=found)
            verdict = self.judge(target, await self.look(execute, target, kind))
            if verdict is Verdict.DONE:
                return BumpResult(verdict)
            if verdict is Verdict.FIRST:
                if is_locked:
                    found = None
                    if kind == "postgresql":
                        found = (await execute(f"SELECT {TRANSACTION}, {TURN}")).rows[0][0]
                    return BumpResult(verdict, is_new=True, transaction=found)
                # Otherwise two attempts insert the row, and the work of one is wasted.
                await execute(_LOCK, txmq_lock=self._lock(target))
                is_locked = True
        raise DatabaseFailed(
            f"{self.table.name} did not reach {target}, because its row kept changing; try again"
        )

    async def look(self, execute: Execute, target: RowVersion, kind: str = "") -> list[Any]:
        """The versions of the rows with this key: one, or none.

        Args:
            execute: Runs a statement.
            target: The key.
            kind: The kind of database, to read the latest commits: a plain SELECT of MySQL may read
                an old snapshot.
        """
        statement = self._look_now if kind == "mysql" else self._look
        key = dict(zip(self._names, target.key, strict=True))
        return [row[0] for row in (await execute(statement, **key)).rows]

    def judge(self, target: RowVersion, found: list[Any]) -> Verdict:
        """The verdict on a version after a bump that changed no row: ``DONE``; ``FIRST`` if there
        is no row; ``IN_PROGRESS`` if the version is now the next one.

        Raises:
            VersionGap: An earlier version has not arrived yet.
            UsageError: The row has no version.
        """
        if not found:
            if target.version > self._first and not self._takes_gaps:
                raise VersionGap(f"{target} arrived, but {self.table.name} has no row for it yet")
            return Verdict.FIRST
        if (at := found[0]) is None:
            raise UsageError(f"the row of {target} in {self.table.name} has no version")
        if at >= target.version:
            return Verdict.DONE
        if at < target.version - 1 and not self._takes_gaps:
            raise VersionGap(f"{target} arrived, but {self.table.name} is at {at}")
        return Verdict.IN_PROGRESS

    def _lock(self, target: RowVersion) -> int:
        name = "\0".join([self.table.fullname, *map(str, target.key)]).encode()
        return int.from_bytes(blake2b(name, digest_size=8).digest(), signed=True)


def _mapper(model: Any) -> Mapper[Any] | None:
    if isinstance(model, Table):
        return None
    try:
        found = inspect(model)
    except NoInspectionAvailable:
        found = None
    if not isinstance(found, Mapper):
        raise ConfigError(f"{model!r} is neither a mapped class nor a table")
    return found


def _column(model: Any, mapper: Mapper[Any] | None, given: Any) -> Column[Any]:
    columns = model.c if mapper is None else mapper.columns
    if isinstance(given, InstrumentedAttribute):
        given = getattr(given.property, "columns", [given])[0]
    elif isinstance(given, str) and given in columns:
        given = columns[given]
    if not isinstance(given, Column):
        raise ConfigError(f"{given!r} is not a column of {model!r}")
    return given


def _key(model: Any, mapper: Mapper[Any] | None, table: Table, given: Any) -> list[Column[Any]]:
    if given is None:
        columns = list(table.primary_key.columns)
    else:
        chosen = given if isinstance(given, list | tuple) else [given]
        columns = [_column(model, mapper, column) for column in chosen]
    if not columns or any(column.table is not table for column in columns):
        raise ConfigError(f"the key columns must be columns of {table.name}, like the version")
    return columns


def _expire_loaded(session: object, rows: VersionedRows, target: RowVersion) -> None:
    """Make an ORM session reload its objects of the row: they may be older than the lock, and work
    with old values would undo the changes that the lock waited for.

    Raises:
        UsageError: An object has unwritten changes.
    """
    if isinstance(session, scoped_session | async_scoped_session):
        session = session()
    if isinstance(session, AsyncSession):
        session = session.sync_session
    if not isinstance(session, Session):
        return
    for instance in list(session.identity_map.values()):
        mapper = inspect(instance).mapper
        if rows.table not in mapper.tables:
            continue
        loaded = inspect(instance).dict
        names = [mapper.get_property_by_column(column).key for column in rows.key]
        values = zip(names, target.key, strict=True)
        if any(loaded.get(name, value) != value for name, value in values):
            continue
        if session.is_modified(instance):
            raise UsageError(f"{instance!r} was changed before {target} was bumped: bump first")
        session.expire(instance)
