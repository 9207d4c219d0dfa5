"""The books of a bank in any other database, read by Spark with the user's JDBC driver.

JDBC connections cannot share a snapshot. An entry booked while they read may be in one part and
missing in another, so read such a bank while it is idle, or from a copy. Spark's workers keep the
rows of the driver and compute everything else from them, so that the tables of an extract agree
with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DecimalType, IntegralType

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.books import BookReader, BookRequest, check_columns, error_text
from txmq.reconcile.extract.manifest import ExtractedSource
from txmq.reconcile.extract.statements import Dialect, TableColumns
from txmq.reconcile.rules import Bank

__all__ = ["SparkDialect", "options", "read_jdbc"]

_WHOLE: Final = frozenset({"byte", "short", "integer", "long"})


class SparkDialect(Dialect):
    """SQL expressions of Spark; the types are those of its schema."""

    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def literal(self, text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    def text(self, column: str) -> str:
        text = f"CAST({self.quoted(column)} AS STRING)"
        if self.types.get(column) == "decimal":
            # Some databases have only decimals, and a transfer's id is 4711, not 4711.000.
            return f"regexp_replace({text}, '[.]0*$', '')"
        return text

    def code(self, text: str) -> str:
        return f"{text} RLIKE '^[A-Z]{{3}}$'"

    def scaled(self, column: str, scale: str, *, floored: bool = False) -> str:
        quoted = self.quoted(column)
        if not floored and self.types.get(column) in _WHOLE and scale == "1":
            return f"CAST({quoted} AS BIGINT)"
        number = f"(try_cast({quoted} AS DECIMAL(28, 10)) * CAST({scale} AS DECIMAL(7, 0)))"
        return self.whole(f"floor({number})" if floored else number)

    def moment(self, column: str, held: str, zone: str) -> str:
        quoted = self.quoted(column)
        if held == "timestamptz":
            return f"unix_millis(try_cast({quoted} AS TIMESTAMP))"
        found = f"try_cast({quoted} AS TIMESTAMP_NTZ)"
        local = f"convert_timezone({self.literal(zone)}, 'UTC', {found})"
        micros = f"timestampdiff(MICROSECOND, TIMESTAMP_NTZ '1970-01-01 00:00:00', {local})"
        return f"CAST(floor({micros} / 1000BD) AS BIGINT)"


def options(bank: Bank, columns: TableColumns) -> dict[str, str]:
    """The options of Spark's JDBC reader for a table."""
    table = columns.table
    if columns.where:
        table = f"(SELECT * FROM {table} WHERE ({columns.where})) txmq_found"
    return {
        "url": bank.database,
        "dbtable": table,
        "preferTimestampNTZ": "true",
        "fetchsize": "10000",
        **bank.properties,
    }


def read_jdbc(books: BookRequest, spark: SparkSession) -> ExtractedSource:
    """Extract a bank's books with a Spark that has the driver's jar; the database's clock is not
    read.

    Raises:
        ReconcileRefused: The database cannot be read, or has an invalid value.
    """
    name, taken_ms = books.bank.name, books.clock.wall_ms()
    try:
        tables = _JdbcReader(books, spark).tables()
    except (PySparkException, Py4JError) as error:
        raise ReconcileRefused(f"{name}: {_error_sentence(error, books.bank.database)}") from error
    return ExtractedSource(name, "jdbc", "", taken_ms, taken_ms, tables)


class _JdbcReader(BookReader):
    def __init__(self, books: BookRequest, spark: SparkSession) -> None:
        super().__init__(books)
        self._spark = spark

    def ask(self, statement: str) -> Sequence[Sequence[Any]]:
        return self._spark.sql(statement).collect()

    def batches(self, statement: str) -> Iterator[pa.RecordBatch]:
        # They may be more than fit into the memory of this process.
        packed = self._spark.sql(statement).mapInArrow(_packed, "stream BINARY")
        for row in packed.toLocalIterator():
            yield from pa.ipc.open_stream(row.stream)

    def _look_up(self, where: str, columns: TableColumns) -> tuple[dict[str, str], Dialect]:
        """Keep the driver's rows of a table, and make a view of them."""
        bank = self._books.bank
        given = self._spark.read.format("jdbc").options(**options(bank, columns))
        frame = given.load()
        types = {field.name: field.dataType.typeName() for field in frame.schema}
        wanted = columns.names
        check_columns(where, wanted, types)
        number = getattr(columns, "id", "")
        if number and isinstance(frame.schema[number].dataType, IntegralType | DecimalType):
            frame = _partitioned(given, frame, number, bank.readers)
        rows = frame.select(*(f.col(f"`{name}`") for name in sorted(wanted)))
        view = f"txmq_{where.encode().hex()}"
        # If a worker that keeps rows is lost, Spark fails: it never reads them a second time.
        kept = rows.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
        kept.createOrReplaceTempView(view)
        return {"table": view, "where": ""}, SparkDialect(types)


def _packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each batch in a row, as a stream of Arrow."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield pa.record_batch({"stream": [sink.getvalue().to_pybytes()]})


def _partitioned(given: DataFrameReader, frame: DataFrame, number: str, readers: int) -> DataFrame:
    """Split by ranges of numbers for several connections; the first also reads rows without."""
    ((least, most),) = frame.agg(f.min(f"`{number}`"), f.max(f"`{number}`")).collect()
    if least is None:
        return frame
    bounds = {"partitionColumn": number, "numPartitions": str(readers)}
    bounds |= {"lowerBound": str(int(least)), "upperBound": str(int(most) + 1)}
    return given.options(**bounds).load()


def _error_sentence(error: PySparkException | Py4JError, url: str) -> str:
    text = str(error)
    if "No suitable driver" in text or "ClassNotFoundException" in text:
        remedy = "name its jar in spark.jars, and its class as driver in the bank's properties"
        return f"Spark has no driver for {':'.join(url.split(':')[:2])}; {remedy}"
    # The last cause is the driver's; Spark's own words may be "Exception thrown in awaitResult:".
    said = text.replace("\n: ", "\nCaused by: ").rpartition("\nCaused by: ")[2].partition(": ")[2]
    return error_text(Exception(said or text) if hasattr(error, "java_exception") else error, url)
