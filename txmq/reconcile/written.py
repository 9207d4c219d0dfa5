"""What a run has written, gone through in pieces and without Spark: however many rows a table has,
few of them are held at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from txmq.errors import ReconcileRefused

__all__ = ["Order", "Written", "added", "foremost"]

_ROWS_AT_ONCE: Final = 1 << 17
_WIDE: Final = pa.decimal128(38, 0)
"""Numbers with room for sums of any of them."""

Order: TypeAlias = tuple[tuple[str, Literal["ascending", "descending"]], ...]
"""By which columns rows are put in order, and which way."""


class Written(NamedTuple):
    """A table as it lies there."""

    name: str
    parts: Sequence[Path]

    @property
    def rows(self) -> int:
        """How many there are, as the files say at their ends.

        Raises:
            ReconcileRefused: One of them cannot be read.
        """
        try:
            return sum(parquet.read_metadata(part).num_rows for part in self.parts)
        except (OSError, pa.ArrowException) as error:
            raise self._refused(error) from error

    def pieces(self, *columns: str) -> Iterator[pa.Table]:
        """All of it, or of some columns.

        Raises:
            ReconcileRefused: It cannot be read.
        """
        try:
            for part in self.parts:
                with parquet.ParquetFile(part) as file:
                    for batch in file.iter_batches(_ROWS_AT_ONCE, columns=list(columns) or None):
                        yield pa.Table.from_batches([batch])
        except (OSError, pa.ArrowException) as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> ReconcileRefused:
        return ReconcileRefused(f"the {self.name} that were written cannot be read: {error}")


def added(
    pieces: Iterable[pa.Table], by: Sequence[str], numbers: Sequence[str]
) -> dict[tuple[Any, ...], list[int]]:
    """What rows of each group come to: how many they are, and the sums of their numbers."""
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


def foremost(
    pieces: Iterable[pa.Table], most: int, order: Order, *, by: str | None = None
) -> list[dict[str, Any]]:
    """The first rows in an order, so many at most: of all, or of each group."""
    kept: pa.Table | None = None
    for piece in pieces:
        rows = piece if kept is None else pa.concat_tables([kept, piece])
        groups: Order = () if by is None else ((by, "ascending"),)
        at = pc.sort_indices(rows, sort_keys=[*groups, *order]).to_numpy()
        if by is None:
            kept = rows.take(at[:most])
        else:
            kept = rows.take(at[_places(rows[by].take(at)) < most])
    return [] if kept is None else kept.to_pylist()


def _places(names: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The place of each among those that are called the same, where these are side by side."""
    codes = names.combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    sizes = np.diff(starts, append=len(codes))
    return np.arange(len(codes)) - np.repeat(starts, sizes)
