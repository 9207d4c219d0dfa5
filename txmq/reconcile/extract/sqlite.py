"""A SQLite bank's books, read in one transaction and so in one state.

In SQLite each value of a column has its own type. SQLite itself converts whole numbers; Python
functions convert all other values, exactly as written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from functools import lru_cache, partial
from math import floor
from typing import Any, Final
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pyarrow as pa

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.books import (
    BookReader,
    BookRequest,
    Columns,
    check_columns,
    error_text,
)
from txmq.reconcile.extract.statements import Dialect
from txmq.reconcile.tables import LIMIT, TableSchema

__all__ = ["SqliteDialect", "SqliteReader", "milliseconds", "open_sqlite", "whole_number"]

_BATCH: Final = 50_000
_PATIENCE_S: Final = 30
_CACHED: Final = 1 << 16
"""The SQL converts each value several times, and books repeat many values."""
_EXACT: Final = Context(prec=10_000)
"""The default context would round to 28 digits."""


class SqliteDialect(Dialect):
    """SQL expressions of SQLite, with functions defined here."""

    def text(self, column: str) -> str:
        return f"CAST({self.quoted(column)} AS TEXT)"

    def code(self, text: str) -> str:
        return f"{text} GLOB '[A-Z][A-Z][A-Z]'"

    def scaled(self, column: str, scale: str, *, floored: bool = False) -> str:
        quoted = self.quoted(column)
        found = f"{'txmq_floor' if floored else 'txmq_minor'}({quoted}, {scale})"
        if scale != "1":
            return found
        return f"(CASE typeof({quoted}) WHEN 'integer' THEN {quoted} ELSE {found} END)"

    def moment(self, column: str, held: str, zone: str) -> str:
        zone = self.literal(zone if held == "timestamp" else "")
        return f"txmq_moment({self.quoted(column)}, {zone})"


@contextmanager
def open_sqlite(books: BookRequest) -> Iterator[BookReader]:
    """Open a bank's books for reading, in one state.

    Raises:
        ReconcileRefused: The database cannot be read, or has an invalid value.
    """
    name = books.bank.name
    path = books.bank.database.partition(":///")[2].partition("?")[0]
    try:
        uri = f"file:{quote(path)}?mode=ro"
        opened = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_PATIENCE_S)
        with closing(opened) as connection:
            connection.execute("BEGIN")
            # The first read fixes the state that all later reads see.
            connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
            yield SqliteReader(books, connection)
    except sqlite3.Error as error:
        raise ReconcileRefused(f"{name}: {error_text(error)} ({path})") from error


def whole_number(given: object, factor: int, *, floored: bool = False) -> int | None:
    """A value times a factor, rounded down if wanted; ``None`` if it is not whole."""
    if isinstance(given, float):
        given = repr(given)  # The shortest text of the number, as it was written.
    if not isinstance(given, int | str):
        return None
    try:
        exact = _EXACT.multiply(Decimal(given), factor)
        is_long = abs(exact) < LIMIT
    except ArithmeticError:  # It is not a number, or far too great.
        return None
    found = floor(exact) if is_long else None
    return found if floored or found == exact else None


def milliseconds(found: datetime, zone: str) -> int | None:
    """A moment in its own zone or in a given one; ``None`` if there are both or neither."""
    if bool(zone) == (found.tzinfo is not None):
        return None
    if zone:
        # An ambiguous hour is the second one, as in PostgreSQL.
        found = found.replace(tzinfo=ZoneInfo(zone), fold=1)
    return (found - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


class SqliteReader(BookReader):
    """Reads a bank's tables in one transaction, with functions for its amounts and moments."""

    _dialect = SqliteDialect()
    minor: Callable[[Any, int], int | None] = staticmethod(whole_number)
    """An amount in minor units; ``None`` if it is invalid."""

    def __init__(self, books: BookRequest, connection: sqlite3.Connection) -> None:
        super().__init__(books)
        self._connection = connection
        floored = partial(whole_number, floored=True)
        named = ("txmq_minor", self.minor), ("txmq_floor", floored), ("txmq_moment", self.moment)
        for name, function in named:
            connection.create_function(name, 2, lru_cache(_CACHED)(function), deterministic=True)

    def moment(self, value: Any, zone: str) -> int | None:
        """A moment in ISO format: in the given zone, or with its own zone if none is given."""
        with suppress(ValueError):
            if isinstance(value, str):
                return milliseconds(datetime.fromisoformat(value.strip()), zone)
        return None

    def ask(self, statement: str) -> Sequence[Sequence[Any]]:
        return self._connection.execute(statement).fetchall()

    def batches(self, statement: str) -> Iterator[pa.RecordBatch]:
        cursor = self._connection.execute(statement)
        names = [field[0] for field in cursor.description]
        while rows := cursor.fetchmany(_BATCH):
            arrays = list(map(pa.array, zip(*rows, strict=True)))
            yield pa.RecordBatch.from_arrays(arrays, names=names)

    def _look_up(self, table: TableSchema, columns: Columns) -> tuple[Columns, Dialect]:
        # SQLite reads an unknown column name as a text, so the names are checked first.
        relation = self._dialect.relation(columns.table)
        cursor = self._connection.execute(f"SELECT * FROM {relation} LIMIT 0")
        names = [field[0] for field in cursor.description]
        known = {name.casefold() for name in names}
        unknown = (name for name in columns.names if name.casefold() not in known)
        check_columns(self.where(table), unknown, names)
        return columns, self._dialect
