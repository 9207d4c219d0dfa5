"""Rows that have a version, and the one statement that makes the next of it.

``UPDATE ... SET version = v WHERE key = k AND version = v - 1``: it changes one row, or none, and
of several who say it at the same moment one changes it. Whoever did may do what belongs to version
v, in the same transaction, which has the row's lock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

from sqlalchemy import (
    Column,
    ColumnElement,
    MetaData,
    Table,
    bindparam,
    inspect,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.exc import NoInspectionAvailable
from sqlalchemy.orm import InstrumentedAttribute, Mapper

from txmq.databases.canary import TRANSACTION, TURN
from txmq.databases.dialects import NOW_MS
from txmq.databases.door import StatementResult
from txmq.errors import ConfigError, DatabaseFailed, UsageError, VersionGap
from txmq.idempotent.verdict import Verdict

__all__ = ["Ask", "Bumped", "Place", "Versions"]

Ask: TypeAlias = Callable[..., Awaitable[StatementResult]]
"""How a session is asked; see :meth:`txmq.databases.door.Borrowed.ask`."""

LOOKS_MAX: Final = 4
"""A row that has come, or become one version older than ours, in between is tried again; each of
both happens once."""

_LOCK: Final = text("SELECT pg_advisory_xact_lock(CAST(:txmq_lock AS BIGINT))")


class Place(NamedTuple):
    """A version of a row."""

    key: tuple[object, ...]
    """The values of its key's columns."""
    version: int

    @property
    def of(self) -> str:
        """Which, in words."""
        key = self.key[0] if len(self.key) == 1 else self.key
        return f"version {self.version} of {key!r}"


class Bumped(NamedTuple):
    """What came of a bump."""

    verdict: Verdict
    is_new: bool = False
    """There is no row yet: whoever has asked inserts it."""
    transaction: int | None = None
    """By what PostgreSQL knows the transaction."""


