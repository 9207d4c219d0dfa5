"""The extract of a day: all banks at once, then the log.

The log is read last, so that it contains every message behind a bank's entries. The extract has a
temporary name until it is complete, so that a partial one is never used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.books import BookRequest
from txmq.reconcile.extract.manifest import (
    FILE,
    ExtractedSource,
    Manifest,
    read_manifest,
    write_manifest,
)
from txmq.reconcile.file_systems import open_folder
from txmq.reconcile.rules import Bank, DayWindow, Rules
from txmq.reconcile.storage import Folder
from txmq.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ExtractLog", "SourceProgress", "extract_day"]

SourceProgress: TypeAlias = Callable[[str, int], None]
"""Receives each finished source and its number of rows."""


ExtractLog: TypeAlias = Callable[[Rules, DayWindow, Path], ExtractedSource]
"""Writes the log's tables into the directory ``log`` of an extract."""

_Read: TypeAlias = Callable[[BookRequest], ExtractedSource]


def extract_day(
    rules: Rules,
    day: date,
    *,
    take_log: ExtractLog,
    spark: SparkSession | None = None,
    progress: SourceProgress | None = None,
    clock: Clock | None = None,
) -> Manifest:
    """Extract a day, or keep an equal extract that exists.

    Args:
        rules: Where the ledgers are, and what their columns mean.
        day: The business date; it may be unfinished.
        take_log: Extracts the log.
        spark: Reads banks with a JDBC URL.
        progress: Receives each finished source.
        clock: This machine's clock.

    Raises:
        ReconcileRefused: A ledger cannot be read, or holds a value that does not fit.
    """
    clock = clock or SystemClock()
    window = rules.day.window(day)
    home = open_folder(rules.directory).at("extracts", day.isoformat())
    readers = [_reader_of(bank, rules, day, home, spark, clock) for bank in rules.bank]
    try:
        with home.staging() as draft:
            sources = _sources(rules, window, draft, readers, take_log, progress)
            manifest = Manifest.of(rules, day, sources)
            write_manifest(draft, manifest)
            final = home.at(manifest.extract_id)
            return manifest if final.take(draft, last=FILE) else read_manifest(final)
    except OSError as error:
        raise ReconcileRefused(f"the extract cannot be written: {error}") from error


def _sources(
    rules: Rules,
    window: DayWindow,
    directory: Path,
    readers: Iterable[_Read],
    take_log: ExtractLog,
    progress: SourceProgress | None,
) -> tuple[ExtractedSource, ...]:
    def report(source: ExtractedSource) -> ExtractedSource:
        if progress is not None:
            progress(source.name, sum(table.written.rows for table in source.tables))
        return source

    with ThreadPoolExecutor(len(rules.bank), "extract") as pool:
        most = rules.limits.quarantine_max
        requests = (
            BookRequest(bank, window, directory / bank.name, rules.money, most)
            for bank in rules.bank
        )
        futures = [pool.submit(read, books) for read, books in zip(readers, requests, strict=True)]
        banks = [report(future.result()) for future in futures]
    return (*banks, report(take_log(rules, window, directory)))


def _reader_of(
    bank: Bank, rules: Rules, day: date, home: Folder, spark: SparkSession | None, clock: Clock
) -> _Read:
    """The function that reads a bank; each kind needs packages of its own, imported here.

    Raises:
        ReconcileRefused: The kind of its database is unknown, or Spark is missing.
    """
    if bank.files is not None:
        from txmq.reconcile.extract.book_files import read_files

        return partial(read_files, rules=rules, day=day, clock=clock)
    match bank.database.partition(":")[0].partition("+")[0]:
        case "postgresql" | "postgres":
            from txmq.reconcile.extract.postgres import read_postgres

            return partial(read_postgres, clock=clock)
        case "sqlite":
            from txmq.reconcile.extract.sqlite import read_sqlite

            return partial(read_sqlite, clock=clock)
        case "jdbc" if spark is not None:
            from txmq.reconcile.extract.jdbc import read_jdbc
            from txmq.reconcile.spark import check_reach

            # Spark's workers may not see a draft that is below this machine's TMPDIR.
            scratch = None if home.local else home.at(".scratch", bank.name)

            def read(books: BookRequest) -> ExtractedSource:
                check_reach(spark, home.uri)  # By now Python has written there.
                return read_jdbc(books, spark, clock, scratch)

            return read
        case "jdbc":
            why = "Spark reads JDBC URLs, and no session was given"
        case _:
            why = "its URL must begin with postgresql://, sqlite:/// or jdbc:"
    raise ReconcileRefused(f"{bank.name}: {why}")
