"""Reading a bank's tables: the code that the readers of all databases share.

A reader gives the rows of all tables of a bank in one stream, over one connection. So all tables
are read as of one moment, also from a database whose snapshots belong to a connection, as SQLite's
do.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from txmq.errors import ReconcileRefused
from txmq.protocol.properties import one_line
from txmq.reconcile.arrow import arrow_schema
from txmq.reconcile.extract.statements import (
    AccountStatements,
    Dialect,
    EntryStatements,
    Statements,
)
from txmq.reconcile.report.words import mask
from txmq.reconcile.rules import AccountColumns, Bank, Day, DayWindow, EntryColumns, Money, Rules
from txmq.reconcile.tables import (
    ACCOUNTS,
    BANK_TABLES,
    ENTRIES,
    LATER,
    LOWER_HALF,
    OPENING,
    Column,
    TableSchema,
)
from txmq.settings.loading import did_you_mean
from txmq.text import quantity

__all__ = [
    "BOOKS",
    "NOTES",
    "BookPart",
    "BookReader",
    "BookRequest",
    "BookTables",
    "Columns",
    "Piece",
    "check_columns",
    "error_text",
    "notes",
    "sums_of_accounts",
]

NOTES: Final = TableSchema(
    "notes", tuple(Column(name, "string", is_optional=True) for name in ("about", "place", "note"))
)
"""What a source reports in addition to its rows: about a table, the place of a row and why it
cannot be read; about ``files``, the name of a file and its hash."""
BOOKS: Final = {**BANK_TABLES, NOTES.name: NOTES}
"""The tables that a bank's source gives."""

Piece: TypeAlias = tuple[TableSchema, pa.RecordBatch]
"""Some rows of a table."""
Columns = TypeVar("Columns", EntryColumns, AccountColumns)

_SUMS: Final = pa.schema({
    "period": pa.int64(), "account": pa.string(), "role": pa.string(), "currency": pa.string(),
    "low": pa.int64(), "high": pa.int64(), "lines": pa.int64(),
})  # fmt: skip
"""The answer to :meth:`EntryStatements.sums`."""
_UNREADABLE: Final = 2
"""The period of rows that cannot be read."""
_TEXTS: Final = frozenset({"date", "directory"})
"""The options that are not JSON."""
_WIDE: Final = pa.decimal128(19, 0)
_SHOWN: Final = 100
"""The most characters of an invalid value that are shown."""


class BookRequest(Struct, frozen=True):
    """The bank to read, and the date."""

    bank: Bank
    date: dt.date
    day: Day = Day()
    """When business dates begin and end."""
    money: dict[str, Money] = {}
    directory: str = ""
    """Where earlier results are, which give a file of one date its opening balances."""
    quarantine_max: int = 0
    """The most rows of a table that may be unreadable."""

    @classmethod
    def of(cls, rules: Rules, bank: Bank, day: dt.date) -> BookRequest:
        """The request for a bank of the rules."""
        most = rules.limits.quarantine_max
        return cls(bank, day, rules.day, rules.money, rules.directory, most)

    @property
    def window(self) -> DayWindow:
        """The moments of the date."""
        return self.day.window(self.date)

    def options(self) -> dict[str, str]:
        """The request as options of a data source. The URL is separate: Spark hides it in plans."""
        hidden = replace(self, bank=replace(self.bank, database=""))
        plain: dict[str, Any] = msgspec.to_builtins(hidden)
        others = plain.keys() - _TEXTS
        texts = {name: msgspec.json.encode(plain[name]).decode() for name in others}
        return plain | texts | {"url": self.bank.database}

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> BookRequest:
        """The request in these options.

        Raises:
            ReconcileRefused: ``bank`` or ``date`` is missing, or an option is invalid.
        """
        given = {
            name: options[name] if name in _TEXTS else msgspec.Raw(options[name].encode())
            for name in cls.__struct_fields__
            if name in options
        }
        try:
            found = msgspec.json.decode(msgspec.json.encode(given), type=cls)
        except msgspec.DecodeError as error:
            raise ReconcileRefused(f"the options of the bank are invalid: {error}") from error
        url = options.get("url") or found.bank.database
        return replace(found, bank=replace(found.bank, database=url))


class BookPart(NamedTuple):
    """The part of a bank's books that one task reads."""

    slices: Sequence[str] = ("",)
    """Conditions for the entries to read; an empty one selects all."""
    has_others: bool = True
    """True if the task also reads all other tables."""


