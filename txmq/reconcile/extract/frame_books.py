"""The books of a bank in DataFrames, from a user or from Spark's JDBC reader.

Spark checkpoints the rows, and computes everything else from them. So the tables of an extract
agree with each other, whatever happens to the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any, Final, NamedTuple

import pyarrow as pa
from msgspec.structs import replace
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from txmq.errors import ConfigError
from txmq.reconcile.extract.bank_source import SHEETS
from txmq.reconcile.extract.books import (
    BookRequest,
    BookTables,
    Columns,
    check_columns,
    sums_of_accounts,
)
from txmq.reconcile.extract.sheets import TABLE
from txmq.reconcile.extract.statements import Dialect
from txmq.reconcile.rules import Bank, DayWindow, Rules
from txmq.reconcile.tables import ACCOUNTS, ENTRIES, LOG_TABLES, MESSAGES, TableSchema
from txmq.settings.loading import did_you_mean

__all__ = ["GivenFrames", "SparkDialect", "frame_sheets"]

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


class GivenFrames(NamedTuple):
    """DataFrames of a user, which replace ledgers of the rules."""

    banks: Mapping[str, Mapping[str, DataFrame]] = {}
    """The ``entries`` and ``accounts`` of a bank, by its name."""
    log: Mapping[str, DataFrame] = {}
    """The ``messages``, ``failures`` and ``offsets``; empty if the log is read."""

    @classmethod
    def of(
        cls,
        rules: Rules,
        banks: Mapping[str, DataFrame | Mapping[str, DataFrame]],
        messages: DataFrame | Mapping[str, DataFrame] | None,
    ) -> GivenFrames:
        """Check the names of the frames.

        Raises:
            ConfigError: The rules have no such bank, there is no such table, or one is missing.
        """
        given = {name: _named(ENTRIES.name, of) for name, of in banks.items()}
        log = {} if messages is None else _named(MESSAGES.name, messages)
        known = {bank.name: bank for bank in rules.bank}
        _check_names("banks", given, list(known))
        for name, frames in given.items():
            tables = [ENTRIES.name, *([ACCOUNTS.name] if known[name].accounts else [])]
            _check_names(name, frames, tables)
            if missing := [table for table in tables if table not in frames]:
                raise ConfigError(f"{name}: the frame of {missing[0]} is missing")
        _check_names("messages", log, list(LOG_TABLES))
        return cls(given, log)

    def of_bank(self, bank: Bank) -> dict[str, DataFrame]:
        """A bank's tables, without the rows that its rules leave out."""
        wanted = {ENTRIES.name: bank.entries.where}
        wanted[ACCOUNTS.name] = bank.accounts.where if bank.accounts else ""
        return {
            name: frame.where(wanted[name] or "true")
            for name, frame in self.banks[bank.name].items()
        }

    def log_sheets(self, window: DayWindow) -> DataFrame:
        """The log's tables in one frame, without messages that belong only to other dates."""
        last_ms = f.greatest("decided_ms", "stored_ms")  # It skips NULL.
        is_ours = (f.col("stored_ms") < window.end_ms) & (last_ms >= window.start_ms)
        frames = []
        for name, frame in self.log.items():
            table = LOG_TABLES[name]
            check_columns(name, (one.name for one in table.columns if not one.is_optional),
                          frame.columns)  # fmt: skip
            rows = frame.select(*(
                (f.col(one.name) if one.name in frame.columns else f.lit(None))
                .cast(one.spark).alias(one.name)
                for one in table.columns
            ))  # fmt: skip
            if name == MESSAGES.name:
                rows = rows.where(is_ours)
            frames.append(rows.withColumn(TABLE, f.lit(name)))
        return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames)


def _named(name: str, frames: DataFrame | Mapping[str, DataFrame]) -> Mapping[str, DataFrame]:
    return frames if isinstance(frames, Mapping) else {name: frames}


def _check_names(where: str, given: Iterable[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"{where} has {name!r}, which is not one of {', '.join(known)}{hint}")


def frame_sheets(
    books: BookRequest, spark: SparkSession, tables: Mapping[str, DataFrame]
) -> DataFrame:
    """A bank's books as a frame of sheets; ``tables`` has its ``entries`` and its ``accounts``.

    Raises:
        ReconcileRefused: A table or a column is missing, or too many rows cannot be read.
    """
    found, name = _FrameBooks(books, spark, tables), books.bank.name
    frames = [spark.sql(found.entries.rows()).withColumn(TABLE, f.lit(ENTRIES.name))]
    sums = spark.sql(found.entries.sums())
    frames.append(sums.mapInArrow(partial(_sums_in_sheets, name), from_arrow_schema(SHEETS.schema)))
    notes = [found.quarantine(found.entries)]
    if found.accounts is not None:
        notes.append(found.quarantine(found.accounts))
        frames.append(spark.sql(found.accounts.rows()).withColumn(TABLE, f.lit(ACCOUNTS.name)))
    sheets = [SHEETS.rows(name, *one) for one in notes if one[1].num_rows]
    if sheets:
        frames.append(spark.createDataFrame(pa.Table.from_batches(sheets)))
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames)


class _FrameBooks(BookTables):
    def __init__(
        self, books: BookRequest, spark: SparkSession, tables: Mapping[str, DataFrame]
    ) -> None:
        super().__init__(books)
        self._spark = spark
        self._tables = tables

    def ask(self, statement: str) -> Sequence[Sequence[Any]]:
        return self._spark.sql(statement).collect()

    def _look_up(self, table: TableSchema, columns: Columns) -> tuple[Columns, Dialect]:
        """Checkpoint the rows of a table, and make a view of them."""
        where, frame = self.where(table), self._tables[table.name]
        types = {field.name: field.dataType.typeName() for field in frame.schema}
        check_columns(where, columns.names, types)
        rows = frame.select(*(f.col(f"`{name}`") for name in sorted(columns.names)))
        view = f"txmq_{where.encode().hex()}"
        # If a worker that keeps rows is lost, Spark fails; it never reads the source again.
        kept = rows.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
        kept.createOrReplaceTempView(view)
        return replace(columns, table=view, where=""), SparkDialect(types)


def _sums_in_sheets(name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The sums of accounts, as rows of sheets."""
    for batch in batches:
        for table, rows in sums_of_accounts(name, pa.table(batch)):
            yield SHEETS.rows(f"{name}/{table.name}", table, rows)
