"""The tables of an extract: Parquet parts, and what proves that rows are the same in two places.

The proof has control totals, and a hash of the content. A control total is computed three times
from different bytes: by the database in SQL, here from the written rows, and from the files when
they are read again. Any loss, duplicate or change between two of these is detected.

Control totals are numbers that databases, Spark and Arrow compute equally and fast: rows, sums and
ids, one row for each currency. A sum may not fit into 64 bits, so all of them add up the lower and
the upper halves of the numbers, which are joined here.

Moving an entry to another account changes no total. The hash of the content shows it; it is
computed only here, on whole columns.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txmq.errors import ReconcileRefused
from txmq.reconcile.columns import ContentHash
from txmq.reconcile.extract.manifest import ExtractedTable, Part, QuarantinedRow
from txmq.reconcile.report.words import mask, mask_sides
from txmq.reconcile.storage import LocalFolder
from txmq.reconcile.summary import Control
from txmq.reconcile.tables import LIMIT, LOWER_HALF, RECURRING, TableSchema, join_halves
from txmq.runtime.disk import sync_path

__all__ = [
    "ControlSums",
    "TableWriter",
    "arrow_schema",
    "arrow_table",
    "control_of",
    "parquet_writer",
]

_ROWS_A_PART: Final = 4_000_000
_PLACE: Final = (
    *("proof", "class", "key", "bank", "debit_bank", "payer", "credit_bank", "payee"),
    *("account", "currency"),
)
"""The columns that name a row in an error."""
_TYPES: Final = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "decimal(38,0)": pa.decimal128(38, 0),
}


def control_of(source: str, table: TableSchema, rows: Iterable[Sequence[Any]]) -> Control:
    """The control totals of a table of a bank, or of ``log``.

    A row has a currency, the number of rows, the least and the greatest id, and the sums of the
    lower and the upper halves of each number. Several may have the same currency.
    """
    count, total, ends, amounts = 0, 0, list[int](), defaultdict[str, int](int)
    names, money = table.numbers, table.money
    for currency, counted, least, most, *halves in rows:
        sums = dict(zip(names, map(join_halves, halves[::2], halves[1::2]), strict=True))
        count += counted
        total += sum(sums.values())
        ends += [id_ for id_ in (least, most) if id_ is not None]
        if money is not None:
            amounts[currency or ""] += sums[money]
    if not amounts.get("", 1):
        del amounts[""]  # A sum of zero without a currency is not information.
    sorted_amounts = dict(sorted(amounts.items()))
    numbers = total % LIMIT, min(ends, default=None), max(ends, default=None)
    return Control(source, table.name, count, sorted_amounts, *numbers)


class ControlSums:
    """Control totals of rows in Arrow, in any order and from any number of threads.

    Arrow adds up the numbers of a ledger in a tenth of the time that Spark takes.
    """

    def __init__(self, table: TableSchema) -> None:
        self.columns = [*table.numbers, *(["currency"] if table.money else [])]
        """The columns that :meth:`add` reads."""
        self._table = table
        self._rows: list[Sequence[Any]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Count rows, which may have more columns."""
        columns = {name: batch.column(name) for name in self.columns}
        columns.setdefault("currency", pa.nulls(batch.num_rows, pa.string()))
        wanted: list[Any] = [([], "count_all")]
        wanted += [("id", end) for end in ("min", "max") if self._table.has_number]
        for name in self._table.numbers:
            number = columns[name].cast(pa.int64())
            # No sum of halves overflows.
            columns[f"{name} low"] = pc.bit_wise_and(number, LOWER_HALF)
            columns[f"{name} high"] = pc.shift_right(number, 32)
            wanted += [(f"{name} low", "sum"), (f"{name} high", "sum")]
        groups = pa.table(columns).group_by("currency", use_threads=False).aggregate(wanted)
        ends = [] if self._table.has_number else [None, None]
        for row in groups.to_pylist():
            currency, count, *others = row.values()
            self._rows.append([currency, count, *ends, *others])

    def control(self, source: str) -> Control:
        """The control totals so far."""
        return control_of(source, self._table, self._rows)


def arrow_schema(table: TableSchema) -> pa.Schema:
    """The Arrow schema of a table."""
    return pa.schema(
        [pa.field(column.name, _TYPES[column.type], column.is_optional) for column in table.columns]
    )


