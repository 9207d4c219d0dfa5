"""A bank's book from files instead of a database.

All formats take one path: their rows go into a temporary SQLite database on disk, and from there
into the extract like the rows of any bank. So the same checks and the same SQL apply, with
expressions for amounts and moments as the bank writes them.

A file of one date does not have earlier entries. Its opening balances are those that the bank
states, or else the closing balances of the day before.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc
from msgspec.structs import replace

from txmq.errors import ReconcileRefused
from txmq.reconcile.arrow import arrow_table
from txmq.reconcile.extract.bank_statements import (
    StatementPage,
    read_camt,
    read_mt940,
    stated_balances,
)
from txmq.reconcile.extract.books import (
    BookReader,
    BookRequest,
    Columns,
    Piece,
    error_text,
    notes,
)
from txmq.reconcile.extract.file_rows import (
    DAMAGE,
    BankFile,
    FileRows,
    damaged,
    open_unchanged,
    read_rows,
)
from txmq.reconcile.extract.sqlite import SqliteDialect, SqliteReader, milliseconds, whole_number
from txmq.reconcile.extract.statements import Dialect
from txmq.reconcile.results import Results
from txmq.reconcile.rules import EntryColumns
from txmq.reconcile.tables import ACCOUNTS, ENTRIES, OPENING, TableSchema, join_halves

__all__ = ["open_files"]

_TIMES: Final = re.compile(r"%[HIMSfcXTsp]")


@contextmanager
def open_files(books: BookRequest) -> Iterator[BookReader]:
    """Read a bank's files, so that their book can be read like a database.

    ``books.directory`` has the result of the day before.

    Raises:
        ReconcileRefused: A file is missing or has an invalid value.
    """
    try:
        # The empty name is a database on the disk that SQLite removes by itself.
        with closing(sqlite3.connect("", isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("BEGIN")
            yield _FileReader(books, connection)
    except (sqlite3.Error, OSError, OverflowError) as error:
        raise ReconcileRefused(f"{books.bank.name}: {error_text(error)}") from error


class _FileDialect(SqliteDialect):
    place: Mapping[str, str] = {"file": "txmq_file", "line": "txmq_line"}
    damage = DAMAGE


class _FileReader(SqliteReader):
    """Reads a bank's files, through tables of a temporary database."""

    _dialect = _FileDialect()

    def __init__(self, books: BookRequest, connection: sqlite3.Connection) -> None:
        assert books.bank.files is not None
        self._files = files = books.bank.files
        self._day = books.date
        self._hashes: list[tuple[str, str]] = []
        """The names and hashes of the files that were read."""
        self._pages: list[StatementPage] = []
        decimal, grouping = re.escape(files.decimal), re.escape(files.grouping)
        groups = rf"|[0-9]{{1,3}}(?:{grouping}[0-9]{{3}})+" if grouping else ""
        self._amount = re.compile(rf"\s*[+-]?(?:[0-9]+{groups})(?:{decimal}[0-9]+)?\s*")
        super().__init__(books, connection)

    def minor(self, value: Any, scale: int) -> int | None:
        """An amount as the bank writes it, in minor units."""
        if self._amount.fullmatch(text := str(value)) is None:
            return None
        plain = text.replace(self._files.grouping, "").replace(self._files.decimal, ".")
        return whole_number(plain, scale)

    def moment(self, value: Any, zone: str) -> int | None:
        """A moment as the bank writes it; a date without a time means its end."""
        if not isinstance(value, str):
            return None
        with suppress(ValueError, OverflowError):
            found = _read(value.strip(), self._files.moments)
            if isinstance(found, datetime):
                is_zoned = self._files.is_statement and found.tzinfo is not None
                return milliseconds(found, "" if is_zoned else zone)
            # The time is unknown, so the grace counts from the end of the date.
            return self._books.day.window(found).end_ms - 1
        return None

    def _others(self) -> Iterator[Piece]:
        if self._files.is_dated:
            yield self.quarantine(self.entries)
            yield from self._balances()
        else:
            yield from super()._others()
        yield notes([("files", *found) for found in self._hashes])

    def _look_up(self, table: TableSchema, columns: Columns) -> tuple[Columns, Dialect]:
        """Load the rows of the files into a table."""
        names: list[str] = [*sorted(columns.names), DAMAGE]
        stored = [*map(self._dialect.quoted, [*names, *self._dialect.place.values()])]
        self._connection.execute(f"CREATE TABLE {table.name} ({', '.join(stored)})")
        insert = f"INSERT INTO {table.name} VALUES ({', '.join('?' * len(stored))})"
        for path in self._paths(self._files.path if table is ENTRIES else self._files.balances):
            with open_unchanged(path) as file:
                rows = self._stored(file, names, self._rows(file, columns.names))
                self._connection.executemany(insert, rows)
            self._hashes.append((file.name, file.sha256))
        if table is ACCOUNTS:
            for page, balance in stated_balances(self._pages):
                rows = self._stored(page.file, names, iter([(page.line, balance)]))
                self._connection.executemany(insert, rows)
        is_dates = isinstance(columns, EntryColumns) and self._files.is_statement
        time = {"time": "timestamp"} if is_dates else {}
        return replace(columns, table=table.name, **time), self._dialect

    def _rows(self, file: BankFile, columns: Collection[str]) -> FileRows:
        match self._files.format:
            case "camt.053":
                return read_camt(file, self._pages)
            case "mt940":
                return read_mt940(file, self._files.charset, self._pages)
        return read_rows(file, columns, self._files)

    def _stored(
        self, file: BankFile, columns: Sequence[str], rows: FileRows
    ) -> Iterator[Sequence[Any]]:
        """Rows of a file as SQLite keeps them."""
        for line, values in rows:
            try:
                row = [_stored_value(values.get(name), self._files.decimal) for name in columns]
            except ValueError as error:
                row = [damaged(error).get(name) for name in columns]
            yield (*row, file.name, line)

    def _paths(self, pattern: str) -> list[Path]:
        """The files that match a pattern; on a date without business there may be none."""
        if not pattern:
            return []
        path = Path(pattern.format(date=self._day))
        found = sorted(path.parent.glob(path.name))
        if not found and (not self._files.is_dated or self._books.day.is_business(self._day)):
            why = f"{self._books.bank.name}: the file {path} does not exist"
            remedy = f"or add {self._day} to day.holidays if the bank sends none"
            raise ReconcileRefused(f"{why}; get it from the bank, {remedy}")
        return found

    def _balances(self) -> Iterator[Piece]:
        """The opening balances of the accounts, as stated or as the day before ended, and their
        closing balances. On the first date, an opening balance that is not stated is computed from
        a stated closing one.
        """
        roles, opening, ended = self._books.bank.entries.roles, [], []
        sums = ", ".join(self.entries.halves("amount"))
        query = f"SELECT account, currency, {sums} FROM ({self.entries.rows()}) GROUP BY 1, 2"
        moved, stated, closed = self._of_accounts(query), {}, self._closed()
        if self.accounts is not None:
            names = ("account", "currency", "opening", "balance")
            stated = self._of_accounts(self.accounts.select(names))
        past = closed or {}
        are_all_stated = bool(self._paths(self._files.balances))
        for key in sorted({*moved, *stated, *past}):
            begun, end = stated.get(key, (None, None))
            carried, rows = past.get(key, (0, 0))
            change = join_halves(*moved.get(key, (0, 0)))
            if begun is None:
                begun = end - change if closed is None and end is not None else carried
            if end is None and not are_all_stated:
                # A bank sends no statement for an account that did not move.
                end = begun + change
            account, currency = key
            if begun or rows:
                opening.append((account, roles.get(account, "customer"), currency, begun, rows))
            if end is not None:
                ended.append((account, currency, end))
        for batch in arrow_table(OPENING, opening).to_batches():
            yield OPENING, batch
        if self.accounts is not None:
            yield self.quarantine(self.accounts)
            for batch in arrow_table(ACCOUNTS, ended).to_batches():
                yield ACCOUNTS, batch

    def _of_accounts(self, statement: str) -> dict[tuple[str, str], Sequence[Any]]:
        """The rows that an SQL statement gives, by account and currency."""
        rows, found = self.ask(statement), dict[tuple[str, str], Sequence[Any]]()
        for account, currency, *values in rows:
            found[account, currency] = values
        if len(found) < len(rows):
            where = self.where(ACCOUNTS)
            raise ReconcileRefused(f"{where}: an account has two balances in one currency")
        return found

    def _closed(self) -> dict[tuple[str, str], tuple[int, int]] | None:
        """The closing balances and entry counts of the day before; ``None`` without a result."""
        results = Results(self._books.directory)
        past = results.previous(self._day)
        if past is None or past.result.end_ms != self._books.window.start_ms:
            return None
        columns = ("bank", "account", "currency", "closing", "closing_rows")
        of_bank = pc.field("bank") == self._books.bank.name
        rows = results.table("balances", past.day, past.run_id).rows(*columns, where=of_bank)
        return {
            (row["account"], row["currency"]): (row["closing"], row["closing_rows"]) for row in rows
        }


def _stored_value(value: Any, decimal: str) -> Any:
    """A value for SQLite: a text, with the bank's decimal character, or a whole number."""
    match value:
        case None | "":
            return None
        case str() if "\0" not in value:
            return value
        case bool():
            return str(value).lower()
        case int():
            return value if abs(value) < 1 << 63 else str(value)
        case Decimal() | float():
            text = format(value, "f") if isinstance(value, Decimal) else repr(value)
            return text.replace(".", decimal)
        case date():
            return value.isoformat()
    raise ValueError(f"{value!r} is not a text or a number; a dot in a name leads into an object")


def _read(text: str, form: str) -> date:
    """A moment, or a date without a time."""
    if form:
        found = datetime.strptime(text, form)  # noqa: DTZ007 - the rules name the zone
        return found if _TIMES.search(form) else found.date()
    with suppress(ValueError):
        return date.fromisoformat(text)
    return datetime.fromisoformat(text)
