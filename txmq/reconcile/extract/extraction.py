"""The extract of a day: all banks at once, then the log.

The log is read last, so that it contains every message behind a bank's entries. The extract has a
temporary name until it is complete, so that a partial one is never used.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.books import BookRequest
from txmq.reconcile.extract.manifest import FILE, ExtractedSource, Manifest
from txmq.reconcile.rules import Bank, DayWindow, Rules
from txmq.reconcile.storage import open_folder
from txmq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["extract_day"]


def extract_day(
    rules: Rules,
    day: date,
    *,
    take_log: Callable[[Rules, DayWindow, Path], ExtractedSource],
    spark: SparkSession | None = None,
) -> Manifest:
    """Extract a day, which may be unfinished, or keep an equal extract that exists.

    ``take_log`` writes the log's tables into the directory ``log`` of an extract. ``spark`` reads
    banks with a JDBC URL.

    Raises:
        ReconcileRefused: A ledger cannot be read, or holds a value that does not fit.
    """
    clock, window = SystemClock(), rules.day.window(day)
    home = open_folder(rules.directory).at("extracts", day.isoformat())
    readers = [_reader_of(bank, spark) for bank in rules.bank]
    try:
        with home.staging() as draft:
            with ThreadPoolExecutor(len(rules.bank), "extract") as pool:
                requests = [
                    BookRequest(bank, rules, day, window, draft / bank.name, clock)
                    for bank in rules.bank
                ]
                banks = list(pool.map(lambda read, books: read(books), readers, requests))
            log = take_log(rules, window, draft)
            manifest = Manifest.of(rules, day, (*banks, log))
            manifest.write(draft)
            final = home.at(manifest.extract_id)
            return manifest if final.take(draft, last=FILE) else Manifest.read(final)
    except OSError as error:
        raise ReconcileRefused(f"the extract cannot be written: {error}") from error


def _reader_of(bank: Bank, spark: SparkSession | None) -> Callable[[BookRequest], ExtractedSource]:
    """The function that reads a bank; each kind needs packages of its own, imported here."""
    if bank.files is not None:
        from txmq.reconcile.extract.book_files import read_files

        return read_files
    kind = bank.database.partition(":")[0].partition("+")[0]
    if kind in {"postgresql", "postgres"}:
        from txmq.reconcile.extract.postgres import read_postgres

        return read_postgres
    if kind == "sqlite":
        from txmq.reconcile.extract.sqlite import read_sqlite

        return read_sqlite
    if kind == "jdbc" and spark is not None:
        from txmq.reconcile.extract.jdbc import read_jdbc

        return partial(read_jdbc, spark=spark)
    why = "its URL must begin with postgresql://, sqlite:/// or jdbc:"
    if kind == "jdbc":
        why = "Spark reads JDBC URLs, and no session was given"
    raise ReconcileRefused(f"{bank.name}: {why}")
