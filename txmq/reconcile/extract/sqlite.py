"""A SQLite bank's books: one connection, one transaction that reads, and so one state.

SQLite keeps in a column whatever it is given, so that each value says for itself what it is. Whole
numbers are its own business; all else is worked out in Python, as exactly as it is written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pyarrow as pa

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.books import (
    BookRequest,
    check_columns,
    checked_extract,
    error_text,
    raise_for_misfit,
    write_sums,
)
from txmq.reconcile.extract.manifest import ExtractedSource, ExtractedTable
from txmq.reconcile.extract.statements import (
    AccountStatements,
    EntryStatements,
    control_from_answer,
    control_query,
)
from txmq.reconcile.extract.table_writer import TableWriter, arrow_schema
from txmq.reconcile.rules import Money
from txmq.reconcile.tables import ACCOUNTS, ENTRIES, TableSchema
from txmq.runtime.clock import Clock

__all__ = ["SqliteDialect", "read_sqlite"]

_BATCH: Final = 50_000
_PATIENCE_S: Final = 30
_LOW: Final = 0xFFFFFFFF
_GREATEST: Final = (1 << 63) - 1


class SqliteDialect:
    """SQLite's words, and those of the functions that it is given here."""

    def quoted(self, name: str) -> str:
        """See :meth:`Dialect.quoted`."""
        return '"' + name.replace('"', '""') + '"'

    def literal(self, text: str) -> str:
        """See :meth:`Dialect.literal`."""
        return "'" + text.replace("'", "''") + "'"

    def text(self, column: str) -> str:
        """See :meth:`Dialect.text`."""
        return f"CAST({self.quoted(column)} AS TEXT)"

    def code(self, text: str) -> str:
        """See :meth:`Dialect.code`."""
        return f"{text} GLOB '[A-Z][A-Z][A-Z]'"

    def whole(self, column: str) -> str:
        """See :meth:`Dialect.whole`."""
        return self.minor(column, "1")

    def minor(self, column: str, scale: str) -> str:
        """See :meth:`Dialect.minor`."""
        quoted = self.quoted(column)
        counted = f"txmq_minor({quoted}, {scale})"
        if scale != "1":
            return counted
        return f"(CASE typeof({quoted}) WHEN 'integer' THEN {quoted} ELSE {counted} END)"

    def moment(self, column: str, held: str, zone: str) -> str:
        """See :meth:`Dialect.moment`."""
        quoted = self.quoted(column)
        if held in ("milliseconds", "seconds"):
            factor = 1 if held == "milliseconds" else 1000
            plain, counted = f"{quoted} * {factor}", f"txmq_floor({quoted}, {factor})"
            return f"(CASE typeof({quoted}) WHEN 'integer' THEN {plain} ELSE {counted} END)"
        return f"txmq_moment({quoted}, {self.literal(zone if held == 'timestamp' else '')})"

    def sums(self, number: str) -> tuple[str, ...]:
        """See :meth:`Dialect.sums`."""
        return f"sum({number} & {_LOW})", f"sum({number} >> 32)"

    def total(self, number: str) -> str:
        """See :meth:`Dialect.total`."""
        return f"CASE WHEN count(*) = count({number}) THEN sum({number}) END"


def read_sqlite(books: BookRequest, money: Mapping[str, Money], clock: Clock) -> ExtractedSource:
    """Extract a bank's books.

    Args:
        books: The bank, the day and the target directory.
        money: The currencies that are known.
        clock: Ours; it is also the database's.

    Raises:
        ReconcileRefused: The database cannot be read, or holds what does not fit.
    """
    name = books.bank.name
    path = books.bank.database.partition(":///")[2].partition("?")[0]
    try:
        with closing(_opened(path)) as connection:
            connection.execute("BEGIN")
            # The first read fixes the state that all later reads see.
            connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
            taken_ms = clock.wall_ms()
            reader = _SQLiteReader(books, money, connection)
            tables = (*reader.entries(), *reader.accounts())
    except sqlite3.Error as error:
        raise ReconcileRefused(f"{name}: {error_text(error)} ({path})") from error
    return ExtractedSource(name, "sqlite", "", taken_ms, taken_ms, tables)


