"""The books of a bank in any other database, read by Spark with the user's JDBC driver.

JDBC connections cannot share a snapshot. An entry booked while they read may be in one part and
missing in another, so read such a bank while it is idle, or from a copy. Spark's workers keep the
rows of the driver and compute everything else from them, so that the tables of an extract agree
with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial, reduce
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DecimalType, IntegralType

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.bank_source import SHEETS
from txmq.reconcile.extract.books import (
    BookRequest,
    BookTables,
    check_columns,
    error_text,
    sums_of_accounts,
)
from txmq.reconcile.extract.sheets import TABLE
from txmq.reconcile.extract.statements import Dialect, TableColumns
from txmq.reconcile.rules import Bank
from txmq.reconcile.tables import ACCOUNTS, ENTRIES

__all__ = ["SparkDialect", "jdbc_sheets", "options"]

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


def jdbc_sheets(books: BookRequest, spark: SparkSession) -> DataFrame:
    """A bank's books, read with a Spark that has the driver's jar, as a frame of sheets.

    Raises:
        ReconcileRefused: The database cannot be read, or has an invalid value.
    """
    try:
        return _JdbcBooks(books, spark).sheets()
    except (PySparkException, Py4JError) as error:
        why = _error_sentence(error, books.bank.database)
        raise ReconcileRefused(f"{books.bank.name}: {why}") from error


class _JdbcBooks(BookTables):
    def __init__(self, books: BookRequest, spark: SparkSession) -> None:
        super().__init__(books)
        self._spark = spark

    def sheets(self) -> DataFrame:
        """All tables in one frame."""
        name, sql = self._books.bank.name, self._spark.sql
        frames = [sql(self.entries.rows()).withColumn(TABLE, f.lit(ENTRIES.name))]
        sums = sql(self.entries.sums())
        whole = from_arrow_schema(SHEETS.schema)
        frames.append(sums.mapInArrow(partial(_sums_in_sheets, name), whole))
        notes = [self.quarantine(self.entries)]
        if self.accounts is not None:
            notes.append(self.quarantine(self.accounts))
            frames.append(sql(self.accounts.rows()).withColumn(TABLE, f.lit(ACCOUNTS.name)))
        sheets = [SHEETS.rows(name, *one) for one in notes if one[1].num_rows]
        if sheets:
            frames.append(self._spark.createDataFrame(pa.Table.from_batches(sheets)))
        return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames)

    def ask(self, statement: str) -> Sequence[Sequence[Any]]:
        return self._spark.sql(statement).collect()

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


def _sums_in_sheets(name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The sums of accounts, as rows of sheets."""
    for batch in batches:
        for table, rows in sums_of_accounts(name, pa.table(batch)):
            yield SHEETS.rows(f"{name}/{table.name}", table, rows)


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
