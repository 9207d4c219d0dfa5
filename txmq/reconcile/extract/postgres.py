"""A PostgreSQL bank's books, read by several connections that share one snapshot.

One transaction exports its snapshot and stays open; all others import it. So the extract has all
rows of a booking or none, even if the bank keeps booking. ADBC delivers the rows as Arrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.books import (
    BookPart,
    BookReader,
    BookRequest,
    Columns,
    check_columns,
    error_text,
)
from txmq.reconcile.extract.statements import Dialect
from txmq.reconcile.rules import Bank, EntryColumns
from txmq.reconcile.tables import LIMIT, TableSchema

__all__ = ["entry_parts", "export_snapshot", "open_postgres"]

_CONNECT_S: Final = 15
_LOCK_S: Final = 30
_STATEMENT_S: Final = 4 * 3600
_PAGES: Final = (256, 16_384)
"""The fewest and the most pages in a slice."""
_SLICES_A_READER: Final = 6

_TYPE: Final = b"POSTGRESQL:type"
_EXACT: Final = 10**15
"""Floating point is exact up to here."""
_WHOLE: Final = frozenset({"int2", "int4", "int8"})
_FLOATS: Final = frozenset({"float4", "float8"})
_NUMBERS: Final = frozenset({"numeric", "money"})
_TEXTS: Final = frozenset({"text", "varchar", "bpchar"})
_ISO: Final = (
    "(?!0000)[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"([ T]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]+)?)?)?"
)
_ZONE: Final = r"\s*(Z|[+-](0[0-9]|1[0-5])(:?[0-5][0-9])?)"
"""A moment in a text, and its UTC offset."""


class PostgresDialect(Dialect):
    """SQL expressions of PostgreSQL."""

    def text(self, column: str) -> str:
        return f"{self.quoted(column)}::text"

    def code(self, text: str) -> str:
        return f"{text} ~ '^[A-Z]{{3}}$'"

    def scaled(self, column: str, scale: str, *, floored: bool = False) -> str:
        quoted, type_ = self.quoted(column), self.types.get(column)
        if type_ in _WHOLE and scale == "1":
            return f"{quoted}::bigint"
        number = f"{quoted}::numeric"
        if type_ not in _WHOLE | _NUMBERS | _FLOATS:
            number = (
                rf"(CASE WHEN {quoted}::text ~ '^\s*[+-]?[0-9]{{1,30}}(\.[0-9]{{1,30}})?\s*$' "
                f"THEN {quoted}::text::numeric END)"
            )
        if floored:
            return self.whole(f"floor({number} * {scale})")
        return self.whole(f"({number} * {scale})", _EXACT if type_ in _FLOATS else LIMIT - 1)

    def moment(self, column: str, held: str, zone: str) -> str:
        quoted = self.quoted(column)
        given = f"{quoted}::{held}"
        if self.types.get(column) in _TEXTS:
            given = _moment_of_text(quoted, held)
        moment = f"({given} AT TIME ZONE {self.literal(zone)})" if held == "timestamp" else given
        # A double is still precise to the microsecond, and much faster than a numeric.
        micros = f"round(date_part('epoch', {moment}) * 1000000)"
        return f"(CASE WHEN isfinite({given}) THEN floor({micros} / 1000)::bigint END)"


def _moment_of_text(quoted: str, held: str) -> str:
    """A text in ISO format as a moment; NULL for any other text, on which a cast alone fails."""
    zone = _ZONE if held == "timestamptz" else ""
    month = f"(substr(trim({quoted}), 1, 7) || '-01')::date"
    last = f"date_part('day', {month} + interval '1 month - 1 day')"
    return (
        f"(CASE WHEN trim({quoted}) !~ '^{_ISO}{zone}$' THEN NULL "
        f"WHEN substr(trim({quoted}), 9, 2)::int <= {last} THEN {quoted}::{held} END)"
    )


@contextmanager
def export_snapshot(books: BookRequest) -> Iterator[tuple[str, int]]:
    """Keep a snapshot of a bank's database during the block; yields its name, and its time by the
    database's clock.

    Raises:
        ReconcileRefused: The database cannot be reached.
    """
    time = "floor(date_part('epoch', clock_timestamp()) * 1000)::bigint"
    with _transaction(books) as first:
        ((name, source_ms),) = _ask(first, f"SELECT pg_export_snapshot(), {time}")
        # Lock the journal against rewrites such as VACUUM FULL, which move rows to other pages.
        journal = PostgresDialect().relation(books.bank.entries.table)
        _ask(first, f"SELECT 1 FROM {journal} LIMIT 0")
        yield name, source_ms


def entry_parts(books: BookRequest, snapshot: str) -> list[BookPart]:
    """The parts of a bank's entries that can be read in parallel, one for each reader."""
    with _transaction(books, snapshot) as connection:
        slices = _slices(connection, books.bank)
    parts = (slices[place :: books.bank.readers] for place in range(books.bank.readers))
    return [BookPart(some, has_others=False) for some in parts if some]