class Versions:
    """The rows of one table, by key and version.

    Args:
        model: A mapped class, or a table.
        version: The column of the version: its name, its attribute, or itself.
        key: Those of the key, likewise; the primary key, unless others are said.
        first: The version that a row is inserted with.
        takes_gaps: Whether a version counts though others before it have not come.

    Raises:
        ConfigError: There are no such columns, or they cannot be used.
    """

    def __init__(self, model: Any, version: Any, key: Any, *, first: int, takes_gaps: bool) -> None:
        if first < 1:
            raise ConfigError(f"the first version is {first}: they are counted from 1, or later")
        self.mapper = _mapper(model)
        self.version = _column(model, self.mapper, version)
        table = self.version.table
        if not isinstance(table, Table):
            raise ConfigError(f"{self.version} is in no table, but in {type(table).__name__}")
        self.table = table
        self.key = _key(model, self.mapper, table, key)
        if self.mapper is not None and _counts_itself(self.mapper, self.version):
            raise ConfigError(
                f"the mapper counts {self.version} itself: with version_id_generator=False it "
                "leaves that to the messages"
            )
        self._model = model
        self._first = first
        self._takes_gaps = takes_gaps
        self._names = [f"txmq_key_{number}" for number in range(len(self.key))]
        self.look = select(self.version).where(*self._is_this(self.key))
        self._look_now = self.look.with_for_update(read=True)
        self._bumps = {kind: self._bump(kind) for kind in NOW_MS}

    def _is_this(self, key: Sequence[Column[Any]]) -> list[ColumnElement[bool]]:
        pairs = zip(key, self._names, strict=True)
        return [each == bindparam(name, type_=each.type) for each, name in pairs]

    def _bump(self, kind: str) -> Any:
        # A copy knows nothing of what else the table's columns do at an update.
        columns = {each: Column(each.name, each.type) for each in (*self.key, self.version)}
        copy = Table(self.table.name, MetaData(), *columns.values(), schema=self.table.schema)
        key = [columns[each] for each in self.key]
        return self._update(kind, copy, key, columns[self.version], {})

    def bump(self, kind: str, values: Mapping[Any, object] | None = None) -> Any:
        """The statement, for a kind of database; with other columns that change with it, and with
        what their table does at an update.

        Raises:
            ConfigError: There is no such column.
        """
        if values is None:
            return self._bumps[kind]
        usual: Any = [each for each in self.table.columns if each.onupdate is not None]
        changed = {
            each: each.onupdate.arg(None) if each.onupdate.is_callable else each.onupdate.arg
            for each in usual
        }
        named = {_column(self._model, self.mapper, each): value for each, value in values.items()}
        return self._update(kind, self.table, self.key, self.version, {**changed, **named})

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
        # There, and not among the conditions: those may be looked at twice.
        return statement.returning(literal_column(TRANSACTION), literal_column(TURN))

    def place(self, given: object) -> Place:
        """What a pair of a key and a version names.

        Raises:
            UsageError: That is none.
        """
        if not isinstance(given, tuple) or len(given) != 2:
            raise UsageError(f"{given!r} is no pair of a key and a version")
        named, version = given
        if not isinstance(version, int) or isinstance(version, bool) or version < self._first:
            raise UsageError(
                f"{version!r} is no version: they are whole numbers from {self._first} on"
            )
        key = named if len(self.key) > 1 else (named,)
        if not isinstance(key, tuple) or len(key) != len(self.key) or None in key:
            names = ", ".join(each.name for each in self.key)
            raise UsageError(f"{named!r} is no key of {self.table.name}: it has a value of {names}")
        return Place(key, version)

    def values(self, place: Place) -> dict[str, object]:
        """What the statements are given."""
        named = dict(zip(self._names, place.key, strict=True))
        return {**named, "txmq_version": place.version, "txmq_before": place.version - 1}

    async def bumped(self, kind: str, ask: Ask, place: Place, statement: Any) -> Bumped:
        """Say the statement, and see what came of it.

        Raises:
            VersionGap: One before it has not come yet.
            UsageError: The row has no version, or there are several.
            DatabaseFailed: The database does not take it.
            Exception: What the session's library raises.
        """
        is_locked = kind != "postgresql"
        for _ in range(LOOKS_MAX):
            answer = await ask(statement, **self.values(place))
            if answer.changed:
                if answer.changed > 1:
                    raise UsageError(f"there are several rows of {place.of} in {self.table.name}")
                found = answer.rows[0][0] if answer.rows else None
                return Bumped(Verdict.FIRST, transaction=found)
            verdict = self.judged(place, await self.now(kind, ask, place))
            if verdict is Verdict.DONE:
                return Bumped(verdict)
            if verdict is Verdict.FIRST:
                if is_locked:
                    return Bumped(verdict, is_new=True, transaction=await _begun(kind, ask))
                # Else two would insert it, and one of them would have worked for nothing.
                await ask(_LOCK, txmq_lock=self._lock(place))
                is_locked = True
        raise DatabaseFailed(f"{self.table.name} neither took nor shows {place.of}")

    async def at(self, ask: Ask, place: Place) -> list[Any]:
        """The versions of the rows with this key, as this transaction sees them: one, or none."""
        return await self._found(ask, self.look, place)

    async def now(self, kind: str, ask: Ask, place: Place) -> list[Any]:
        """The same as it is now: MySQL shows an old snapshot unless it is asked so."""
        return await self._found(ask, self._look_now if kind == "mysql" else self.look, place)

    async def _found(self, ask: Ask, look: Any, place: Place) -> list[Any]:
        named = dict(zip(self._names, place.key, strict=True))
        return [each[0] for each in (await ask(look, **named)).rows]

    def judged(self, place: Place, found: list[Any]) -> Verdict:
        """What is to be said of a version that has not been bumped to, by what is there: ``DONE``,
        or ``FIRST`` where there is no row, or ``IN_PROGRESS``: it is that one's turn just now.

        Raises:
            VersionGap: One before it has not come yet.
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

    def _lock(self, place: Place) -> int:
        named = "\0".join([self.table.fullname, *map(str, place.key)]).encode()
        return int.from_bytes(blake2b(named, digest_size=8).digest(), signed=True)


async def _begun(kind: str, ask: Ask) -> int | None:
    if kind != "postgresql":
        return None
    turned = text(f"SELECT {TRANSACTION}, {TURN}")
    found: int = (await ask(turned)).rows[0][0]
    return found


def _mapper(model: Any) -> Mapper[Any] | None:
    if isinstance(model, Table):
        return None
    try:
        found = inspect(model)
    except NoInspectionAvailable:
        found = None
    if not isinstance(found, Mapper):
        raise ConfigError(f"{model!r} is no mapped class and no table")
    return found


def _column(model: Any, mapper: Mapper[Any] | None, named: Any) -> Column[Any]:
    columns = model.c if mapper is None else mapper.columns
    if isinstance(named, InstrumentedAttribute):
        named = getattr(named.property, "columns", [named])[0]
    elif isinstance(named, str) and named in columns:
        named = columns[named]
    if not isinstance(named, Column):
        raise ConfigError(f"{named!r} is no column of {model!r}")
    return named


def _key(model: Any, mapper: Mapper[Any] | None, table: Table, named: Any) -> list[Column[Any]]:
    if named is None:
        columns = list(table.primary_key.columns)
    else:
        chosen = named if isinstance(named, list | tuple) else [named]
        columns = [_column(model, mapper, each) for each in chosen]
    if not columns or any(each.table is not table for each in columns):
        raise ConfigError(f"the key's columns are some of {table.name}, where the version is")
    return columns


def _counts_itself(mapper: Mapper[Any], version: Column[Any]) -> bool:
    return mapper.version_id_col is version and mapper.version_id_generator is not False
