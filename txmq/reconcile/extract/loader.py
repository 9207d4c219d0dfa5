"""Load an extract into Spark, and refuse it unless it is exactly what was written.

First the files are checked: each exists once, there are no others, and none has changed. Then
their control totals are computed again, while Spark lists the files. At the end of a run the
accounts' sums are compared with the same totals, which proves that Spark has read everything
(:mod:`txmq.reconcile.verdict`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from txmq.errors import ReconcileRefused
from txmq.quantity import quantity
from txmq.reconcile.extract.control_sums import count_files
from txmq.reconcile.extract.controls import difference
from txmq.reconcile.extract.manifest import FILE, ExtractedSource, ExtractedTable, Manifest, Part
from txmq.reconcile.ledgers import Ledgers
from txmq.reconcile.tables import (
    ACCOUNTS,
    ENTRIES,
    FAILURES,
    LATER,
    MESSAGES,
    OFFSETS,
    OPENING,
    SOURCES,
    TableSchema,
)

__all__ = ["check_files", "check_totals", "load", "load_unchecked"]

_OF_BANKS: Final = (ENTRIES, OPENING, LATER, ACCOUNTS)
_OF_THE_LOG: Final = (MESSAGES, FAILURES, OFFSETS)
_TABLES: Final = {table.name: table for table in SOURCES}


class _Place(NamedTuple):
    """A table of a source."""

    source: ExtractedSource
    table: TableSchema
    extracted: ExtractedTable


def load(spark: SparkSession, manifest: Manifest, directory: Path) -> Ledgers:
    """The ledgers of a day, after the extract was checked.

    Args:
        spark: The session.
        manifest: The extract's manifest.
        directory: The extract's directory.

    Raises:
        ReconcileRefused: A file is missing, changed or extra, or a control total differs; the
            message names it.
    """
    check_files(manifest, directory)
    # A fresh Java takes as long to list files as the totals take here.
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load_unchecked, spark, manifest, directory)
        check_totals(manifest, directory)
        return loading.result()


def load_unchecked(spark: SparkSession, manifest: Manifest, directory: Path) -> Ledgers:
    """Load the ledgers of an extract that was checked before."""
    found: dict[str, DataFrame] = {}
    for table in _OF_BANKS:
        frames = [
            _frame(spark, place, directory).withColumn("bank", f.lit(place.source.name))
            for place in _places(manifest)
            if place.table == table
        ]
        empty = spark.createDataFrame([], f"{table.ddl}, bank STRING")
        found[table.name] = reduce(DataFrame.unionByName, frames) if frames else empty
    for table in _OF_THE_LOG:
        frames = [
            _frame(spark, place, directory) for place in _places(manifest) if place.table == table
        ]
        found[table.name] = frames[0] if frames else spark.createDataFrame([], table.ddl)
    return Ledgers(**found)


def check_files(manifest: Manifest, directory: Path) -> None:
    """Check that all files exist, unchanged, and no others.

    Raises:
        ReconcileRefused: A file is missing, changed or extra.
    """
    try:
        there = {
            str(path.relative_to(directory))
            for path in directory.rglob("*")
            if path.is_file() and path.name != FILE and not path.name.startswith((".", "_"))
        }
        told = [part for place in _places(manifest) for part in place.extracted.parts]
        for place in _places(manifest):
            _check_names(place, {one for one in there if _is_of(one, place)}, directory)
        for one in sorted(there - {part.path for part in told}):
            raise ReconcileRefused(f"{one} is there, and was not extracted")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda part: _check_content(part, directory), told))
    except OSError as error:
        raise ReconcileRefused(f"the extract cannot be read: {error}") from error


def check_totals(manifest: Manifest, directory: Path) -> None:
    """Check the control totals against those of the writing.

    Raises:
        ReconcileRefused: A control total differs; the message names it.
    """
    for place in _places(manifest):
        paths = [directory / part.path for part in place.extracted.parts]
        try:
            now = count_files(place.source.name, place.table, paths)
        except (OSError, pa.ArrowException) as error:
            raise ReconcileRefused(f"the extract cannot be read: {error}") from error
        if (differs := difference(place.extracted.written, now)) is not None:
            raise ReconcileRefused(differs)


def _places(manifest: Manifest) -> Iterator[_Place]:
    for source in manifest.sources:
        for table in source.tables:
            yield _Place(source, _TABLES[table.table], table)


def _frame(spark: SparkSession, place: _Place, directory: Path) -> DataFrame:
    paths = [str(directory / part.path) for part in place.extracted.parts]
    return spark.read.schema(place.table.ddl).parquet(*paths)


def _is_of(path: str, place: _Place) -> bool:
    return path.startswith(f"{place.source.name}/{place.table.name}/")


def _check_names(place: _Place, there: Iterable[str], directory: Path) -> None:
    """Check that each part exists once; the message counts rows and names files."""
    parts = {part.path: part for part in place.extracted.parts}
    missing, foreign = sorted(parts.keys() - set(there)), sorted(set(there) - parts.keys())
    if not missing and not foreign:
        return
    was = sum(part.rows for part in parts.values())
    now = was - sum(parts[path].rows for path in missing)
    now += sum(_rows(directory / path) for path in foreign)
    why = [f"{path} is missing" for path in missing]
    why += [f"{path} was not extracted" for path in foreign]
    raise ReconcileRefused(
        f"{place.source.name}/{place.table.name}: {quantity(was, 'row was', 'rows were')} "
        f"extracted and {quantity(now, 'is', 'are')} there; {', '.join(why)}"
    )


def _rows(path: Path) -> int:
    try:
        return int(pq.read_metadata(path).num_rows)
    except pa.ArrowInvalid:
        return 0


def _check_content(part: Part, directory: Path) -> None:
    path = directory / part.path
    if (size := path.stat().st_size) != part.bytes:
        raise ReconcileRefused(
            f"{part.path}: {quantity(part.bytes, 'byte was', 'bytes were')} extracted and "
            f"{quantity(size, 'is', 'are')} there"
        )
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != part.sha256:
        raise ReconcileRefused(
            f"{part.path}: its bytes are not those that were extracted; their hash (SHA-256) was "
            f"{part.sha256[:12]}… and is {digest[:12]}…"
        )
