"""Control totals of rows that Arrow holds: of what is written, and of what lies in files.

Arrow reads and adds up the numbers of a ledger in a tenth of the time that Spark takes, and the
files are read once more here in any case, since their hashes are compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txmq.reconcile.extract.controls import control_of, has_number, money_of, numbers_of
from txmq.reconcile.summary import Control
from txmq.reconcile.tables import Table

__all__ = ["Sums", "counted"]

_ROWS_AT_ONCE: Final = 1 << 17
_LOW: Final = 0xFFFFFFFF


def counted(source: str, table: Table, paths: Iterable[Path]) -> Control:
    """The control totals of what lies in files.

    Args:
        source: A bank's name, or ``log``.
        table: Which of its tables.
        paths: All of its parts.

    Raises:
        OSError: One of them cannot be read.
        pyarrow.ArrowException: One of them is no Parquet, or has other columns.
    """
    sums = Sums(table)
    for each in paths:
        with pq.ParquetFile(each) as file:
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=sums.columns, use_threads=False):
                sums.add(batch)
    return sums.control(source)


class Sums:
    """Control totals while they are counted.

    Args:
        table: Whose.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._numbers = numbers_of(table)
        self._money = money_of(table)
        self._has_number = has_number(table)
        self._rows: list[tuple[str | None, int, int | None, int | None, int, int]] = []

    @property
    def columns(self) -> list[str]:
        """What it adds up, and by what."""
        return [*self._numbers, *(["currency"] if self._money else [])]

    def add(self, batch: pa.RecordBatch) -> None:
        """Count rows.

        Args:
            batch: Has the columns that are added up, and perhaps others.
        """
        numbers = sum(_sum(batch.column(each)) for each in self._numbers)
        least = most = None
        if self._has_number:
            ends: Any = pc.min_max(batch.column("id")).as_py()
            least, most = ends["min"], ends["max"]
        self._rows.append((None, batch.num_rows, least, most, 0, numbers))
        if self._money is None:
            return
        amounts, currencies = batch.column(self._money), batch.column("currency")
        for currency in pc.unique(currencies).to_pylist():
            is_it = pc.is_null(currencies) if currency is None else pc.equal(currencies, currency)
            self._rows.append((currency, 0, None, None, _sum(amounts.filter(is_it)), 0))

    def control(self, source: str) -> Control:
        """What was counted.

        Args:
            source: A bank's name, or ``log``.
        """
        return control_of(source, self._table, self._rows)


def _sum(column: pa.Array) -> int:
    """The whole sum, however large: of the halves of its numbers, which fit."""
    values = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return int(np.sum(values & _LOW)) + (int(np.sum(values >> 32)) << 32)
