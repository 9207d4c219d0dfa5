"""The tables of a run, read without Spark, in pieces, so that few rows are in memory at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import reduce
from operator import or_
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import ReconcileRefused, UsageError
from txmq.reconcile.storage import Directory, Folder, open_folder
from txmq.reconcile.summary import Run

__all__ = ["WrittenTable", "find_items", "items_of"]

_ORDER: Final = [("age_days", "descending"), ("amount", "descending"), ("break_id", "ascending")]
_SIDES: Final = {"bank": ("debit_bank", "credit_bank"), "account": ("payer", "payee")}
"""The columns of an item that have either bank, or either account."""


class WrittenTable(NamedTuple):
    """A table in its files.

    Reading raises :class:`ReconcileRefused` if a file cannot be read, or none exists.
    """

    name: str
    folder: Folder

    @property
    def parts(self) -> list[str]:
        """The names of its files."""
        return self.folder.files("*.parquet")

    def pieces(self, *columns: str, where: pc.Expression | None = None) -> Iterator[pa.Table]:
        """The rows in pieces: all columns or some, and all rows or those that fit a condition."""
        if not (parts := self.parts):
            why = f"the {self.name} are missing in {self.folder}"
            raise ReconcileRefused(f"{why}: run the day again")
        try:
            for batch in (one for part in parts for one in self.folder.batches(part, columns)):
                piece = pa.Table.from_batches([batch])
                yield piece if where is None else piece.filter(where)
        except (OSError, pa.ArrowException) as error:
            raise ReconcileRefused(f"the {self.name} cannot be read: {error}") from error

    def rows(self, *columns: str, where: pc.Expression | None = None) -> Iterator[dict[str, Any]]:
        """The rows one by one, as :meth:`pieces` has them."""
        return (row for piece in self.pieces(*columns, where=where) for row in piece.to_pylist())

    @classmethod
    def of_run(cls, results: Directory, day: date, run_id: str, name: str) -> WrittenTable:
        """A table of a run, in a directory of results."""
        folder = open_folder(results).at("results", name, f"business_date={day}", f"run={run_id}")
        return cls(f"{name} of {day}", folder)


def items_of(
    directory: Directory,
    run: Run,
    wanted: Mapping[str, str | None] | None = None,
    ids: Sequence[str] = (),
    older_than: int | None = None,
    *,
    is_complete: bool = False,
    most: int | None = None,
) -> list[dict[str, Any]]:
    """The items of a run that are not agreed: the oldest first, then the largest.

    ``wanted`` has the ``class``, the ``status``, the ``bank`` or the ``account`` of the items; an
    item must fit all of them, and be more than ``older_than`` business days old. ``ids`` are those
    of breaks, or their beginnings. Items in flight and explained ones are left out, unless
    ``is_complete``, or a class, a status or an id is wanted. ``most`` limits their number.

    Raises:
        ReconcileRefused: The items cannot be read.
        UsageError: No item matches an id, or several do.
    """
    named = {name: value for name, value in (wanted or {}).items() if value is not None}
    where = pc.field("age_days") > (-1 if older_than is None else older_than)
    if not (is_complete or ids or named.keys() & {"class", "status"}):
        where &= pc.field("group") == "break"
    for name, value in named.items():
        # A side that several banks booked has all of their names.
        held = rf"(^| / ){re.escape(value)}($| / )"
        columns = map(pc.field, _SIDES.get(name, (name,)))
        where &= reduce(or_, (pc.match_substring_regex(column, held) for column in columns))
    found: list[pa.Table] = []
    for piece in WrittenTable.of_run(directory, run.day, run.run_id, "items").pieces(where=where):
        found.append(piece)
        if most is not None:
            found = [_in_order(found)[:most]]
    items: list[dict[str, Any]] = _in_order(found)[:most].to_pylist() if found else []
    return find_items(items, ids) if ids else items


def _in_order(items: Iterable[pa.Table]) -> pa.Table:
    rows = pa.concat_tables(items)
    return rows.take(pc.sort_indices(rows, sort_keys=_ORDER))


def find_items(
    items: list[dict[str, Any]], ids: Sequence[str], name: str = "break_id"
) -> list[dict[str, Any]]:
    """The items whose ids begin as given, in their order.

    Raises:
        UsageError: No item matches an id, or several do.
    """
    found: set[str] = set()
    for id_ in ids:
        fit = [item[name] for item in items if item[name].startswith(id_)]
        if len(fit) != 1 or not id_:
            noun, command = ("break", "breaks") if name == "break_id" else ("difference", "proofs")
            many = f"several {noun}s" if fit else f"no {noun}"
            remedy = f"see txmq reconcile {command} --all"
            raise UsageError(f"{id_!r} matches {many} of this day; {remedy}")
        found.update(fit)
    return [item for item in items if item[name] in found]