def arrow_table(table: TableSchema, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Rows as an Arrow table; their values are in the order of its columns.

    Raises:
        ReconcileRefused: A sum does not fit into 64 bits; the message names its row.
    """
    schema = arrow_schema(table)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    try:
        arrays = map(pa.array, columns, schema.types)
        return pa.table(list(arrays), schema=schema)
    except (OverflowError, pa.ArrowInvalid):
        for row in (dict(zip(table.names, row, strict=True)) for row in rows):
            for name, value in row.items():
                if isinstance(value, int) and not -LIMIT <= value < LIMIT:
                    where = f"{table.name} of {_place(row)}: {name} is {value}"
                    why = "which does not fit into 64 bits; correct the wrong booking or order"
                    raise ReconcileRefused(f"{where}, {why}") from None
        raise


def _place(row: dict[str, Any]) -> str:
    """The texts that name a row; accounts are masked."""
    row = mask_sides({"payer": None, "payee": None} | row)
    row["account"] = mask(row.get("account") or "")
    return ", ".join(row[name] for name in _PLACE if row.get(name))


def parquet_writer(path: Path | pa.NativeFile, schema: pa.Schema) -> pq.ParquetWriter:
    """A Parquet writer with the layout of all extract files: fast to write and to read."""
    numbers = {of.name: "DELTA_BINARY_PACKED" for of in schema if pa.types.is_integer(of.type)}
    return pq.ParquetWriter(
        path,
        schema,
        column_encoding=numbers,
        compression="zstd",
        compression_level=1,
        use_dictionary=sorted(RECURRING.intersection(schema.names)),
        write_page_checksum=True,
    )


class TableWriter:
    """Writes a table of an extract into a folder that nobody reads before it is complete.

    Its directory is one in that of the source, whose name is the source's. Several threads may
    write at once: each writes its own part, so no thread waits for another.
    """

    def __init__(self, table: TableSchema, directory: Path) -> None:
        self.schema = arrow_schema(table)
        self._table = table
        self._source = directory.name
        self._directory = directory / table.name
        self._lock = threading.Lock()
        self._writers: dict[int, pq.ParquetWriter] = {}
        self._rows = Counter[int]()
        """The rows in the open part of each thread."""
        self._count = 0
        self._parts: tuple[Part, ...] = ()
        self._sums = ControlSums(table)
        self._contents = ContentHash(table)

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None and not self._count:
            self._writer(0)  # A table without rows still has a file with its columns.
        for writer in self._writers.values():
            writer.close()
        if error is None:
            self._parts = tuple(map(_part, sorted(self._directory.iterdir())))
            sync_path(self._directory)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows that have the table's columns in any order.

        Raises:
            ReconcileRefused: A required value is NULL, or a value does not fit.
        """
        if not batch.num_rows:
            return
        try:
            batch = batch.select(self.schema.names).cast(self.schema)
        except (ValueError, pa.ArrowException) as error:
            raise ReconcileRefused(f"{self._source}/{self._table.name}: {error}") from error
        self._sums.add(batch)
        self._contents.add(batch)
        thread = threading.get_ident()
        self._writer(thread).write_batch(batch)
        self._rows[thread] += batch.num_rows
        if self._rows[thread] >= _ROWS_A_PART:
            self._writers.pop(thread).close()
            del self._rows[thread]

    def extracted(
        self, quarantine: tuple[QuarantinedRow, ...] = (), control: Control | None = None
    ) -> ExtractedTable:
        """Describe the written table, after the block; it has no row of the quarantine.

        Raises:
            ReconcileRefused: Its control totals are not those that the source has computed.
        """
        name, written = self._table.name, self._sums.control(self._source)
        if control is not None and (differs := control.difference(written)) is not None:
            why = "rows were lost or doubled on the way into the extract"
            raise ReconcileRefused(f"{differs}: {why}")
        return ExtractedTable(name, written, self._contents.word, self._parts, quarantine)

    def _writer(self, thread: int) -> pq.ParquetWriter:
        if thread not in self._writers:
            with self._lock:
                path = self._directory / f"part-{self._count:05}.parquet"
                self._count += 1
            self._writers[thread] = parquet_writer(path, self.schema)
        return self._writers[thread]


def _part(path: Path) -> Part:
    """Sync a complete part, and describe it."""
    sync_path(path)
    rows, size = pq.read_metadata(path).num_rows, path.stat().st_size
    return Part("/".join(path.parts[-3:]), rows, size, LocalFolder(path.parent).sha256(path.name))