class _SQLiteReader:
    """Reads a bank's tables in one transaction."""

    def __init__(
        self, books: BookRequest, money: Mapping[str, Money], connection: sqlite3.Connection
    ) -> None:
        self._books = books
        self._money = money
        self._connection = connection
        self._dialect = SqliteDialect()

    def entries(self) -> tuple[ExtractedTable, ...]:
        """The day's, and the sums before and after."""
        books, bank = self._books, self._books.bank
        statements = EntryStatements(bank, self._money, books.window, self._dialect)
        where = f"{bank.name}/entries"
        self._check_columns(where, statements.relation, statements.columns)
        raise_for_misfit(where, statements.faults(), self._ask)
        entries = self._written(ENTRIES, statements.rows())
        cursor = self._connection.execute(statements.sums())
        names = [field[0] for field in cursor.description]
        columns = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(names)
        return (entries, *write_sums(books, pa.table([*map(pa.array, columns)], names)))

    def accounts(self) -> tuple[ExtractedTable, ...]:
        """The bank's own table, if the rules name one."""
        bank, accounts = self._books.bank, self._books.bank.accounts
        if accounts is None:
            return ()
        statements = AccountStatements(accounts, bank.entries.units, self._money, self._dialect)
        where = f"{bank.name}/accounts"
        self._check_columns(where, statements.relation, statements.columns)
        raise_for_misfit(where, statements.faults(), self._ask)
        return (self._written(ACCOUNTS, statements.rows()),)

    def _written(self, table: TableSchema, statement: str) -> ExtractedTable:
        name = self._books.bank.name
        types = arrow_schema(table).types
        with TableWriter(table, self._books.directory / table.name) as writer:
            cursor = self._connection.execute(statement)
            while rows := cursor.fetchmany(_BATCH):
                columns = zip(zip(*rows, strict=True), types, strict=True)
                arrays = [pa.array(column, type_) for column, type_ in columns]
                writer.write(pa.RecordBatch.from_arrays(arrays, names=list(table.names)))
        counted = self._ask(control_query(statement, table, self._dialect))
        return checked_extract(name, control_from_answer(name, table, counted), writer)

    def _check_columns(self, where: str, relation: str, columns: frozenset[str]) -> None:
        """SQLite reads an unknown column name as a text."""
        cursor = self._connection.execute(f"SELECT * FROM {relation} LIMIT 0")
        there = [field[0] for field in cursor.description]
        known = {name.casefold() for name in there}
        check_columns(where, (name for name in columns if name.casefold() not in known), there)

    def _ask(self, statement: str) -> Sequence[Sequence[Any]]:
        return self._connection.execute(statement).fetchall()


def _opened(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode=ro", uri=True, isolation_level=None, timeout=_PATIENCE_S
    )
    for name, count, function in (
        ("txmq_minor", 2, _minor),
        ("txmq_floor", 2, _floor),
        ("txmq_moment", 2, _moment),
    ):
        connection.create_function(name, count, function, deterministic=True)
    return connection


def _number(given: object) -> Decimal | None:
    """A value as a number, with all of its digits."""
    if isinstance(given, float):
        given = repr(given)  # The shortest text of the number, as it was written.
    if not isinstance(given, int | str):
        return None
    try:
        found = Decimal(given)
    except InvalidOperation:
        return None
    return found if found.is_finite() and abs(found) <= _GREATEST else None


def _minor(given: object, scale: int) -> int | None:
    number = _number(given)
    return None if number is None else _fitting(number * scale, is_floored=False)


def _floor(given: object, factor: int) -> int | None:
    number = _number(given)
    return None if number is None else _fitting(number * factor, is_floored=True)


def _fitting(number: Decimal, *, is_floored: bool) -> int | None:
    if number != number.to_integral_value() and not is_floored:
        return None
    found = int(number // 1)
    found -= found > number  # Decimals are rounded towards zero, moments downwards.
    return found if abs(found) <= _GREATEST else None


def _moment(given: object, zone: str) -> int | None:
    """A moment in ISO format: in the given zone, or with its own zone if none is given."""
    if not isinstance(given, str):
        return None
    try:
        found = datetime.fromisoformat(given.strip())
    except ValueError:
        return None
    if bool(zone) == (found.tzinfo is not None):
        return None
    if zone:
        # An ambiguous hour is the second one, as in PostgreSQL.
        found = found.replace(tzinfo=ZoneInfo(zone), fold=1)
    since = found - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
