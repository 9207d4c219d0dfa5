"""Sheets as files: Spark writes them, and adds up what it has written.

Control totals are numbers that detect losses, copies and changes: rows, sums and ids. They are
computed from the files, so the source is read only once.

Moving an entry to another account changes no total, but it changes the hash of the content. This is
the sum of the hashes of all rows, so their order and their files do not matter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from txmq.reconcile.extract.sheets import TABLE, Sheets
from txmq.reconcile.frames import exact_sum
from txmq.reconcile.spark import setting
from txmq.reconcile.storage import Folder
from txmq.reconcile.summary import Control
from txmq.reconcile.tables import LIMIT, RECURRING

__all__ = [
    "NO_CONTENT",
    "SOURCE",
    "Note",
    "Written",
    "add_up",
    "hashes_in",
    "read_sheets",
    "write_sheets",
]

SOURCE: Final = "source"
"""The column with the name of the bank, or ``log``."""
Note: TypeAlias = tuple[str, str, str]
"""A row of ``notes``."""
_PLACE: Final = (SOURCE, TABLE)
_CONTENT: Final = "{}-{:016x}"
NO_CONTENT: Final = _CONTENT.format(0, 0)
"""The hash of a table without rows."""
_ROWS_A_FILE: Final = 2_000_000
_WRITERS: Final = "spark.sql.maxConcurrentOutputFileWriters"
_TABLES_A_TASK: Final = 16
_MONEY: Final = ("amount", "balance")
"""The columns added up by currency; no table has both."""
_NOTE: Final = ("about", "place", "note")


class Written(NamedTuple):
    """A written table."""

    control: Control
    content: str
    """The hash of its rows."""
    files: dict[str, int]
    """Its files, with their numbers of rows."""
    notes: list[Note]
    """The rows of the table ``notes``; empty for other tables."""


def write_sheets(frame: DataFrame, folder: Folder) -> None:
    """Write a frame of sheets with their source, into a folder for each source and table."""
    options = {
        "compression": "zstd",
        "maxRecordsPerFile": str(_ROWS_A_FILE),
        "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    }
    # For keys and amounts a dictionary takes time and saves no space.
    plain = {f"parquet.enable.dictionary#{name}" for name in frame.columns if name not in RECURRING}
    options |= dict.fromkeys(plain, "false")
    # A task has few tables: without open files for all, Spark would sort its rows by table first.
    with setting(frame.sparkSession, _WRITERS, str(_TABLES_A_TASK)):
        writer = frame.write.mode("append").partitionBy(*_PLACE).options(**options)
        writer.parquet(folder.spark_path)
    if folder.local is not None:
        for path in folder.local.rglob(".*.crc"):
            path.unlink()  # Hadoop's own check would hide which file was changed.


def read_sheets(spark: SparkSession, folder: Folder, sheets: Sheets) -> DataFrame:
    """The sheets in a folder, with their source and table."""
    own = from_arrow_schema(pa.schema(one for one in sheets.schema if one.name != TABLE))
    schema = StructType([*own, *(StructField(name, StringType()) for name in _PLACE)])
    if not folder.files():
        return spark.createDataFrame([], schema)  # No row was written, and so no folder.
    return spark.read.schema(schema).parquet(folder.spark_path)


def add_up(
    spark: SparkSession, extract: Folder, folders: Mapping[str, Sheets]
) -> dict[tuple[str, str], Written]:
    """Add up the sheets in the folders of an extract, by source and table."""
    sums = [
        _sums(read_sheets(spark, extract.at(name), sheets), sheets)
        for name, sheets in folders.items()
        if extract.at(name).files()
    ]
    if not sums:
        return {}
    found = defaultdict[tuple[str, str], list[Row]](list)
    for row in reduce(DataFrame.unionByName, sums).collect():
        found[row[SOURCE], row[TABLE]].append(row)
    return {of: _written(*of, rows, extract) for of, rows in found.items()}


def _sums(frame: DataFrame, sheets: Sheets) -> DataFrame:
    """The totals of each file, by currency; each note has its own row."""
    schema = sheets.schema
    numbers = [field.name for field in schema if pa.types.is_integer(field.type)]
    longs = {name: f.coalesce(f.col(name).cast("long"), f.lit(0)) for name in numbers}
    # Spark's hash leaves NULL out, so each column is hashed with a mark that tells if it is NULL.
    marked = [[f.col(one), f.col(one).isNull()] for one in sorted(schema.names) if one != TABLE]
    content = f.xxhash64(*(part for pair in marked for part in pair))
    number = f.col("id") if "id" in numbers else f.lit(None).cast("long")
    wanted = [
        f.count(f.lit(1)).alias("count"),
        exact_sum(*longs.values()).alias("total"),
        exact_sum(*(longs[name] for name in _MONEY if name in longs)).alias("money"),
        exact_sum(content).alias("content"),
        f.min(number).alias("least"),
        f.max(number).alias("most"),
    ]
    file = f.col("_metadata.file_path").alias("file")
    return frame.groupBy(file, *_PLACE, "currency", *_NOTE).agg(*wanted)


def hashes_in(spark: SparkSession, folder: Folder) -> dict[str, tuple[int, str]]:
    """The size and the SHA-256 of each Parquet file below a folder, by its path there."""
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    files = reader.option("pathGlobFilter", "*.parquet").load(folder.spark_path)
    rows = files.select("path", "length", f.sha2("content", 256).alias("hash")).collect()
    return {_below(folder, row.path): (row.length, row.hash) for row in rows}


def _written(source: str, table: str, rows: Sequence[Row], folder: Folder) -> Written:
    files, amounts = defaultdict[str, int](int), defaultdict[str, int](int)
    for row in rows:
        files[_below(folder, row.file)] += row["count"]
        amounts[row.currency or ""] += int(row.money)
    if not amounts.get("", 1):
        del amounts[""]  # A sum of zero without a currency is not information.
    total, content = (sum(int(row[name]) for row in rows) for name in ("total", "content"))
    ids = [number for row in rows for number in (row.least, row.most) if number is not None]
    numbers = total % LIMIT, min(ids, default=None), max(ids, default=None)
    control = Control(source, table, sum(files.values()), dict(sorted(amounts.items())), *numbers)
    notes = [
        (row.about, row.place, row.note)
        for row in rows
        if row.note is not None
        for _ in range(row["count"])
    ]
    word = _CONTENT.format(control.rows, content % (2 * LIMIT))
    return Written(control, word, dict(files), sorted(notes))


def _below(folder: Folder, path: str) -> str:
    """The path of a file below a folder, whose own path Spark may spell differently."""
    name = folder.spark_path.rpartition("/")[2]
    return path.rpartition(f"/{name}/")[2]
