"""The books of a bank as a Spark data source: ``spark.read.format("txmq.bank")``.

Its options are one bank of the rules as JSON, its database as ``url``, the ``date`` and the
``table`` wanted. Spark's workers read it, so they need access to the database, or the files under
the same path. A source without ``table`` gives all tables of the bank and the notes about them in
one frame, each row with the name of its table, so they come from one state of the bank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.books import BOOKS, BookPart, BookReader, BookRequest
from txmq.reconcile.extract.manifest import SourceKind
from txmq.reconcile.extract.sheets import Sheets
from txmq.reconcile.rules import Bank

__all__ = ["SHEETS", "BankSource", "kind_of"]

SHEETS: Final = Sheets(BOOKS)
_KINDS: Final[Mapping[str, SourceKind]] = {
    "postgresql": "postgresql", "postgres": "postgresql", "sqlite": "sqlite", "jdbc": "jdbc",
}  # fmt: skip


class BankSource(DataSource, DataSourceReader):
    """A bank's books on a date.

    Options: ``bank``, ``url``, ``date``, and as in the rules ``day``, ``money``, ``directory`` and
    ``quarantine_max``; ``bank`` and ``date`` are required.

    With an exported ``snapshot`` of PostgreSQL, several tasks read the entries.
    """

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "txmq.bank"

    def schema(self) -> StructType:
        """The columns of the table, or of all tables."""
        table = self._table
        if table and table not in BOOKS:
            raise ReconcileRefused(f"table {table!r} is not one of {', '.join(BOOKS)}")
        return from_arrow_schema(SHEETS.schema_of(table))

    @property
    def _table(self) -> str | None:
        """The table wanted; ``None`` for all of them."""
        return self.options.get("table") or None

    def reader(self, schema: Any) -> BankSource:
        """This source is its own reader."""
        del schema
        return self

    def partitions(self) -> list[InputPartition]:
        """The parts of the books.

        Raises:
            ReconcileRefused: The bank cannot be reached, or an option is invalid.
        """
        books, snapshot = BookRequest.from_options(self.options), self.options.get("snapshot")
        if not snapshot:
            return [InputPartition(BookPart())]
        from txmq.reconcile.extract.postgres import entry_parts

        others = BookPart(())
        return [InputPartition(one) for one in (*entry_parts(books, snapshot), others)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part of the books.

        Raises:
            ReconcileRefused: The books cannot be read, or too many of their rows cannot.
        """
        books = BookRequest.from_options(self.options)
        wanted = self._table
        with _opened(books, self.options.get("snapshot") or "") as reader:
            for table, rows in reader.pieces(partition.value):
                if wanted in (None, table.name) and rows.num_rows:
                    where = f"{books.bank.name}/{table.name}"
                    yield SHEETS.rows(where, table, rows, is_alone=bool(wanted))


def kind_of(bank: Bank) -> SourceKind:
    """The kind of a bank's source.

    Raises:
        ReconcileRefused: The bank has no source, or one that txmq cannot read.
    """
    if bank.files is not None:
        return "files"
    if not bank.database:
        why = "it has neither a database nor [bank.files] in the rules, and no DataFrame was given"
        raise ReconcileRefused(f"{bank.name}: {why}")
    scheme = bank.database.partition(":")[0].partition("+")[0]
    if (kind := _KINDS.get(scheme)) is None:
        why = "its URL must begin with postgresql://, sqlite:/// or jdbc:"
        raise ReconcileRefused(f"{bank.name}: {why}")
    return kind


def _opened(books: BookRequest, snapshot: str) -> AbstractContextManager[BookReader]:
    """A reader of a bank. Each kind needs its own packages, which are imported here."""
    match kind_of(books.bank):
        case "files":
            from txmq.reconcile.extract.book_files import open_files

            return open_files(books)
        case "postgresql":
            from txmq.reconcile.extract.postgres import open_postgres

            return open_postgres(books, snapshot)
        case "sqlite":
            from txmq.reconcile.extract.sqlite import open_sqlite

            return open_sqlite(books)
    raise ReconcileRefused(f'{books.bank.name}: Spark reads a JDBC URL with format("jdbc")')
