"""Columns of Arrow as arrays of numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Numbers", "Truths", "chosen", "index_in", "is_in", "numbers", "truths"]

Numbers: TypeAlias = npt.NDArray[np.int64]
Truths: TypeAlias = npt.NDArray[np.bool_]


def chosen(rows: pa.Table, condition: pa.ChunkedArray) -> pa.Table:
    """The rows for which a condition is true; without a copy if all are, as on most days."""
    return rows if pc.all(condition, skip_nulls=False).as_py() else rows.filter(condition)


def is_in(column: pa.ChunkedArray, values: Sequence[str]) -> pa.ChunkedArray:
    """True for each text that is one of some."""
    return pc.is_in(column, value_set=pa.array(values, pa.string()))


def index_in(column: pa.ChunkedArray, values: Sequence[str]) -> Numbers:
    """The place of each text in a list; -1 if it is not in it."""
    places = pc.index_in(column, value_set=pa.array(values, pa.string()))
    return numbers(pc.fill_null(places, -1))


def numbers(column: pa.ChunkedArray) -> Numbers:
    """A column of numbers without NULL."""
    found: Numbers = column.to_numpy().astype(np.int64, copy=False)
    return found


def truths(column: pa.ChunkedArray) -> Truths:
    """A column of booleans; NULL is false."""
    found: Truths = pc.fill_null(column, False).to_numpy()
    return found
