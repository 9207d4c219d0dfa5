"""Tables that come in pieces, so that few rows are in memory at once; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["sum_groups", "top_rows"]

_WIDE: Final = pa.decimal128(38, 0)
"""Decimals with room for any sum of 64-bit numbers."""


def sum_groups(
    pieces: Iterable[pa.Table], by: Sequence[str], numbers: Sequence[str]
) -> dict[tuple[Any, ...], list[int]]:
    """For each group: the number of rows, then the sums of its numbers."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for piece in pieces:
        wide = {name: piece[name].cast(_WIDE) for name in numbers}
        groups = pa.table({name: piece[name] for name in by} | wide).group_by(list(by))
        sums = [(name, "sum") for name in numbers]
        for row in groups.aggregate([([], "count_all"), *sums]).to_pylist():
            so_far = found.setdefault(tuple(row[name] for name in by), [0] * (1 + len(numbers)))
            so_far[0] += row["count_all"]
            for place, name in enumerate(numbers, 1):
                so_far[place] += int(row[f"{name}_sum"] or 0)
    return found


def top_rows(
    pieces: Iterable[pa.Table], most: int | None, order: Sequence[str], *, by: str | None = None
) -> list[dict[str, Any]]:
    """The first rows in an order, up to a number if there is one: of all, or of each group.

    The order names columns; a ``-`` before a name puts its greatest value first.
    """
    how = {True: "descending", False: "ascending"}
    keys = [(name.lstrip("-"), how[name.startswith("-")]) for name in order]
    kept: dict[str | None, pa.Table] = {}
    for piece in pieces:
        for group in piece[by].unique().to_pylist() if by else [None]:
            rows = piece.filter(pc.field(by) == group) if by else piece
            if group in kept:
                rows = pa.concat_tables([kept[group], rows])
            kept[group] = rows.take(pc.sort_indices(rows, sort_keys=keys)[:most])
    groups = sorted(kept, key=lambda group: group or "")
    return [row for group in groups for row in kept[group].to_pylist()]
