"""The ledgers of a day and of earlier ones as DataFrames, and their rows that belong to the day.

The role of a table decides which of its rows take part: those inside the day's window, with a key,
in their state at the end of the day. A ledger that is read after the day ended also has later
facts. They are masked here, so a day has the same result whenever it is run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from txmq.reconcile.contents import ContentHash, word_of
from txmq.reconcile.ledgers import COLUMNS, Files, Role, TableFile
from txmq.reconcile.rules import TRANSFER_KINDS, DayWindow
from txmq.reconcile.tables import BANK_TABLES, LOG_TABLES, LONE, LOWER_HALF, TableSchema

__all__ = [
    "WIDE",
    "Frames",
    "contents_of",
    "exact_sum",
    "read",
    "read_table",
    "rows_of",
    "with_keys",
]


Frames: TypeAlias = Mapping[Role, DataFrame]
"""The tables of a day and of earlier ones. Banks' tables have a column ``bank``. Without a result
of the day before, there are no ``BALANCES``."""
WIDE: Final = "decimal(38,0)"
"""A type with room for any sum of 64-bit numbers."""
_WILD: Final = re.compile(r"([][{}*?\\])")
"""Characters that Spark takes for patterns."""
_LATER_KNOWN: Final = ("queue_offset", "decided_ms", "decided_by", "reason")
"""The columns that a message has only once it is decided."""


def read(spark: SparkSession, files: Files) -> Frames:
    """The tables in these files. A table of an extract may have no rows, and so no file."""
    found = {role: read_table(spark, COLUMNS[role], some) for role, some in files.items() if some}
    for name, table in (BANK_TABLES | LOG_TABLES).items():
        if Role(name) not in found:
            bank = ", bank string" if name in BANK_TABLES else ""
            found[Role(name)] = spark.createDataFrame([], table.ddl + bank)
    return found


def read_table(spark: SparkSession, table: TableSchema, files: Sequence[TableFile]) -> DataFrame:
    """The rows of a table in some files, or folders of files."""
    uris: defaultdict[str | None, list[str]] = defaultdict(list)
    for file in files:
        uris[file.bank].append(_WILD.sub(r"\\\1", file.uri))
    frames = []
    for bank, of_bank in uris.items():
        # Files of older versions may lack columns, which are then NULL.
        rows = spark.read.schema(table.ddl).parquet(*of_bank).select(*table.names)
        frames.append(rows if bank is None else rows.withColumn("bank", F.lit(bank)))
    return reduce(DataFrame.unionByName, frames)


def rows_of(role: Role, rows: DataFrame, window: DayWindow) -> DataFrame:
    """The rows of a table that take part."""
    recorded, stored = F.col("recorded_ms"), F.col("stored_ms")
    match role:
        case Role.ENTRIES:
            return rows.where(_is_within(recorded, window))
        case Role.MESSAGES:
            return _messages_of_day(rows, window)
        case Role.FAILURES | Role.OPEN_FAILURES:
            return rows.where(stored < window.end_ms)
        case Role.OLD_ENTRIES:
            return rows.where(recorded < window.start_ms)
        case Role.OLD_MESSAGES:
            return _messages_at(rows.where(stored < window.start_ms), window.end_ms)
        case _:
            return rows


def with_keys(role: Role, rows: DataFrame) -> DataFrame:
    """The rows that belong to transfers, each with the key of its transfer.

    All entries without a key that a bank wrote at the same moment share one key
    (:mod:`txmq.reconcile.transfer`).
    """
    if role not in {Role.ENTRIES, Role.OLD_ENTRIES}:
        return rows
    alone = F.concat("bank", F.lit(LONE), F.col("recorded_ms").cast("string"))
    found = rows.where(F.col("kind").isin(*TRANSFER_KINDS))
    return found.withColumn("key", F.coalesce("key", alone))


def _messages_of_day(messages: DataFrame, window: DayWindow) -> DataFrame:
    """The messages that were stored or decided on a day, as known at its end."""
    known = _messages_at(messages.where(F.col("stored_ms") < window.end_ms), window.end_ms)
    is_undecided = F.col("state").isin("prepared", "sent")
    decided = F.coalesce("decided_ms", "stored_ms")
    moment = F.when(is_undecided, F.col("stored_ms")).otherwise(decided)
    return known.where(_is_within(moment, window))


def _messages_at(messages: DataFrame, end_ms: int) -> DataFrame:
    """The messages as known at a moment: later decisions are masked."""
    decided = F.coalesce("decided_ms", "stored_ms")
    is_known = (F.col("state") == "sent") | (decided < end_ms)
    masked = {name: F.when(is_known, F.col(name)) for name in _LATER_KNOWN}
    state = F.when(is_known, F.col("state")).otherwise("prepared")
    alone = F.concat(F.lit("log/#"), F.col("position").cast("string"))
    return messages.withColumns({**masked, "state": state, "key": F.coalesce("key", alone)})


def _is_within(moment: Column, window: DayWindow) -> Column:
    """True for a moment within the day."""
    return (moment >= window.start_ms) & (moment < window.end_ms)


def exact_sum(*numbers: Column) -> Column:
    """The exact sum of 64-bit numbers over all rows, however large; 0 without any.

    The halves of the numbers are added up as 64-bit numbers. If a row has several numbers, none of
    them may be NULL.
    """
    low = reduce(add, (number.bitwiseAND(LOWER_HALF) for number in numbers))
    high = reduce(add, (F.shiftright(number, 32) for number in numbers))
    sum_ = F.sum(high).cast(WIDE) * F.lit(LOWER_HALF + 1) + F.sum(low)
    return F.coalesce(sum_.cast(WIDE), F.lit(0).cast(WIDE))


def contents_of(tables: Mapping[str, tuple[TableSchema, DataFrame]]) -> dict[str, str]:
    """The hashes of tables, computed by Spark's executors in one job."""
    parts = [_sums_of(*of).withColumn("name", F.lit(name)) for name, of in tables.items()]
    found = dict.fromkeys(tables, (0, 0))
    for row in reduce(DataFrame.unionByName, parts).collect():
        count, total = found[row["name"]]
        found[row["name"]] = count + row["rows"], total + int(row["total"])
    return {name: word_of(count, total) for name, (count, total) in found.items()}


def _sums_of(table: TableSchema, frame: DataFrame) -> DataFrame:
    def sums(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        whole = ContentHash(table)
        for batch in batches:
            whole.add(batch)
        count, total = whole.sums
        columns = [pa.array([count]), pa.array([str(total)])]
        yield pa.RecordBatch.from_arrays(columns, ["rows", "total"])

    return frame.mapInArrow(sums, "rows bigint, total string")
