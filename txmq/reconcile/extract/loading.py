"""An extract is loaded into Spark, and refused where it is not exactly what was written.

First the files are looked at: each is there once, none besides, and none has changed. Then their
numbers are added up once more, while Spark is told where they are: it reads none before that. That
Spark reads all of it is seen at the end of a run, when what the accounts have had is compared with
the same totals (:mod:`txmq.reconcile.judging`).
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
from txmq.reconcile.extract.controls import difference
from txmq.reconcile.extract.counting import counted
from txmq.reconcile.extract.manifest import FILE, Extracted, Manifest, Part, Source
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
    Table,
)

__all__ = ["load", "load_unchecked", "see_files", "see_totals"]

_OF_BANKS: Final = (ENTRIES, OPENING, LATER, ACCOUNTS)
_OF_THE_LOG: Final = (MESSAGES, FAILURES, OFFSETS)
_TABLES: Final = {table.name: table for table in SOURCES}


class _Place(NamedTuple):
    """A table of a source."""

    source: Source
    table: Table
    extracted: Extracted


def load(spark: SparkSession, manifest: Manifest, directory: Path) -> Ledgers:
    """The ledgers of a day, once it is certain that they are what was extracted.

    Args:
        spark: Where.
        manifest: Says what was extracted.
        directory: The extract's own.

    Raises:
        ReconcileRefused: A file is missing, changed, or one too many, or a control total differs;
            it says which.
    """
    see_files(manifest, directory)
    # A Java that has just begun takes as long to know of files as it takes to add them up here.
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load_unchecked, spark, manifest, directory)
        see_totals(manifest, directory)
        return loading.result()


def load_unchecked(spark: SparkSession, manifest: Manifest, directory: Path) -> Ledgers:
    """The same, for what was looked at before."""
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


def see_files(manifest: Manifest, directory: Path) -> None:
    """See that all files are there, unchanged, and no others.

    Raises:
        ReconcileRefused: They are not.
    """
    try:
        there = {
            str(path.relative_to(directory))
            for path in directory.rglob("*")
            if path.is_file() and path.name != FILE and not path.name.startswith((".", "_"))
        }
        told = [part for place in _places(manifest) for part in place.extracted.parts]
        for place in _places(manifest):
            _see_names(place, {one for one in there if _is_of(one, place)}, directory)
        for one in sorted(there - {part.path for part in told}):
            raise ReconcileRefused(f"{one} is there, and was not extracted")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda part: _see_content(part, directory), told))
    except OSError as error:
        raise ReconcileRefused(f"the extract cannot be read: {error}") from error


def see_totals(manifest: Manifest, directory: Path) -> None:
    """See that there is what was counted when the extract was written.

    Raises:
        ReconcileRefused: A control total differs; it says which.
    """
    for place in _places(manifest):
        paths = [directory / part.path for part in place.extracted.parts]
        try:
            now = counted(place.source.name, place.table, paths)
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


def _see_names(place: _Place, there: Iterable[str], directory: Path) -> None:
    """Each part is there once; the rows tell what is wrong, and the files where."""
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


def _see_content(part: Part, directory: Path) -> None:
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
