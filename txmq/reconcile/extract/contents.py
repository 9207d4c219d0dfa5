"""A hash of the content of rows: two extracts with the same hash have the same rows, texts
included.

Databases must be able to compute control totals, so these are sums of numbers: moving an entry
to another account changes none of them. This hash is computed only here, on whole columns.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txmq.reconcile.tables import TableSchema

__all__ = ["ContentHash"]

_Hashes: TypeAlias = npt.NDArray[np.uint64]

_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_NONE: Final = np.uint64(0xD1B54A32D192ED03)
"""The hash of NULL."""
_OTHER: Final = np.uint64(0xBF58476D1CE4E5B9)
_HALF: Final = np.uint64(32)
_WORD: Final = 8
_ROWS_AT_ONCE: Final = 1 << 14
"""Small enough to stay in the processor's cache."""
_LONG: Final = 32 * _WORD
"""Longer texts are few, and are hashed one by one."""
_KEPT: Final = np.array([(1 << 8 * count) - 1 for count in range(_WORD + 1)], np.uint64)
"""Masks by the number of bytes of a text that are left in a word."""


class ContentHash:
    """The hash of rows that are written in any order, by any number of threads.

    Args:
        table: The table of the rows.
    """

    def __init__(self, table: TableSchema) -> None:
        self._names = sorted(table.names)
        self._sums: list[tuple[int, int]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows.

        Args:
            batch: Has the table's columns, of its types.
        """
        for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
            some = batch.slice(first, _ROWS_AT_ONCE)
            rows = np.zeros(some.num_rows, np.uint64)
            for name in self._names:
                rows ^= _hashes(some.column(name))
                _mix(rows)
            self._sums.append((some.num_rows, int(rows.sum())))

    @property
    def word(self) -> str:
        """The hash of the rows so far."""
        count, total = (sum(pair[at] for pair in self._sums) for at in (0, 1))
        return f"{count}-{total % (1 << 64):016x}"


def _hashes(column: pa.Array) -> _Hashes:
    found = _of_texts(column) if pa.types.is_string(column.type) else _of_numbers(column)
    _mix(found)
    if column.null_count:
        found[column.is_null().to_numpy(zero_copy_only=False)] = _NONE
    return found


def _of_numbers(column: pa.Array) -> _Hashes:
    whole: Any = column.cast(pa.int64())
    _, values = whole.buffers()
    found = np.frombuffer(values, np.uint64)[whole.offset : whole.offset + len(whole)]
    return found + _ODD


def _of_texts(column: pa.Array) -> _Hashes:
    """Hash texts column-wise, eight bytes at a time."""
    _, places, texts = column.buffers()
    ends = np.frombuffer(places, np.int32)[column.offset : column.offset + len(column) + 1]
    ends = ends.astype(np.int64)
    first = ends[:-1] - ends[0]
    lengths = np.diff(ends)
    # The last word may reach beyond the last text.
    held = bytes(_WORD) if texts is None else texts[ends[0] : ends[-1]].to_pybytes() + bytes(_WORD)
    words = np.ndarray(len(held) - _WORD + 1, np.dtype("<u8"), held, strides=(1,))
    found = lengths.astype(np.uint64)
    long = np.flatnonzero(lengths > _LONG)
    active = np.arange(len(column)) if not len(long) else np.flatnonzero(lengths <= _LONG)
    for at in range(0, _LONG, _WORD):
        active = active[lengths[active] > at]
        if not len(active):
            break
        left = np.minimum(lengths[active] - at, _WORD)
        more = found[active] ^ (words[first[active] + at] & _KEPT[left])
        _mix(more)
        found[active] = more
    for row in long:
        text = held[first[row] : first[row] + lengths[row]]
        found[row] = int.from_bytes(hashlib.blake2b(text, digest_size=_WORD).digest())
    return found


def _mix(hashes: _Hashes) -> None:
    for factor in (_ODD, _OTHER):
        hashes ^= hashes >> _HALF
        hashes *= factor
    hashes ^= hashes >> _HALF
