"""A hash of the content of rows: two extracts with the same hash have the same rows, texts
included.

Databases must be able to compute control totals, so these are sums of numbers: moving an entry
to another account changes none of them. This hash is computed only here, on whole columns.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from txmq.reconcile.tables import TableSchema

__all__ = ["ContentHash"]

_START: Final = np.uint64(0x9E3779B97F4A7C15)
_NONE: Final = np.uint64(0xD1B54A32D192ED03)
"""The hash of NULL."""
_ROWS_AT_ONCE: Final = 1 << 14
"""Small enough to stay in the processor's cache."""


class ContentHash:
    """The hash of rows that are written in any order, by any number of threads.

    Args:
        table: The table of the rows.
    """

    def __init__(self, table: TableSchema) -> None:
        # Most commands import this module and hash nothing, and pandas takes long to import.
        from pandas.util import hash_array  # type: ignore[import-untyped]  # it has no types

        self._hash: Any = hash_array
        self._names = sorted(table.names)
        self._sums: list[tuple[int, int]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows.

        Args:
            batch: Has the table's columns, of its types.
        """
        for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
            some = batch.slice(first, _ROWS_AT_ONCE)
            rows = np.full(some.num_rows, _START)
            for name in self._names:
                # Hashed again, so that a value counts in its own column only.
                rows = self._hash(rows ^ self._hashes(some.column(name)))
            self._sums.append((some.num_rows, int(rows.sum())))

    def _hashes(self, column: pa.Array) -> Any:
        if pa.types.is_string(column.type):
            # Each text once: many columns have few.
            coded = column.dictionary_encode()
            known, places = coded.dictionary, coded.indices.fill_null(0)
            found = self._hash(known.to_numpy(zero_copy_only=False), categorize=False)
            found = found[places] if len(known) else np.full(len(column), _NONE)
        else:
            found = self._hash(column.cast(pa.int64()).fill_null(0).to_numpy())
        found[column.is_null().to_numpy(zero_copy_only=False)] = _NONE
        return found

    @property
    def word(self) -> str:
        """The hash of the rows so far."""
        count, total = (sum(pair[at] for pair in self._sums) for at in (0, 1))
        return f"{count}-{total % (1 << 64):016x}"
