"""The code shared by the readers of all databases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from txmq.config import did_you_mean
from txmq.errors import ReconcileRefused
from txmq.quantity import quantity
from txmq.reconcile.extract.controls import (
    LIMIT,
    LOWER_HALF,
    control_totals,
    difference,
    join_halves,
)
from txmq.reconcile.extract.manifest import ExtractedTable, QuarantinedRow
from txmq.reconcile.extract.statements import (
    AccountStatements,
    EntryStatements,
    control_from_answer,
    control_query,
)
from txmq.reconcile.extract.table_writer import TableWriter
from txmq.reconcile.report.words import mask
from txmq.reconcile.rules import Bank, DayWindow, Money
from txmq.reconcile.summary import Control
from txmq.reconcile.tables import LATER, OPENING, TableSchema

__all__ = [
    "Ask",
    "BookRequest",
    "check_columns",
    "checked_extract",
    "copy_table",
    "error_text",
    "set_aside",
    "write_sums",
]

_SUMS: Final = pa.schema(
    {
        "is_sum": pa.int64(),
        "period": pa.int64(),
        "account": pa.string(),
        "role": pa.string(),
        "currency": pa.string(),
        "low": pa.int64(),
        "high": pa.int64(),
        "lines": pa.int64(),
        "accounts": pa.int64(),
    }
)
"""The answer to :meth:`EntryStatements.sums`."""
_WIDE: Final = pa.decimal128(19, 0)
_SHOWN: Final = 100
"""The maximum of characters of an invalid value."""

Ask = Callable[[str], Sequence[Sequence[Any]]]
"""Runs a statement and returns its rows."""


class BookRequest(NamedTuple):
    """The bank to read, the day, and the target directory."""

    bank: Bank
    window: DayWindow
    directory: Path
    """The bank's directory in the extract."""
    money: Mapping[str, Money]
    """The known currencies."""
    quarantine_max: int
    """The most rows of a table that may be set aside."""


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

    Args:
        where: The bank and its table.
        wanted: The columns of the rules.
        found: The columns of the table.

    Raises:
        ReconcileRefused: One is missing.
    """
    names = list(found)
    for name in sorted(set(wanted) - set(names)):
        raise ReconcileRefused(f"{where}: column {name} is missing; it has {', '.join(names)}")


def set_aside(
    books: BookRequest,
    table: TableSchema,
    statements: EntryStatements | AccountStatements,
    ask: Ask,
    damaged: Sequence[QuarantinedRow] = (),
) -> tuple[QuarantinedRow, ...]:
    """The rows of a bank's table that cannot be read.

    Args:
        books: The bank, and the most rows of this kind.
        table: The table.
        statements: The SQL that finds them.
        ask: Runs a statement under the snapshot.
        damaged: Rows that could not even be brought into a table.

    Raises:
        ReconcileRefused: They are more than the rules allow; the message shows the first.
    """
    ((count,),) = ask(statements.unreadable_count())
    most, faults, found = books.quarantine_max, statements.faults(), list(damaged)
    for index, value, *places in ask(statements.unreadable(max(most, 1))) if count else ():
        fault = faults[index]
        names = zip(statements.place, places, strict=True)
        # Reports show these, and mask accounts there.
        row = ", ".join(
            f"{name} {mask(place) if name == 'account' else place}"
            for name, place in names
            if place is not None
        )
        held = "is empty"
        if value is not None:
            hint = did_you_mean(value, fault.known)
            held = f"is {value[:_SHOWN]!r}: {fault.expected}{hint}"
        found.append(QuarantinedRow(row, f"{fault.column} {held}"))
    if (count := count + len(damaged)) > most:
        first = found[0]
        raise ReconcileRefused(
            f"{books.bank.name}/{table.name}: {quantity(count, 'row')} cannot be read, and "
            f"limits.quarantine_max is {most}: correct the book, or raise the limit to report such "
            f"rows instead; the first is {first.row or 'one without an id'}: {first.reason}"
        )
    return tuple(sorted(found))


def copy_table(
    books: BookRequest,
    table: TableSchema,
    statements: EntryStatements | AccountStatements,
    ask: Ask,
    batches: Callable[[str], Iterable[pa.RecordBatch]],
    damaged: Sequence[QuarantinedRow] = (),
) -> ExtractedTable:
    """Copy a table into the extract, without the rows that cannot be read.

    Args:
        books: The bank and the target directory.
        table: The table.
        statements: The SQL that reads it.
        ask: Runs a statement under the snapshot.
        batches: Runs a statement under the snapshot and returns its rows as Arrow.
        damaged: Rows that could not even be brought into a table.

    Raises:
        ReconcileRefused: Too many rows cannot be read, or rows were lost on the way.
    """
    name = books.bank.name
    quarantine = set_aside(books, table, statements, ask, damaged)
    answer = ask(control_query(statements.rows(), table))
    with TableWriter(table, books.directory / table.name) as writer:
        for batch in batches(statements.rows()):
            writer.write(batch)
    return checked_extract(name, control_from_answer(name, table, answer), writer, quarantine)


def checked_extract(
    source: str,
    control: Control,
    writer: TableWriter,
    quarantine: tuple[QuarantinedRow, ...] = (),
) -> ExtractedTable:
    """Describe the extracted table, after comparing its control totals.

    Raises:
        ReconcileRefused: The source's control totals differ from those of the written rows.
    """
    found = writer.extracted(source, control)
    if (differs := difference(control, found.written)) is not None:
        raise ReconcileRefused(f"{differs}: rows were lost or doubled on the way into the extract")
    return msgspec.structs.replace(found, quarantine=quarantine)


def write_sums(books: BookRequest, answer: pa.Table) -> tuple[ExtractedTable, ExtractedTable]:
    """Write the accounts' sums before the day and after it.

    Args:
        books: The bank.
        answer: The answer to :meth:`EntryStatements.sums`.

    Raises:
        ReconcileRefused: The sum of an account does not fit into 64 bits; the message names it.
    """
    answer = answer.rename_columns(_SUMS.names).cast(_SUMS)
    before, after = (
        _write_table(books, table, answer.filter(pc.equal(answer["period"], period)))
        for period, table in enumerate((OPENING, LATER))
    )
    return before, after


def _write_table(books: BookRequest, table: TableSchema, answer: pa.Table) -> ExtractedTable:
    is_sum = pc.equal(answer["is_sum"], 1)
    accounts = answer.filter(pc.invert(is_sum)).rename_columns({"lines": "rows"})
    low, high = accounts["low"].cast(_WIDE), accounts["high"].cast(_WIDE)
    wide = pc.add(low, pc.multiply(high, pa.scalar(LOWER_HALF + 1, pa.decimal128(10, 0))))
    try:
        amounts = wide.cast(pa.int64())
    except pa.ArrowInvalid:
        place = pc.index(pc.greater(pc.abs(wide), pa.scalar(LIMIT - 1, _WIDE)), True).as_py()
        raise ReconcileRefused(
            f"{books.bank.name}/{table.name}: the entries of account "
            f"{mask(accounts['account'][place].as_py())} add up to {wide[place].as_py()} "
            f"{accounts['currency'][place].as_py()} in minor units, which does not fit into 64 "
            "bits: correct the wrong entry in the book"
        ) from None
    rows = accounts.append_column("amount", amounts).select(table.names)
    with TableWriter(table, books.directory / table.name) as writer:
        for batch in rows.to_batches():
            writer.write(batch)
    control = control_totals(
        books.bank.name,
        table,
        (
            (
                row["currency"],
                row["accounts"],
                None,
                None,
                (total := join_halves(row["low"], row["high"])),
                total + row["lines"],
            )
            for row in answer.filter(is_sum).to_pylist()
        ),
    )
    return checked_extract(books.bank.name, control, writer)