class BookTables(ABC):
    """A bank's tables; each kind of database runs the statements in its own way."""

    def __init__(self, books: BookRequest) -> None:
        self._books = books

    @abstractmethod
    def ask(self, statement: str) -> Sequence[Sequence[Any]]:
        """Run a statement in the same state of the database as all others; returns its rows."""

    @abstractmethod
    def _look_up(self, table: TableSchema, columns: Columns) -> tuple[Columns, Dialect]:
        """Check the columns of a table.

        Returns the columns where statements read them, and a dialect that knows their types.
        """

    @cached_property
    def entries(self) -> EntryStatements:
        """The statements for the journal."""
        books = self._books
        columns, dialect = self._look_up(ENTRIES, books.bank.entries)
        bank = replace(books.bank, entries=columns)
        return EntryStatements(bank, books.money, books.window, dialect)

    @cached_property
    def accounts(self) -> AccountStatements | None:
        """The statements for the table of accounts, if the rules name one."""
        bank = self._books.bank
        if bank.accounts is None:
            return None
        columns, dialect = self._look_up(ACCOUNTS, bank.accounts)
        return AccountStatements(columns, bank.entries.units, self._books.money, dialect)

    def where(self, table: TableSchema) -> str:
        """The bank and the table, for errors."""
        return f"{self._books.bank.name}/{table.name}"

    def quarantine(self, statements: Statements) -> Piece:
        """Notes about the rows of a table that cannot be read.

        Raises:
            ReconcileRefused: There are more than the rules allow; the message shows the first.
        """
        name, most = statements.table.name, self._books.quarantine_max
        found = self.ask(statements.unreadable(max(most, 1)))
        aside = [(name, *_quarantined(statements, *row)) for _, *row in found]
        if found and (count := found[0][0]) > most:
            why = f"{quantity(count, 'row')} cannot be read, and limits.quarantine_max is {most}"
            remedy = "correct the book, or raise the limit to report such rows instead"
            _, place, reason = aside[0]
            first = f"{place or 'one without an id'}: {reason}"
            where = self.where(statements.table)
            raise ReconcileRefused(f"{where}: {why}: {remedy}; the first is {first}")
        return notes(aside)


class BookReader(BookTables):
    """Reads a bank's tables, as rows of Arrow."""

    @abstractmethod
    def batches(self, statement: str) -> Iterable[pa.RecordBatch]:
        """Run a statement that may have many rows, in the same state."""

    def pieces(self, part: BookPart) -> Iterator[Piece]:
        """The rows of a part of the books, without those that cannot be read.

        Raises:
            ReconcileRefused: A table cannot be read, or too many of its rows cannot.
        """
        for slice_ in part.slices:
            for batch in self.batches(self.entries.rows(slice_)):
                yield ENTRIES, batch
        if part.has_others:
            yield from self._others()

    def _others(self) -> Iterator[Piece]:
        """All tables except the entries, and the notes."""
        batches = self.batches(self.entries.sums())
        sums = pa.Table.from_batches((batch.cast(_SUMS) for batch in batches), _SUMS)
        if pc.any(pc.equal(sums["period"], _UNREADABLE)).as_py():
            yield self.quarantine(self.entries)
        yield from sums_of_accounts(self._books.bank.name, sums)
        if self.accounts is not None:
            yield self.quarantine(self.accounts)
            for batch in self.batches(self.accounts.rows()):
                yield ACCOUNTS, batch


def notes(found: Sequence[tuple[str, str, str]]) -> Piece:
    """Some rows of ``NOTES``."""
    rows = [dict(zip(NOTES.names, note, strict=True)) for note in found]
    return NOTES, pa.RecordBatch.from_pylist(rows, arrow_schema(NOTES))


def sums_of_accounts(name: str, sums: pa.Table) -> Iterator[Piece]:
    """The sums of a bank's accounts before the day and after it.

    Raises:
        ReconcileRefused: A sum does not fit into 64 bits; the message names the account.
    """
    for period, table in enumerate((OPENING, LATER)):
        rows = sums.filter(pc.field("period") == period).rename_columns({"lines": "rows"})
        amounts = _joined(f"{name}/{table.name}", rows)
        for batch in rows.append_column("amount", amounts).select(table.names).to_batches():
            yield table, batch


def _quarantined(
    statements: Statements, index: int, value: str | None, *places: str | None
) -> tuple[str, str]:
    """The place of a row that cannot be read, and why, from :meth:`Statements.unreadable`."""
    fault = statements.faults[index]
    place = ", ".join(
        # Reports show the place, so it is one line, with accounts masked.
        f"{name} {one_line(mask(text) if name == 'account' else text, _SHOWN)}"
        for name, text in zip(statements.place, places, strict=True)
        if text is not None
    )
    if value is None:
        return place, f"{fault.column} is empty"
    if not fault.expected:
        return place, value
    hint = did_you_mean(value, fault.known)
    return place, f"{fault.column} is {value[:_SHOWN]!r}: {fault.expected}{hint}"


def _joined(where: str, accounts: pa.Table) -> pa.ChunkedArray:
    """The sums of accounts, from the sums of the halves of their amounts."""
    low, high = accounts["low"].cast(_WIDE), accounts["high"].cast(_WIDE)
    sums = pc.add(low, pc.multiply(high, pa.scalar(LOWER_HALF + 1, pa.decimal128(10, 0))))
    try:
        return sums.cast(pa.int64())
    except pa.ArrowInvalid:
        found = accounts.append_column("sum", sums).to_pylist()
        worst = max(found, key=lambda row: abs(row["sum"]))
        raise ReconcileRefused(
            f"{where}: the entries of account {mask(worst['account'])} add up to {worst['sum']} "
            f"{worst['currency']} in minor units, which does not fit into 64 bits: correct the "
            "wrong entry in the book"
        ) from None


def error_text(error: BaseException, url: str = "") -> str:
    """The message of a database's exception, in one line and without the URL's password."""
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    text = text.partition("[libpq] ")[2] or text
    try:
        secret = urlsplit(url).password
    except ValueError:
        return "its URL is invalid"
    for written in {secret, unquote(secret)} if secret else ():
        text = text.replace(written, "***")
    return text


def check_columns(where: str, wanted: Iterable[str], found: Iterable[str]) -> None:
    """Check that a table has the columns that the rules name.

    Raises:
        ReconcileRefused: One is missing.
    """
    names = list(found)
    for name in sorted(set(wanted) - set(names)):
        raise ReconcileRefused(f"{where}: column {name} is missing; it has {', '.join(names)}")
