"""What every reader of a bank's books does alike, whatever its database is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.controls import control_of, difference
from txmq.reconcile.extract.manifest import Extracted
from txmq.reconcile.extract.statements import Fault
from txmq.reconcile.extract.writing import TableWriter, schema_of
from txmq.reconcile.rules import Bank, Window
from txmq.reconcile.summary import Control
from txmq.reconcile.tables import LATER, OPENING, Table

__all__ = ["Ask", "Books", "blamed", "extracted", "see_columns", "words", "write_sums"]

Ask = Callable[[str], Sequence[Sequence[Any]]]
"""Answers a statement with rows."""


class Books(NamedTuple):
    """Whose books are read, for which day, and where to."""

    bank: Bank
    window: Window
    directory: Path
    """The bank's in the extract."""


def words(problem: BaseException, url: str = "") -> str:
    """What an exception of a database says, in a line and without the URL's password."""
    text = str(problem).strip().partition("\n")[0] or type(problem).__name__
    text = text.partition("[libpq] ")[2] or text
    try:
        secret = urlsplit(url).password
    except ValueError:
        return "its URL is none"
    for each in {secret, unquote(secret)} if secret else ():
        text = text.replace(each, "***")
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
    for each in sorted(set(wanted) - set(there)):
        raise ReconcileRefused(f"{where}: there is no column {each}, but {', '.join(there)}")


def blamed(where: str, faults: Iterable[Fault], ask: Ask) -> None:
    """Find the row that does not fit.

    Args:
        where: The bank and its table.
        faults: Where to look.
        ask: Asks under the same snapshot.

    Raises:
        ReconcileRefused: There is one; it says which.
    """
    for each in faults:
        for number, key, held in ask(each.statement):
            given = {"id": number, "key": key}
            row = ", ".join(f"{name} {one}" for name, one in given.items() if one is not None)
            what = "is empty" if held is None else f"is {held!r}: {each.expected}"
            raise ReconcileRefused(f"{where}: {each.column} of the row {row or 'found'} {what}")


def extracted(source: str, table: Table, told: Control, writer: TableWriter) -> Extracted:
    """What was extracted of a table, once its writer is done.

    Raises:
        ReconcileRefused: The source has counted something else than was written.
    """
    written = writer.control(source)
    if (problem := difference(told, written)) is not None:
        raise ReconcileRefused(f"{problem}: it was lost or doubled on its way into the extract")
    return Extracted(table.name, told, written, writer.parts)


def write_sums(books: Books, answer: pa.Table) -> tuple[Extracted, Extracted]:
    """Write what accounts had before the day, and have had since.

    Args:
        books: Whose.
        answer: To :meth:`EntryStatements.sums`.

    Raises:
        ReconcileRefused: Something of it does not fit.
    """
    found = []
    where = f"{books.bank.name}/entries"
    for period, table in enumerate((OPENING, LATER)):
        rows, controls = [], []
        for is_sum, when, account, role, currency, amount, lines, accounts in _rows(answer):
            if when is None or amount is None or lines is None:
                raise ReconcileRefused(f"{where}: there are moments or amounts that do not fit")
            if when != period:
                continue
            if is_sum:
                controls.append((currency, accounts, None, None, amount, amount + lines))
            else:
                rows.append((account, role, currency, amount, lines))
        with TableWriter(table, books.directory / table.name) as writer:
            columns = list(zip(*rows, strict=True)) or [()] * len(table.columns)
            schema = schema_of(table).remove_metadata()
            arrays = [pa.array(each, one.type) for each, one in zip(columns, schema, strict=True)]
            writer.write(pa.RecordBatch.from_arrays(arrays, names=schema.names))
        told = control_of(books.bank.name, table, controls)
        found.append(extracted(books.bank.name, table, told, writer))
    return found[0], found[1]


def _rows(answer: pa.Table) -> Iterable[tuple[Any, ...]]:
    return zip(*(each.to_pylist() for each in answer.columns), strict=True)
