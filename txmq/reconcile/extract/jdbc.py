"""The tables of a bank in any other database, read by Spark with the user's JDBC driver.

JDBC connections cannot share a snapshot. An entry booked while they read may be in one part and
missing in another, so read such a bank while it is idle, or from a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DecimalType, IntegralType

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.books import error_text
from txmq.reconcile.extract.statements import TableColumns
from txmq.reconcile.rules import Bank, EntryColumns
from txmq.reconcile.tables import ACCOUNTS, ENTRIES

__all__ = ["jdbc_errors", "jdbc_tables", "options"]


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


def jdbc_tables(bank: Bank, spark: SparkSession) -> dict[str, DataFrame]:
    """A bank's tables, read with a Spark that has the driver's jar."""
    found = {ENTRIES.name: _read(bank, bank.entries, spark)}
    if bank.accounts is not None:
        found[ACCOUNTS.name] = _read(bank, bank.accounts, spark)
    return found


def _read(bank: Bank, columns: TableColumns, spark: SparkSession) -> DataFrame:
    """A table; several connections read it if its ids are numbers, and the first of them also
    reads rows without an id.
    """
    reader = spark.read.format("jdbc").options(**options(bank, columns))
    frame = reader.load()
    number = columns.id if isinstance(columns, EntryColumns) else ""
    types = {field.name: field.dataType for field in frame.schema}
    if not isinstance(types.get(number), IntegralType | DecimalType):
        return frame
    ((least, most),) = frame.agg(f.min(f"`{number}`"), f.max(f"`{number}`")).collect()
    if least is None:
        return frame
    bounds = {"partitionColumn": number, "numPartitions": str(bank.readers)}
    bounds |= {"lowerBound": str(int(least)), "upperBound": str(int(most) + 1)}
    return reader.options(**bounds).load()


@contextmanager
def jdbc_errors(bank: Bank) -> Iterator[None]:
    """Turn the driver's errors in the block into one sentence.

    Raises:
        ReconcileRefused: The database cannot be read, or has an invalid value.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise ReconcileRefused(f"{bank.name}: {_error_sentence(error, bank.database)}") from error


def _error_sentence(error: PySparkException | Py4JError, url: str) -> str:
    text = str(error)
    if "No suitable driver" in text or "ClassNotFoundException" in text:
        remedy = "name its jar in spark.jars, and its class as driver in the bank's properties"
        return f"Spark has no driver for {':'.join(url.split(':')[:2])}; {remedy}"
    # The last cause is the driver's; Spark's own words may be "Exception thrown in awaitResult:".
    said = text.replace("\n: ", "\nCaused by: ").rpartition("\nCaused by: ")[2].partition(": ")[2]
    return error_text(Exception(said or text) if hasattr(error, "java_exception") else error, url)
