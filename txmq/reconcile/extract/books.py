"""The code that the readers of all databases share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.controls import control_totals, difference
from txmq.reconcile.extract.manifest import ExtractedTable
from txmq.reconcile.extract.statements import RowFault
from txmq.reconcile.extract.table_writer import TableWriter
from txmq.reconcile.rules import Bank, DayWindow
from txmq.reconcile.summary import Control
from txmq.reconcile.tables import LATER, OPENING, TableSchema

__all__ = [
    "Ask",
    "BookRequest",
    "check_columns",
    "checked_extract",
    "error_text",
    "raise_for_misfit",
    "write_sums",
]

_SUMS: Final = pa.schema(
    {
        "is_sum": pa.int64(),
        "period": pa.int64(),
        "account": pa.string(),
        "role": pa.string(),
        "currency": pa.string(),
        "amount": pa.int64(),
        "lines": pa.int64(),
        "accounts": pa.int64(),
    }
)
"""What :meth:`EntryStatements.sums` answers."""

Ask = Callable[[str], Sequence[Sequence[Any]]]
"""Answers a statement with rows."""


class BookRequest(NamedTuple):
    """The bank to read, the day, and the target directory."""

    bank: Bank
    window: DayWindow
    directory: Path
    """The bank's directory in the extract."""


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
    there = list(found)
    for name in sorted(set(wanted) - set(there)):
        raise ReconcileRefused(f"{where}: there is no column {name}, but {', '.join(there)}")


def raise_for_misfit(where: str, faults: Iterable[RowFault], ask: Ask) -> None:
    """Raise an error if a row does not fit.

    Args:
        where: The bank and its table.
        faults: The queries that find such rows.
        ask: Runs them under the same snapshot.

    Raises:
        ReconcileRefused: A row does not fit; the message names it.
    """
    for fault in faults:
        for number, key, held in ask(fault.statement):
            given = {"id": number, "key": key}
            row = ", ".join(f"{name} {one}" for name, one in given.items() if one is not None)
            what = "is empty" if held is None else f"is {held!r}: {fault.expected}"
            raise ReconcileRefused(f"{where}: {fault.column} of the row {row or 'found'} {what}")


def checked_extract(source: str, told: Control, writer: TableWriter) -> ExtractedTable:
    """The extracted table, after its control totals were compared.

    Raises:
        ReconcileRefused: The source's control totals differ from those of the written rows.
    """
    found = writer.extracted(source, told)
    if (differs := difference(told, found.written)) is not None:
        raise ReconcileRefused(f"{differs}: rows were lost or doubled on the way into the extract")
    return found


def write_sums(books: BookRequest, answer: pa.Table) -> tuple[ExtractedTable, ExtractedTable]:
    """Write the accounts' sums before the day and after it.

    Args:
        books: The bank.
        answer: The answer to :meth:`EntryStatements.sums`.

    Raises:
        ReconcileRefused: A moment or an amount does not fit.
    """
    answer = answer.rename_columns(_SUMS.names).cast(_SUMS)
    if any(answer[name].null_count for name in ("period", "amount", "lines")):
        raise ReconcileRefused(f"{books.bank.name}/entries: some moments or amounts do not fit")
    before, after = (
        _write_table(books, table, answer.filter(pc.equal(answer["period"], period)))
        for period, table in enumerate((OPENING, LATER))
    )
    return before, after


def _write_table(books: BookRequest, table: TableSchema, answer: pa.Table) -> ExtractedTable:
    is_sum = pc.equal(answer["is_sum"], 1)
    rows = answer.filter(pc.invert(is_sum)).rename_columns({"lines": "rows"}).select(table.names)
    with TableWriter(table, books.directory / table.name) as writer:
        for batch in rows.to_batches():
            writer.write(batch)
    told = control_totals(
        books.bank.name,
        table,
        (
            (
                row["currency"],
                row["accounts"],
                None,
                None,
                row["amount"],
                row["amount"] + row["lines"],
            )
            for row in answer.filter(is_sum).to_pylist()
        ),
    )
    return checked_extract(books.bank.name, told, writer)
