"""The reading of a bank's tables, and the code shared by the readers of all databases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from txmq.config import did_you_mean
from txmq.errors import ReconcileRefused
from txmq.protocol.properties import one_line
from txmq.quantity import quantity
from txmq.reconcile.extract.manifest import ExtractedTable, QuarantinedRow
from txmq.reconcile.extract.statements import (
    AccountStatements,
    Dialect,
    EntryStatements,
    Statements,
    TableColumns,
)
from txmq.reconcile.extract.table_writer import TableWriter, control_of
from txmq.reconcile.report.words import mask
from txmq.reconcile.rules import Bank, DayWindow, Rules
from txmq.reconcile.summary import Control
from txmq.reconcile.tables import ACCOUNTS, ENTRIES, LATER, LIMIT, LOWER_HALF, OPENING, TableSchema
from txmq.runtime.clock import Clock

__all__ = ["BookReader", "BookRequest", "check_columns", "error_text"]

_SUMS: Final = pa.schema(
    [pa.field(name, pa.int64()) for name in ("is_sum", "period")]
    + [pa.field(name, pa.string()) for name in ("account", "role", "currency")]
    + [pa.field(name, pa.int64()) for name in ("low", "high", "lines", "accounts")]
)
"""The answer to :meth:`EntryStatements.sums`."""
_WIDE: Final = pa.decimal128(19, 0)
_SHOWN: Final = 100
"""The maximum of characters of an invalid value."""


class BookRequest(NamedTuple):
    """The bank to read, the day, and the target directory."""

    bank: Bank
    rules: Rules
    day: date
    window: DayWindow
    """The moments of the day."""
    directory: Path
    """The bank's directory in the extract."""
    clock: Clock


