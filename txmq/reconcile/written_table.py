"""A table of a run, read in pieces and without Spark, so that few rows are in memory at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import ReconcileRefused
from txmq.reconcile.file_systems import Directory, open_folder
from txmq.reconcile.storage import Folder

__all__ = ["Order", "WrittenTable", "sum_groups", "top_rows"]

_ROWS_AT_ONCE: Final = 1 << 17
_WIDE: Final = pa.decimal128(38, 0)
"""Decimals with room for any sum of 64-bit numbers."""

Order: TypeAlias = tuple[tuple[str, Literal["ascending", "descending"]], ...]
"""The columns to sort by, and the direction of each."""


class WrittenTable(NamedTuple):
    """A table in its files."""

    name: str
    folder: Folder

    @property
    def parts(self) -> list[str]:
        """The names of its files."""
        return self.folder.files("*.parquet")

    @property
    def rows(self) -> int:
        """The number of rows.

        Raises:
            ReconcileRefused: A file cannot be read, or none exists.
        """
        return sum(len(piece) for piece in self.pieces("key"))

    def pieces(self, *columns: str) -> Iterator[pa.Table]:
        """The rows in pieces, with all columns or some.

        Raises:
            ReconcileRefused: A file cannot be read, or none exists.
        """
        if not (parts := self.parts):
            raise ReconcileRefused(
                f"the {self.name} are missing in {self.folder}: run the day again"
            )
        try:
            for part in parts:
                with self.folder.parquet(part) as file:
                    for batch in file.iter_batches(_ROWS_AT_ONCE, columns=list(columns) or None):
                        yield pa.Table.from_batches([batch])
        except (OSError, pa.ArrowException) as error:
            raise ReconcileRefused(f"the {self.name} cannot be read: {error}") from error

    @classmethod
    def of_run(cls, results: Directory, day: date, run_id: str, name: str) -> WrittenTable:
        """A table of a run, in a directory of results."""
        folder = open_folder(results).at("results", name, f"business_date={day}", f"run={run_id}")
        return cls(f"{name} of {day}", folder)


def sum_groups(
    pieces: Iterable[pa.Table], by: Sequence[str], numbers: Sequence[str]
) -> dict[tuple[Any, ...], list[int]]:
    """For each group: the number of rows, then the sums of its numbers."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for piece in pieces:
        columns = {name: piece[name] for name in by} | {
            name: piece[name].cast(_WIDE) for name in numbers
        }
        groups = pa.table(columns).group_by(list(by))
        sums = [(name, "sum") for name in numbers]
        for row in groups.aggregate([([], "count_all"), *sums]).to_pylist():
            so_far = found.setdefault(tuple(row[name] for name in by), [0] * (1 + len(numbers)))
            so_far[0] += row["count_all"]
            for place, name in enumerate(numbers, 1):
                so_far[place] += int(row[f"{name}_sum"] or 0)
    return found


def top_rows(
    pieces: Iterable[pa.Table], most: int, order: Order, *, by: str | None = None
) -> list[dict[str, Any]]:
    """The first rows in an order, up to a number: of all rows, or of each group."""
    kept: dict[str | None, pa.Table] = {}
    for piece in pieces:
        for group in piece[by].unique().to_pylist() if by else [None]:
            rows = piece.filter(pc.field(by) == group) if by else piece
            if group in kept:
                rows = pa.concat_tables([kept[group], rows])
            kept[group] = rows.take(pc.sort_indices(rows, sort_keys=list(order))[:most])
    groups = sorted(kept, key=lambda group: group or "")
    return [row for group in groups for row in kept[group].to_pylist()]
