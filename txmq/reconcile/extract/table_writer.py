"""A writer for a table of an extract: Parquet parts, with control totals computed on the way.

A control total is computed three times from different bytes: by the database in SQL, here from
the written rows, and from the files when they are read again. Any loss, duplicate or change
between two of these is detected. Totals are sums of numbers, because all three compute these
equally and fast.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from txmq.errors import ReconcileRefused
from txmq.quantity import quantity
from txmq.reconcile.extract.contents import ContentHash
from txmq.reconcile.extract.control_sums import ControlSums
from txmq.reconcile.extract.controls import LIMIT
from txmq.reconcile.extract.manifest import ExtractedTable, Part, QuarantinedRow
from txmq.reconcile.report.words import mask, mask_sides
from txmq.reconcile.storage import sha256_of, sync
from txmq.reconcile.tables import RECURRING, TableSchema

__all__ = ["TableWriter", "arrow_schema", "arrow_table", "parquet_writer"]

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
}


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
                    why = f"{name} is {value}, which does not fit into 64 bits"
                    raise ReconcileRefused(
                        f"{table.name} of {_place(row)}: {why}; correct the wrong booking or order"
                    ) from None
        raise


def _place(row: dict[str, Any]) -> str:
    """The texts that name a row; accounts are masked."""
    row = mask_sides({"payer": None, "payee": None} | row)
    row["account"] = mask(row.get("account") or "")
    return ", ".join(row[name] for name in _PLACE if row.get(name))


def parquet_writer(path: Path | pa.NativeFile, schema: pa.Schema) -> pq.ParquetWriter:
    """A Parquet writer with the layout of all extract files: fast to write and to read."""
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=sorted(RECURRING.intersection(schema.names)),
        write_page_checksum=True,
    )


class TableWriter:
    """Writes a table of an extract; its files get their names at the end of the block.

    Several threads may write at once: each writes its own part, so no thread waits for another.

    Args:
        table: The table.
        directory: The target, which is created; its parent has the source's name.
        rows_a_part: The approximate maximum of rows in a part.
    """

    def __init__(
        self, table: TableSchema, directory: Path, *, rows_a_part: int = _ROWS_A_PART
    ) -> None:
        self.parts: tuple[Part, ...] = ()
        """The written parts, after the block; their paths begin two directories above."""
        self._table = table
        self._directory = directory
        self._rows_a_part = rows_a_part
        self.schema = arrow_schema(table)
        self._lock = threading.Lock()
        self._open: dict[int, _OpenPart] = {}
        self._done: list[Part] = []
        self._part_count = 0
        self._sums = ControlSums(table)
        self._contents = ContentHash(table)

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        unfinished, self._open = list(self._open.values()), {}
        if error is not None:
            for part in unfinished:
                part.drop()
            for done in self._done:
                (self._directory / Path(done.path).name).unlink()
            return
        if not unfinished and not self._done:
            unfinished = [self._begin()]  # A table without rows still has a file with its columns.
        self._done += [part.finish() for part in unfinished]
        self.parts = tuple(sorted(self._done))
        sync(self._directory)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows that have the table's columns in any order.

        Raises:
            ReconcileRefused: A required value is NULL, or a value does not fit.
        """
        if not batch.num_rows:
            return
        batch = self._cast(batch)
        self._sums.add(batch)
        self._contents.add(batch)
        thread = threading.get_ident()
        with self._lock:
            part = self._open.get(thread)
            if part is None:
                part = self._open[thread] = self._begin()
        part.write(batch)
        if part.rows >= self._rows_a_part:
            del self._open[thread]
            done = part.finish()
            with self._lock:
                self._done.append(done)

    def extracted(self, source: str, quarantine: tuple[QuarantinedRow, ...] = ()) -> ExtractedTable:
        """Describe the written table, after the block.

        Args:
            source: A bank's name, or ``log``.
            quarantine: The rows that are left out.
        """
        written = self._sums.control(source)
        name, word = self._table.name, self._contents.word
        return ExtractedTable(name, written, word, self.parts, quarantine)

    def _begin(self) -> _OpenPart:
        self._part_count += 1
        return _OpenPart(self._directory / f"part-{self._part_count - 1:05}.parquet", self.schema)

    def _cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        where = f"{self._directory.parent.name}/{self._table.name}"
        columns = []
        for field in self.schema:
            found = batch.column(field.name)
            if found.null_count and not field.nullable:
                rows = quantity(found.null_count, "row")
                raise ReconcileRefused(f"{where}: {field.name} is empty in {rows}")
            try:
                columns.append(found.cast(field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise ReconcileRefused(f"{where}: {field.name} does not fit: {error}") from error
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class _OpenPart:
    """A file with a temporary name until it is synced."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.rows = 0
        self._path = path
        self._draft = path.with_name(f".{path.name}.writing")
        self._writer = parquet_writer(self._draft, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self._writer.write_batch(batch)
        self.rows += batch.num_rows

    def finish(self) -> Part:
        """Sync the file, and give it its name."""
        self._writer.close()
        sync(self._draft)
        size, digest = self._draft.stat().st_size, sha256_of(self._draft)
        self._draft.rename(self._path)
        return Part("/".join(self._path.parts[-3:]), self.rows, size, digest)

    def drop(self) -> None:
        """Remove the file."""
        self._writer.close()
        self._draft.unlink()
