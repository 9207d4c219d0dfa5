"""A SQLite bank's books, read in one transaction and so in one state.

In SQLite each value of a column has its own type. SQLite itself converts whole numbers; Python
functions convert all other values, exactly as they are written.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
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
    copy_table,
    error_text,
    set_aside,
    write_sums,
)
from txmq.reconcile.extract.manifest import ExtractedSource, ExtractedTable, QuarantinedRow
from txmq.reconcile.extract.statements import (
    AccountStatements,
    Dialect,
    EntryStatements,
    column_names,
)
from txmq.reconcile.extract.table_writer import arrow_schema
from txmq.reconcile.tables import ACCOUNTS, ENTRIES, TableSchema
from txmq.runtime.clock import Clock

__all__ = ["SqliteDialect", "SqliteReader", "floored", "milliseconds", "read_sqlite"]

_BATCH: Final = 50_000
_PATIENCE_S: Final = 30
_GREATEST: Final = (1 << 63) - 1


class SqliteDialect(Dialect):
    """SQL expressions of SQLite, with functions defined here."""

    def text(self, column: str) -> str:
        return f"CAST({self.quoted(column)} AS TEXT)"

    def code(self, text: str) -> str:
        return f"{text} GLOB '[A-Z][A-Z][A-Z]'"

    def minor(self, column: str, scale: str) -> str:
        quoted = self.quoted(column)
        counted = f"txmq_minor({quoted}, {scale})"
        if scale != "1":
            return counted
        return f"(CASE typeof({quoted}) WHEN 'integer' THEN {quoted} ELSE {counted} END)"

    def moment(self, column: str, held: str, zone: str) -> str:
        quoted = self.quoted(column)
        if held in ("milliseconds", "seconds"):
            factor = 1 if held == "milliseconds" else 1000
            plain, counted = f"{quoted} * {factor}", f"txmq_floor({quoted}, {factor})"
            return f"(CASE typeof({quoted}) WHEN 'integer' THEN {plain} ELSE {counted} END)"
        return f"txmq_moment({quoted}, {self.literal(zone if held == 'timestamp' else '')})"


def read_sqlite(books: BookRequest, clock: Clock) -> ExtractedSource:
    """Extract a bank's books.

    Args:
        books: The bank, the day and the target directory.
        clock: This machine's clock, which is also the database's.

    Raises:
        ReconcileRefused: The database cannot be read, or has an invalid value.
    """
    name = books.bank.name
    path = books.bank.database.partition(":///")[2].partition("?")[0]
    try:
        with closing(_open(path)) as connection:
            connection.execute("BEGIN")
            # The first read fixes the state that all later reads see.
            connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
            taken_ms = clock.wall_ms()
            reader = SqliteReader(books, connection, SqliteDialect())
            tables = (reader.entries(), *reader.sums(), *reader.accounts())
    except sqlite3.Error as error:
        raise ReconcileRefused(f"{name}: {error_text(error)} ({path})") from error
    return ExtractedSource(name, "sqlite", "", taken_ms, taken_ms, tables)


class SqliteReader:
    """Reads a bank's tables in one transaction.

    Args:
        books: The bank, the day and the target directory.
        connection: Has the functions that the dialect uses.
        dialect: The form of the bank's values.
    """

    def __init__(
        self,
        books: BookRequest,
        connection: sqlite3.Connection,
        dialect: SqliteDialect,
    ) -> None:
        bank, money = books.bank, books.money
        self.damaged = defaultdict[str, list[QuarantinedRow]](list)
        """Rows that could not even be brought into a table, by the table's name."""
        self._books = books
        self._connection = connection
        self._entries = EntryStatements(bank, money, books.window, dialect)
        self._accounts = None
        if bank.accounts is not None:
            units = bank.entries.units
            self._accounts = AccountStatements(bank.accounts, units, money, dialect)

    def entries(self) -> ExtractedTable:
        """The entries of the day."""
        return self._copy(ENTRIES, self._entries, column_names(self._books.bank.entries))

    def sums(self) -> tuple[ExtractedTable, ExtractedTable]:
        """The sums before the day and after it."""
        cursor = self._connection.execute(self._entries.sums())
        names = [field[0] for field in cursor.description]
        columns = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(names)
        return write_sums(self._books, pa.table([*map(pa.array, columns)], names))

    def moved(self) -> dict[tuple[str, str], int]:
        """The change of each account and currency on the day."""
        statement = f"SELECT account, currency, sum(amount) FROM ({self._entries.rows()})"
        rows = self._ask(f"{statement} GROUP BY account, currency")
        return {(account, currency): amount for account, currency, amount in rows}

    def stated(self) -> dict[tuple[str, str], tuple[int | None, int]]:
        """The opening balance of each account, if the bank states it, and the closing balance."""
        if self._accounts is None:
            return {}
        rows = self._ask(self._accounts.ends())
        found = {(account, currency): (begun, ended) for account, currency, begun, ended in rows}
        if len(found) < len(rows):
            where = f"{self._books.bank.name}/accounts"
            raise ReconcileRefused(f"{where}: an account has two balances in one currency")
        return found

    def quarantine(self) -> tuple[QuarantinedRow, ...]:
        """The rows of the bank's table of accounts that cannot be read."""
        if self._accounts is None:
            return ()
        damaged = self.damaged[ACCOUNTS.name]
        return set_aside(self._books, ACCOUNTS, self._accounts, self._ask, damaged)

    def accounts(self) -> tuple[ExtractedTable, ...]:
        """The bank's table of accounts, if the rules name one."""
        accounts = self._books.bank.accounts
        if accounts is None or self._accounts is None:
            return ()
        return (self._copy(ACCOUNTS, self._accounts, column_names(accounts)),)

    def _copy(
        self,
        table: TableSchema,
        statements: EntryStatements | AccountStatements,
        columns: frozenset[str],
    ) -> ExtractedTable:
        # SQLite reads an unknown column name as a text, so the names are checked first.
        cursor = self._connection.execute(f"SELECT * FROM {statements.relation} LIMIT 0")
        names = [field[0] for field in cursor.description]
        known = {name.casefold() for name in names}
        unknown = (name for name in columns if name.casefold() not in known)
        check_columns(f"{self._books.bank.name}/{table.name}", unknown, names)
        schema = arrow_schema(table)

        def batches(statement: str) -> Iterator[pa.RecordBatch]:
            cursor = self._connection.execute(statement)
            while rows := cursor.fetchmany(_BATCH):
                columns = zip(zip(*rows, strict=True), schema.types, strict=True)
                arrays = [pa.array(column, type_) for column, type_ in columns]
                yield pa.RecordBatch.from_arrays(arrays, names=schema.names)

        damaged = self.damaged[table.name]
        return copy_table(self._books, table, statements, self._ask, batches, damaged)

    def _ask(self, statement: str) -> Sequence[Sequence[Any]]:
        return self._connection.execute(statement).fetchall()


def _open(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode=ro", uri=True, isolation_level=None, timeout=_PATIENCE_S
    )
    for name, count, function in (
        ("txmq_minor", 2, _minor),
        ("txmq_floor", 2, floored),
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


def _minor(given: object, scale: int | None) -> int | None:
    number = _number(given)
    if number is None or scale is None:  # An unknown currency has no scale.
        return None
    return _whole_number(number * scale, is_floored=False)


def floored(given: object, factor: int) -> int | None:
    """A multiple of a number, rounded downwards; ``None`` if it is not a number."""
    number = _number(given)
    return None if number is None else _whole_number(number * factor, is_floored=True)


def _whole_number(number: Decimal, *, is_floored: bool) -> int | None:
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
    return milliseconds(found, zone)


def milliseconds(found: datetime, zone: str) -> int | None:
    """A moment with a zone of its own, or in a zone; ``None`` if it has both or neither."""
    if bool(zone) == (found.tzinfo is not None):
        return None
    if zone:
        # An ambiguous hour is the second one, as in PostgreSQL.
        found = found.replace(tzinfo=ZoneInfo(zone), fold=1)
    since = found - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
