"""What every reader of a bank's books does alike, whatever its database is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.controls import control_of, difference
from txmq.reconcile.extract.manifest import Extracted
from txmq.reconcile.extract.statements import Fault
from txmq.reconcile.extract.writing import TableWriter
from txmq.reconcile.rules import Bank, Window
from txmq.reconcile.summary import Control
from txmq.reconcile.tables import LATER, OPENING, Table

__all__ = ["Ask", "Books", "blamed", "extracted", "see_columns", "words", "write_sums"]

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


class Books(NamedTuple):
    """Whose books are read, for which day, and where to."""

    bank: Bank
    window: Window
    directory: Path
    """The bank's in the extract."""


def words(error: BaseException, url: str = "") -> str:
    """What an exception of a database says, in a line and without the URL's password."""
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    text = text.partition("[libpq] ")[2] or text
    try:
        secret = urlsplit(url).password
    except ValueError:
        return "its URL is none"
    for written in {secret, unquote(secret)} if secret else ():
        text = text.replace(written, "***")
    return text


def see_columns(where: str, wanted: Iterable[str], found: Iterable[str]) -> None:
    """See that a table has the columns that the rules name.

    Args:
        where: The bank and its table.
        wanted: What the rules name.
        found: What there is.

    Raises:
        ReconcileRefused: One is missing.
    """
    there = list(found)
    for name in sorted(set(wanted) - set(there)):
        raise ReconcileRefused(f"{where}: there is no column {name}, but {', '.join(there)}")


def blamed(where: str, faults: Iterable[Fault], ask: Ask) -> None:
    """Find the row that does not fit.

    Args:
        where: The bank and its table.
        faults: Where to look.
        ask: Asks under the same snapshot.

    Raises:
        ReconcileRefused: There is one; it says which.
    """
    for fault in faults:
        for number, key, held in ask(fault.statement):
            given = {"id": number, "key": key}
            row = ", ".join(f"{name} {one}" for name, one in given.items() if one is not None)
            what = "is empty" if held is None else f"is {held!r}: {fault.expected}"
            raise ReconcileRefused(f"{where}: {fault.column} of the row {row or 'found'} {what}")


def extracted(source: str, told: Control, writer: TableWriter) -> Extracted:
    """What was extracted of a table, once its writer is done.

    Raises:
        ReconcileRefused: The source has counted something else than was written.
    """
    found = writer.extracted(source, told)
    if (differs := difference(told, found.written)) is not None:
        raise ReconcileRefused(f"{differs}: it was lost or doubled on its way into the extract")
    return found


def write_sums(books: Books, answer: pa.Table) -> tuple[Extracted, Extracted]:
    """Write what accounts had before the day, and have had since.

    Args:
        books: Whose.
        answer: To :meth:`EntryStatements.sums`.

    Raises:
        ReconcileRefused: Something of it does not fit.
    """
    answer = answer.rename_columns(_SUMS.names).cast(_SUMS)
    if any(answer[name].null_count for name in ("period", "amount", "lines")):
        raise ReconcileRefused(
            f"{books.bank.name}/entries: there are moments or amounts that do not fit"
        )
    before, after = (
        _written(books, table, answer.filter(pc.equal(answer["period"], period)))
        for period, table in enumerate((OPENING, LATER))
    )
    return before, after


def _written(books: Books, table: Table, answer: pa.Table) -> Extracted:
    is_sum = pc.equal(answer["is_sum"], 1)
    rows = answer.filter(pc.invert(is_sum)).rename_columns({"lines": "rows"}).select(table.names)
    with TableWriter(table, books.directory / table.name) as writer:
        for batch in rows.to_batches():
            writer.write(batch)
    told = control_of(
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
    return extracted(books.bank.name, told, writer)
