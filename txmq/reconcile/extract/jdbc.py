"""The books of a bank in any other database, read by Spark with the user's JDBC driver.

JDBC connections cannot share a snapshot. An entry booked while they read may be in one part and
missing in another, so read such a bank while it is idle, or from a copy. Spark stores the rows of
the driver first and computes everything else from them, so that the tables of an extract agree
with each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DecimalType, IntegralType, NumericType

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.books import (
    BookRequest,
    check_columns,
    copy_table,
    error_text,
    set_aside,
    write_sums,
)
from txmq.reconcile.extract.contents import ContentHash
from txmq.reconcile.extract.control_sums import count_files
from txmq.reconcile.extract.controls import difference
from txmq.reconcile.extract.manifest import ExtractedSource, ExtractedTable, Part
from txmq.reconcile.extract.statements import (
    AccountStatements,
    Dialect,
    EntryStatements,
    column_names,
    control_from_answer,
    control_query,
)
from txmq.reconcile.extract.table_writer import describe_part
from txmq.reconcile.parquet_files import parquet_options
from txmq.reconcile.rules import AccountColumns, Bank, EntryColumns
from txmq.reconcile.storage import Folder, LocalFolder
from txmq.reconcile.tables import ACCOUNTS, ENTRIES
from txmq.runtime.clock import Clock

__all__ = ["SparkDialect", "options", "read_jdbc"]

_GREATEST: Final = (1 << 63) - 1
_WHOLE: Final = frozenset({"byte", "short", "integer", "long"})


class SparkDialect(Dialect):
    """SQL expressions of Spark.

    Args:
        types: The columns' types in Spark's schema, by name.
    """

    def __init__(self, types: Mapping[str, str]) -> None:
        self._types = types

    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def literal(self, text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    def text(self, column: str) -> str:
        text = f"CAST({self.quoted(column)} AS STRING)"
        if self._types.get(column) == "decimal":
            # Some databases have only decimals, and a transfer's id is 4711, not 4711.000.
            return f"regexp_replace({text}, '[.]0*$', '')"
        return text

    def code(self, text: str) -> str:
        return f"{text} RLIKE '^[A-Z]{{3}}$'"

    def minor(self, column: str, scale: str) -> str:
        if self._types.get(column) in _WHOLE and scale == "1":
            return f"CAST({self.quoted(column)} AS BIGINT)"
        scaled = self._scaled(column, scale)
        return (
            f"(CASE WHEN {scaled} = floor({scaled}) AND abs({scaled}) <= {_GREATEST} "
            f"THEN CAST({scaled} AS BIGINT) END)"
        )

    def moment(self, column: str, held: str, zone: str) -> str:
        quoted = self.quoted(column)
        if held in ("milliseconds", "seconds"):
            floor = f"floor({self._scaled(column, '1' if held == 'milliseconds' else '1000')})"
            return f"(CASE WHEN abs({floor}) <= {_GREATEST} THEN CAST({floor} AS BIGINT) END)"
        if held == "timestamptz":
            return f"unix_millis(try_cast({quoted} AS TIMESTAMP))"
        found = f"try_cast({quoted} AS TIMESTAMP_NTZ)"
        local = f"convert_timezone({self.literal(zone)}, 'UTC', {found})"
        micros = f"timestampdiff(MICROSECOND, TIMESTAMP_NTZ '1970-01-01 00:00:00', {local})"
        return f"CAST(floor({micros} / 1000BD) AS BIGINT)"

    def _scaled(self, column: str, scale: str) -> str:
        number = f"try_cast({self.quoted(column)} AS DECIMAL(28, 10))"
        return f"({number} * CAST({scale} AS DECIMAL(7, 0)))"


def options(bank: Bank, columns: EntryColumns | AccountColumns) -> dict[str, str]:
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


def read_jdbc(
    books: BookRequest,
    spark: SparkSession,
    clock: Clock,
    scratch: Folder | None = None,
) -> ExtractedSource:
    """Extract a bank's books.

    Args:
        books: The bank, the day and the target directory.
        spark: A session that has the driver's jar.
        clock: This machine's clock; the database's clock is not read.
        scratch: A folder for Spark's own files; one in the target directory if left out.

    Raises:
        ReconcileRefused: The database cannot be read, or has an invalid value.
    """
    name, taken_ms = books.bank.name, clock.wall_ms()
    scratch = scratch or LocalFolder(books.directory / "raw")
    reader = _JdbcReader(books, spark, scratch)
    try:
        scratch.remove_all()  # A killed run left it.
        tables = (*reader.entries(), *reader.accounts())
    except (PySparkException, Py4JError) as error:
        raise ReconcileRefused(f"{name}: {_error_sentence(error, books.bank.database)}") from error
    finally:
        with suppress(OSError):
            scratch.remove_all()
    return ExtractedSource(name, "jdbc", "", taken_ms, taken_ms, tables)


class _JdbcReader:
    """Reads a bank's tables through Spark."""

    def __init__(self, books: BookRequest, spark: SparkSession, scratch: Folder) -> None:
        self._books = books
        self._spark = spark
        self._scratch = scratch

    def entries(self) -> tuple[ExtractedTable, ...]:
        """The entries of the day, and the sums before and after."""
        bank = self._books.bank
        where = f"{bank.name}/entries"
        view, types = self._store(where, bank.entries)
        entries = msgspec.structs.replace(bank.entries, table=view, where="")
        dialect = SparkDialect(types)
        statements = EntryStatements(
            msgspec.structs.replace(bank, entries=entries),
            self._books.money,
            self._books.window,
            dialect,
        )
        quarantine = set_aside(self._books, ENTRIES, statements, self._ask)
        control = control_from_answer(
            bank.name, ENTRIES, self._ask(control_query(statements.rows(), ENTRIES))
        )
        parts = self._write(statements.rows())
        folder, names = LocalFolder(self._books.directory.parent), [part.path for part in parts]
        contents = ContentHash(ENTRIES)
        written = count_files(bank.name, ENTRIES, folder, names, contents)
        if (differs := difference(control, written)) is not None:
            raise ReconcileRefused(differs)
        sums = write_sums(self._books, self._spark.sql(statements.sums()).toArrow())
        found = control, written, contents.word, parts, quarantine
        return (ExtractedTable(ENTRIES.name, *found), *sums)

    def accounts(self) -> tuple[ExtractedTable, ...]:
        """The bank's table of accounts, if the rules name one."""
        bank, accounts = self._books.bank, self._books.bank.accounts
        if accounts is None:
            return ()
        view, types = self._store(f"{bank.name}/accounts", accounts)
        statements = AccountStatements(
            msgspec.structs.replace(accounts, table=view, where=""),
            bank.entries.units,
            self._books.money,
            SparkDialect(types),
        )
        return (copy_table(self._books, ACCOUNTS, statements, self._ask, self._batches),)

    def _store(
        self, where: str, columns: EntryColumns | AccountColumns
    ) -> tuple[str, dict[str, str]]:
        """Store the driver's rows of a table; return a view of them, and the columns' types."""
        bank = self._books.bank
        given = self._spark.read.format("jdbc").options(**options(bank, columns))
        frame = given.load()
        types = {field.name: field.dataType.typeName() for field in frame.schema}
        types |= {
            field.name: "whole decimal"
            for field in frame.schema
            if isinstance(field.dataType, DecimalType) and not field.dataType.scale
        }
        wanted = column_names(columns)
        check_columns(where, wanted, types)
        number = getattr(columns, "id", "")
        if number and isinstance(frame.schema[number].dataType, NumericType):
            frame = _partitioned(given, frame, number, bank.readers)
        place = self._scratch.at(where.partition("/")[2]).uri
        frame.select(*(f.col(f"`{name}`") for name in sorted(wanted))).write.parquet(place)
        view = "txmq_" + hashlib.sha256(place.encode()).hexdigest()[:16]
        self._spark.read.parquet(place).createOrReplaceTempView(view)
        return view, types

    def _write(self, statement: str) -> tuple[Part, ...]:
        """Write rows with Spark, as the files of an extract."""
        final = self._books.directory / ENTRIES.name
        draft = self._scratch.at("written")
        rows = self._spark.sql(statement)
        layout = parquet_options(rows.columns) | {"compression": "zstd"}
        rows.write.options(**layout).parquet(draft.uri)
        LocalFolder(final).publish(draft)
        return tuple(map(describe_part, sorted(final.iterdir())))

    def _batches(self, statement: str) -> Iterable[pa.RecordBatch]:
        yield from self._spark.sql(statement).toArrow().to_batches()

    def _ask(self, statement: str) -> Sequence[Sequence[Any]]:
        return [tuple(row) for row in self._spark.sql(statement).collect()]


def _partitioned(given: Any, frame: DataFrame, number: str, readers: int) -> DataFrame:
    """Split by ranges of numbers for several connections; the first also reads rows without."""
    ((least, most),) = frame.agg(f.min(f"`{number}`"), f.max(f"`{number}`")).collect()
    if least is None or not isinstance(frame.schema[number].dataType, IntegralType | DecimalType):
        return frame
    bounds = {"partitionColumn": number, "numPartitions": str(readers)}
    bounds |= {"lowerBound": str(int(least)), "upperBound": str(int(most) + 1)}
    found: DataFrame = given.options(**bounds).load()
    return found


def _error_sentence(error: PySparkException | Py4JError, url: str) -> str:
    """Describe the error in one sentence."""
    text = str(error)
    if "No suitable driver" in text or "ClassNotFoundException" in text:
        kind = ":".join(url.split(":")[:2])
        return (
            f"Spark has no driver for {kind}; name its jar in spark.jars, and its class as driver "
            "in the bank's properties"
        )
    java = getattr(error, "java_exception", None)
    return error_text(Exception(java.getMessage() or text) if java is not None else error, url)