class BookReader(ABC):
    """Reads a bank's tables; each kind of database runs the statements in its own way."""

    def __init__(self, books: BookRequest) -> None:
        self.damaged = defaultdict[str, list[QuarantinedRow]](list)
        """Rows that could not even be brought into a table, by the table's name."""
        self._books = books

    @abstractmethod
    def ask(self, statement: str) -> Sequence[Sequence[Any]]:
        """Run a statement in the state of the database that all others see; returns its rows."""

    @abstractmethod
    def batches(self, statement: str) -> Iterable[pa.RecordBatch]:
        """Run a statement in the same way, if it may have many rows."""

    @abstractmethod
    def _look_up(self, where: str, columns: TableColumns) -> tuple[dict[str, str], Dialect]:
        """Check the columns of a table.

        Returns the rules that differ where statements read it, and a dialect that knows its types.
        """

    @cached_property
    def entries(self) -> EntryStatements:
        """The statements for the journal."""
        books, bank = self._books, self._books.bank
        changes, dialect = self._look_up(f"{bank.name}/{ENTRIES.name}", bank.entries)
        bank = replace(bank, entries=replace(bank.entries, **changes))
        return EntryStatements(bank, books.rules.money, books.window, dialect)

    @cached_property
    def accounts(self) -> AccountStatements | None:
        """The statements for the table of accounts, if the rules name one."""
        bank, money = self._books.bank, self._books.rules.money
        if bank.accounts is None:
            return None
        changes, dialect = self._look_up(f"{bank.name}/{ACCOUNTS.name}", bank.accounts)
        accounts = replace(bank.accounts, **changes)
        return AccountStatements(accounts, bank.entries.units, money, dialect)

    def tables(self) -> tuple[ExtractedTable, ...]:
        """Copy all tables into the extract.

        Raises:
            ReconcileRefused: A table cannot be read.
        """
        found = self.copy_entries()
        return found if self.accounts is None else (*found, self.copy(self.accounts))

    def copy_entries(self) -> tuple[ExtractedTable, ...]:
        """Copy the entries of the day, and the sums of accounts before it and after it."""
        sums = self._sums()
        return self.copy(self.entries, sums), *self._write_sums(sums)

    def copy(self, statements: Statements, sums: pa.Table | None = None) -> ExtractedTable:
        """Copy a table into the extract, without the rows that cannot be read.

        Raises:
            ReconcileRefused: Too many rows cannot be read, or rows were lost on the way.
        """
        quarantine = self.quarantine(statements, sums)
        control, rows = self._control(statements), self.batches(statements.rows())
        return self.write(statements.table, rows, quarantine, control)

    def write(
        self,
        table: TableSchema,
        rows: Iterable[pa.RecordBatch],
        quarantine: tuple[QuarantinedRow, ...] = (),
        control: Control | None = None,
    ) -> ExtractedTable:
        """Write a table of the extract, as in :meth:`TableWriter.extracted`."""
        with TableWriter(table, self._books.directory) as writer:
            for batch in rows:
                writer.write(batch)
        return writer.extracted(quarantine, control)

    def quarantine(
        self, statements: Statements, sums: pa.Table | None = None
    ) -> tuple[QuarantinedRow, ...]:
        """The rows of a table that cannot be read; if the sums have none, it is not searched.

        Raises:
            ReconcileRefused: They are more than the rules allow; the message shows the first.
        """
        name, most = statements.table.name, self._books.rules.limits.quarantine_max
        found = list(self.damaged[name])
        count = len(found)
        if sums is None or pc.any(pc.equal(sums["period"], 2)).as_py():
            for total, *row in self.ask(statements.unreadable(max(most, 1))):
                count = len(self.damaged[name]) + total
                found.append(_quarantined(statements, row))
        if count > most:
            why = f"{quantity(count, 'row')} cannot be read, and limits.quarantine_max is {most}"
            remedy = "correct the book, or raise the limit to report such rows instead"
            first = f"{found[0].row or 'one without an id'}: {found[0].reason}"
            where = f"{self._books.bank.name}/{name}"
            raise ReconcileRefused(f"{where}: {why}: {remedy}; the first is {first}")
        return tuple(sorted(found))

    def _control(self, statements: Statements) -> Control:
        rows = self.ask(statements.control())
        return control_of(self._books.bank.name, statements.table, rows)

    def _sums(self) -> pa.Table:
        pieces = (pa.table(batch) for batch in self.batches(self.entries.sums()))
        found = [piece.rename_columns(_SUMS.names).cast(_SUMS) for piece in pieces]
        return pa.concat_tables([_SUMS.empty_table(), *found])

    def _write_sums(self, answer: pa.Table) -> Iterable[ExtractedTable]:
        name = self._books.bank.name
        for period, table in enumerate((OPENING, LATER)):
            rows = answer.filter(pc.field("period") == period)
            accounts = rows.filter(pc.field("is_sum") == 0).rename_columns({"lines": "rows"})
            amounts = _joined(f"{name}/{table.name}", accounts)
            chosen = accounts.append_column("amount", amounts).select(table.names)
            columns = ["currency", "accounts", "low", "high", "lines"]
            totals = rows.filter(pc.field("is_sum") == 1).select(columns).to_pydict()
            sums = (
                (currency, count, None, None, *halves, 0)
                for currency, count, *halves in zip(*totals.values(), strict=True)
            )
            control = control_of(name, table, sums)
            yield self.write(table, chosen.to_batches(), control=control)


def _quarantined(statements: Statements, row: Sequence[Any]) -> QuarantinedRow:
    """A row of the answer to :meth:`Statements.unreadable`, without the number of all."""
    index, value, *places = row
    fault = statements.faults[index]
    found = [
        # Reports show it: in one line, and accounts with a mask.
        f"{name} {one_line(mask(place) if name == 'account' else place, _SHOWN)}"
        for name, place in zip(statements.place, places, strict=True)
        if place is not None
    ]
    held = "is empty"
    if value is not None:
        hint = did_you_mean(value, fault.known)
        held = f"is {value[:_SHOWN]!r}: {fault.expected}{hint}"
    return QuarantinedRow(", ".join(found), f"{fault.column} {held}")


def _joined(where: str, accounts: pa.Table) -> pa.ChunkedArray:
    """The sums of accounts from those of halves."""
    low, high = accounts["low"].cast(_WIDE), accounts["high"].cast(_WIDE)
    sums = pc.add(low, pc.multiply(high, pa.scalar(LOWER_HALF + 1, pa.decimal128(10, 0))))
    try:
        return sums.cast(pa.int64())
    except pa.ArrowInvalid:
        place = pc.index(pc.greater(pc.abs(sums), pa.scalar(LIMIT - 1, _WIDE)), True).as_py()
        row = accounts.slice(place, 1).to_pylist()[0]
        raise ReconcileRefused(
            f"{where}: the entries of account {mask(row['account'])} add up to "
            f"{sums[place].as_py()} {row['currency']} in minor units, which does not fit into 64 "
            "bits: correct the wrong entry in the book"
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
