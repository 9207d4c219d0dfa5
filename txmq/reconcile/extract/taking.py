"""A day is extracted: all banks at once, and then the log.

The log is read last, so that whatever a bank knows is found in it. Until everything is written the
extract lies in a directory with another name, so that no half of one can be taken for a whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.books import Books
from txmq.reconcile.extract.drafts import drafted
from txmq.reconcile.extract.manifest import (
    FILE,
    Extracted,
    Manifest,
    Source,
    place,
    read_manifest,
    write_manifest,
)
from txmq.reconcile.rules import Bank, Constant, Rules, Window
from txmq.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Log", "Progress", "TakeLog", "take"]

Progress: TypeAlias = Callable[[str, int], None]
"""Is told of each source that is there, and how many rows it has."""


class Log(Protocol):
    """What was taken of the broker's log."""

    @property
    def tables(self) -> tuple[Extracted, ...]:
        """What was written."""
        ...

    @property
    def position(self) -> int:
        """The log was read up to here."""
        ...

    @property
    def moment_ms(self) -> int:
        """When that was its end."""
        ...


TakeLog: TypeAlias = Callable[[Rules, Window, Path], Log]
"""Writes the log's tables into the directory ``log`` of an extract."""

_KINDS: Final = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "sqlite": "sqlite",
    "jdbc": "jdbc",
}


def take(
    rules: Rules,
    day: date,
    *,
    take_log: TakeLog,
    spark: SparkSession | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Manifest:
    """Extract a day.

    One that was extracted before, and whose books have not changed since, is kept as it is.

    Args:
        rules: Where the ledgers are, and what their columns mean.
        day: The business date; it need not be over.
        take_log: Extracts the log.
        spark: Reads banks with a URL of JDBC's.
        progress: Is told of each source that is there.
        clock: Ours.

    Raises:
        ReconcileRefused: A ledger cannot be read, or holds what does not fit.
    """
    clock = clock or SystemClock()
    window = rules.day.window(day)
    for bank in rules.bank:
        _see(rules, bank, spark)
    home = Path(rules.directory) / "extracts" / day.isoformat()
    try:
        with drafted(home) as early:
            sources = _sources(rules, window, early, take_log, spark, progress, clock)
            manifest = Manifest.of(rules, day, sources)
            write_manifest(early, manifest)
            return _kept(early, place(rules.directory, manifest), manifest)
    except OSError as error:
        raise ReconcileRefused(f"the extract cannot be written: {error}") from error


def _sources(
    rules: Rules,
    window: Window,
    directory: Path,
    take_log: TakeLog,
    spark: SparkSession | None,
    progress: Progress | None,
    clock: Clock,
) -> tuple[Source, ...]:
    def told(source: Source) -> Source:
        if progress is not None:
            progress(source.name, sum(table.written.rows for table in source.tables))
        return source

    with ThreadPoolExecutor(len(rules.bank), "extract") as pool:
        waited = [
            pool.submit(_read, rules, Books(bank, window, directory / bank.name), spark, clock)
            for bank in rules.bank
        ]
        banks = [told(future.result()) for future in waited]
    log = take_log(rules, window, directory)
    moment = log.moment_ms
    return (*banks, told(Source("log", "log", "", moment, moment, log.tables, log.position)))


def _read(rules: Rules, books: Books, spark: SparkSession | None, clock: Clock) -> Source:
    # Each kind needs what the others do without.
    match _kind(books.bank):
        case "postgresql":
            from txmq.reconcile.extract.postgres import read_postgres

            return read_postgres(books, rules.money, clock)
        case "sqlite":
            from txmq.reconcile.extract.sqlite import read_sqlite

            return read_sqlite(books, rules.money, clock)
        case _:
            from txmq.reconcile.extract.jdbc import read_jdbc

            assert spark is not None
            return read_jdbc(books, rules.money, spark, clock)


def _kind(bank: Bank) -> str:
    scheme = bank.database.partition(":")[0].partition("+")[0]
    return _KINDS.get(scheme, "")


def _see(rules: Rules, bank: Bank, spark: SparkSession | None) -> None:
    """See that a bank can be read at all, before any is."""
    kind = _kind(bank)
    if not kind:
        raise ReconcileRefused(
            f"{bank.name}: its URL begins with postgresql://, sqlite:/// or jdbc:"
        )
    if kind == "jdbc" and spark is None:
        raise ReconcileRefused(f"{bank.name}: a URL of JDBC's is read by Spark, and there is none")
    for columns in (bank.entries, bank.accounts):
        if columns is None or not isinstance(columns.currency, Constant):
            continue
        currency = columns.currency.value
        if rules.money and currency not in rules.money:
            known = ", ".join(sorted(rules.money))
            raise ReconcileRefused(f"{bank.name}: the currency {currency} is none of {known}")


def _kept(early: Path, final: Path, manifest: Manifest) -> Manifest:
    """Let it have its name, unless it is there already."""
    if not (final / FILE).exists():
        try:
            early.rename(final)
        except OSError:
            # Somebody else was quicker; only a whole extract can be in the way.
            if not (final / FILE).exists():
                raise
        else:
            folder = os.open(final.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            return manifest
    return read_manifest(final)
