"""Rows with a version column, and the one statement that bumps the version.

``UPDATE ... SET version = v WHERE key = k AND version = v - 1`` changes one row or none. Of several
transactions that run it at once, exactly one changes the row. That transaction holds the row's lock
and does the work of version v.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

from sqlalchemy import (
    Column,
    ColumnElement,
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
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import InstrumentedAttribute, Mapper, Session, scoped_session

from txmq.databases.adapter import StatementResult
from txmq.databases.canary import TRANSACTION, TURN
from txmq.databases.dialects import NOW_MS
from txmq.errors import ConfigError, DatabaseFailed, UsageError, VersionGap
from txmq.idempotent.verdict import Verdict

__all__ = ["BumpResult", "Execute", "RowVersion", "VersionedRows", "expire_loaded"]

Execute: TypeAlias = Callable[..., Awaitable[StatementResult]]
"""Runs a statement in a session; see :meth:`txmq.databases.adapter.DatabaseSession.execute`."""

LOOKS_MAX: Final = 4
"""The bump is tried again if between the UPDATE and the SELECT the row appeared, or reached the
version before ours. Each of the two can happen once."""

_LOCK: Final = text("SELECT pg_advisory_xact_lock(CAST(:txmq_lock AS BIGINT))")


class RowVersion(NamedTuple):
    """A version of a row."""

    key: tuple[object, ...]
    """The values of the key columns."""
    version: int

    @property
    def of(self) -> str:
        """Its name in error messages."""
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
        key: The key columns, likewise; by default the primary key.
        first: The version with which a row is inserted.
        takes_gaps: Whether to accept a version although versions before it are missing.

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
        if self.mapper is not None and _mapper_counts(self.mapper, self.version):
            raise ConfigError(
                f"the mapper increments {self.version} itself: set version_id_generator=False, so "
                "that the messages set it"
            )
        self._model = model
        self._first = first
        self._takes_gaps = takes_gaps
        self._names = [f"txmq_key_{number}" for number in range(len(self.key))]
        self.look: Select[Any] = select(self.version).where(*self._is_this(self.key))
        self._look_now = self.look.with_for_update(read=True)
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

    def place(self, given: object) -> RowVersion:
        """Parse a pair of a key and a version.

        Raises:
            UsageError: It is not such a pair.
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

    def values(self, place: RowVersion) -> dict[str, object]:
        """The parameters of the statements."""
        key = dict(zip(self._names, place.key, strict=True))
        return {**key, "txmq_version": place.version, "txmq_before": place.version - 1}

    async def bump_to(
        self, kind: str, execute: Execute, place: RowVersion, statement: Any
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
            answer = await execute(statement, **self.values(place))
            if answer.changed:
                if answer.changed > 1:
                    raise UsageError(f"{self.table.name} has several rows for {place.of}")
                found = answer.rows[0][0] if answer.rows else None
                return BumpResult(Verdict.FIRST, transaction=found)
            verdict = self.judge(place, await self.now(kind, execute, place))
            if verdict is Verdict.DONE:
                return BumpResult(verdict)
            if verdict is Verdict.FIRST:
                if is_locked:
                    return BumpResult(
                        verdict, is_new=True, transaction=await _transaction_id(kind, execute)
                    )
                # Otherwise two attempts insert the row, and the work of one is wasted.
                await execute(_LOCK, txmq_lock=self._lock(place))
                is_locked = True
        raise DatabaseFailed(
            f"{self.table.name} does not reach {place.of}: its row kept changing; try again"
        )

    async def at(self, execute: Execute, place: RowVersion) -> list[Any]:
        """The versions of the rows with this key, as this transaction sees them: one, or none."""
        return await self._select(execute, self.look, place)

    async def now(self, kind: str, execute: Execute, place: RowVersion) -> list[Any]:
        """The same, as committed now: a plain SELECT of MySQL may read an old snapshot."""
        return await self._select(execute, self._look_now if kind == "mysql" else self.look, place)

    async def _select(self, execute: Execute, look: Any, place: RowVersion) -> list[Any]:
        key = dict(zip(self._names, place.key, strict=True))
        return [row[0] for row in (await execute(look, **key)).rows]

    def judge(self, place: RowVersion, found: list[Any]) -> Verdict:
        """The verdict on a version after a bump that changed no row: ``DONE``; ``FIRST`` if there
        is no row; ``IN_PROGRESS`` if the version is the next one by now.

        Raises:
            VersionGap: An earlier version has not arrived yet.
            UsageError: The row has no version.
        """
        if not found:
            if place.version > self._first and not self._takes_gaps:
                raise VersionGap(f"{place.of} came, and {self.table.name} has no row of it yet")
            return Verdict.FIRST
        if (at := found[0]) is None:
            raise UsageError(f"the row of {place.of} in {self.table.name} has no version")
        if at >= place.version:
            return Verdict.DONE
        if at < place.version - 1 and not self._takes_gaps:
            raise VersionGap(f"{place.of} came, and {self.table.name} is at {at}")
        return Verdict.IN_PROGRESS

    def _lock(self, place: RowVersion) -> int:
        name = "\0".join([self.table.fullname, *map(str, place.key)]).encode()
        return int.from_bytes(blake2b(name, digest_size=8).digest(), signed=True)


async def _transaction_id(kind: str, execute: Execute) -> int | None:
    if kind != "postgresql":
        return None
    found: int = (await execute(text(f"SELECT {TRANSACTION}, {TURN}"))).rows[0][0]
    return found


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


def _mapper_counts(mapper: Mapper[Any], version: Column[Any]) -> bool:
    return mapper.version_id_col is version and mapper.version_id_generator is not False


def expire_loaded(session: object, rows: VersionedRows, place: RowVersion) -> None:
    """Make an ORM session read its objects of the row again: they may be older than the lock, and
    work with old values would undo what the lock waited for.

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
        values = zip(names, place.key, strict=True)
        if any(loaded.get(name, value) != value for name, value in values):
            continue
        if session.is_modified(instance):
            raise UsageError(f"{instance!r} was changed before {place.of} was bumped: bump first")
        session.expire(instance)