@contextmanager
def open_postgres(books: BookRequest, snapshot: str = "") -> Iterator[BookReader]:
    """Open a bank's books for reading, in an exported snapshot or in a new one."""
    with _transaction(books, snapshot) as connection:
        yield _PostgresReader(books, connection)


class _PostgresReader(BookReader):
    """Reads a bank's tables over a connection."""

    def __init__(self, books: BookRequest, connection: Any) -> None:
        super().__init__(books)
        self._connection = connection

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        return _ask(self._connection, statement)

    def batches(self, statement: str) -> Iterable[pa.RecordBatch]:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(statement)
            yield from cursor.fetch_record_batch()

    def _look_up(self, table: TableSchema, columns: Columns) -> tuple[Columns, Dialect]:
        where, relation = self.where(table), PostgresDialect().relation(columns.table)
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(f"SELECT * FROM {relation} LIMIT 0")
            schema = cursor.fetch_arrow_table().schema
        metadata = {field.name: field.metadata or {} for field in schema}
        types = {name: held.get(_TYPE, b"").decode() for name, held in metadata.items()}
        check_columns(where, columns.names, types)
        if isinstance(columns, EntryColumns):
            # In a wrong zone, moments would be off by hours, and nobody would notice.
            other = {"timestamp": "timestamptz", "timestamptz": "timestamp"}.get(columns.time)
            for column in (columns.booked, columns.recorded):
                if column and types[column] == other:
                    why = f'{column} is a {other}, but the rules have time = "{columns.time}"'
                    raise ReconcileRefused(f"{where}: {why}")
        return columns, PostgresDialect(types)


def _driver_url(given: str) -> str:
    """The URL for the driver's library, with a connect timeout."""
    scheme, colon, rest = given.partition("://")
    url = f"{scheme.partition('+')[0]}{colon}{rest}"
    limit = f"{'&' if urlsplit(url).query else '?'}connect_timeout={_CONNECT_S}"
    return url if "connect_timeout=" in url else url + limit


@contextmanager
def _transaction(books: BookRequest, snapshot: str = "") -> Iterator[Any]:
    """A connection in a read-only transaction that sees the snapshot.

    Raises:
        ReconcileRefused: The database cannot be reached, or fails in the block.
    """
    url = books.bank.database
    statements = [
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
        *([f"SET TRANSACTION SNAPSHOT '{snapshot}'"] if snapshot else []),
        f"SET LOCAL lock_timeout = '{_LOCK_S}s'",
        f"SET LOCAL statement_timeout = '{_STATEMENT_S}s'",
        # The connection that exports the snapshot waits for all others.
        "SET LOCAL idle_in_transaction_session_timeout = '0'",
        "SET LOCAL TimeZone = 'UTC'",
        "SET LOCAL extra_float_digits = '1'",
        "SET LOCAL standard_conforming_strings = 'on'",
    ]
    try:
        with closing(adbc.connect(_driver_url(url))) as connection:
            for statement in statements:
                with closing(connection.cursor()) as cursor:
                    cursor.execute(statement)
            yield connection
    except (adbc.Error, pa.ArrowException, OSError) as error:
        raise ReconcileRefused(f"{books.bank.name}: {error_text(error, url)}") from error


def _slices(connection: Any, bank: Bank) -> list[str]:
    """Conditions for ranges of pages: rows spread evenly over pages, but not over ids."""
    dialect = PostgresDialect()
    oid = f"to_regclass({dialect.literal(dialect.relation(bank.entries.table))})"
    size = "pg_relation_size(oid) / current_setting('block_size')::bigint"
    tables = f"pg_class WHERE oid = {oid} AND relkind IN ('r', 'm')"
    found = _ask(connection, f"SELECT {size} FROM {tables}")
    if not found:
        return [""]  # A view or a partitioned table has no pages of its own.
    ((pages,),) = found
    least, most = _PAGES
    step = max(least, min(most, -(-pages // (bank.readers * _SLICES_A_READER))))
    starts = range(0, max(pages, 1), step)
    ranges = [
        f"ctid >= '({start},0)'::tid AND ctid < '({start + step},0)'::tid" for start in starts[:-1]
    ]
    # A table that inherits from this one may have more pages.
    return [*ranges, f"ctid >= '({starts[-1]},0)'::tid"]


def _ask(connection: Any, statement: str) -> list[tuple[Any, ...]]:
    with closing(connection.cursor()) as cursor:
        cursor.execute(statement)
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return found
