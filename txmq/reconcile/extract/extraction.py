"""The extract of a day: all banks at once, then the log.

Spark's workers read the ledgers and write them; the totals in the manifest are those of the files.
The log is read last, so that it contains every message behind a bank's entries. The extract has a
temporary name until it is complete, so that a partial one is never used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import date
from functools import reduce
from typing import NamedTuple

from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.bank_source import SHEETS, BankSource, kind_of
from txmq.reconcile.extract.books import NOTES, BookRequest
from txmq.reconcile.extract.frame_books import GivenFrames, frame_sheets
from txmq.reconcile.extract.loader import load
from txmq.reconcile.extract.manifest import (
    BOOKS,
    FILE,
    LOG,
    ExtractedSource,
    ExtractedTable,
    Manifest,
    Part,
    QuarantinedRow,
    SourceKind,
)
from txmq.reconcile.extract.sheets import TABLE
from txmq.reconcile.extract.written_sheets import (
    NO_CONTENT,
    SOURCE,
    Note,
    Written,
    add_up,
    hashes_in,
    read_sheets,
    write_sheets,
)
from txmq.reconcile.log.collapse import LogRequest
from txmq.reconcile.log.day_source import LOG_SHEETS, DayLogSource, options_of, with_rests_joined
from txmq.reconcile.log.directory_log import RESTS
from txmq.reconcile.refusals import raised_here
from txmq.reconcile.rules import Bank, Rules
from txmq.reconcile.storage import Folder
from txmq.reconcile.summary import Control, digest_of
from txmq.reconcile.tables import ACCOUNTS, BANK_TABLES, LOG_TABLES
from txmq.runtime.clock import Clock, SystemClock

__all__ = ["describe", "extract_day", "log_of"]


class OpenBooks(NamedTuple):
    """A bank that is being read."""

    sheets: DataFrame
    source: ExtractedSource
    """The bank, without the tables."""


def extract_day(
    spark: SparkSession,
    rules: Rules,
    day: date,
    folder: Folder,
    *,
    given: GivenFrames | None = None,
    clock: Clock | None = None,
) -> Manifest:
    """Extract a day, which may be unfinished, or keep an equal extract that exists.

    The extract is a folder below ``extracts/<day>`` in ``folder``. ``given`` has frames that
    replace ledgers of the rules.

    Raises:
        ReconcileRefused: A ledger cannot be read, or holds a value that does not fit.
        ConfigError: The package that decompresses a message is not installed.
    """
    home = folder.at("extracts", day.isoformat())
    try:
        with home.staging() as (draft, check_lock):
            extraction = _Extraction(spark, rules, day, given or GivenFrames(), draft)
            manifest = extraction.take(clock or SystemClock())
            manifest.write(draft)
            check_lock()
            final = home.at(manifest.extract_id)
            if not final.take(draft, last=FILE):
                manifest = Manifest.read(final)
                load(spark, manifest, final)
            return manifest
    except OSError as error:
        raise ReconcileRefused(f"the extract cannot be written: {error}") from error


class _Extraction(NamedTuple):
    """An extract that is being taken."""

    spark: SparkSession
    rules: Rules
    day: date
    given: GivenFrames
    draft: Folder

    def take(self, clock: Clock) -> Manifest:
        """Read and write all ledgers."""
        rules, draft = self.rules, self.draft
        with raised_here():
            if not (self.given.log or rules.log.places or rules.log.cluster):
                raise ReconcileRefused(
                    "log has no place: give exactly one of directory, directories and cluster in "
                    "the rules, or a DataFrame"
                )
            kinds: dict[str, SourceKind] = {
                bank.name: "frames" if bank.name in self.given.banks else kind_of(bank)
                for bank in rules.bank
            }
            for source in (BankSource, DayLogSource):
                self.spark.dataSource.register(source)
            with ExitStack() as stack:
                banks = [
                    stack.enter_context(self._open_books(bank, kinds[bank.name], clock))
                    for bank in rules.bank
                ]
                sheets = [one.sheets.withColumn(SOURCE, f.lit(one.source.name)) for one in banks]
                write_sheets(reduce(DataFrame.unionByName, sheets), draft.at(BOOKS))
            self._write_log()
            sources = [one.source for one in banks]
            return describe(self.spark, rules, self.day, sources, draft, clock.wall_ms())

    @contextmanager
    def _open_books(self, bank: Bank, kind: SourceKind, clock: Clock) -> Iterator[OpenBooks]:
        """Read a bank's books during the block, all tables in one state if the source keeps one."""
        books = BookRequest.of(self.rules, bank, self.day)
        with ExitStack() as stack:
            snapshot, taken_ms = "", clock.wall_ms()
            source_ms = taken_ms
            reader = self.spark.read.format(BankSource.name()).options(**books.options())
            if kind == "frames":
                sheets = frame_sheets(books, self.spark, self.given.of_bank(bank))
            elif kind == "jdbc":
                from txmq.reconcile.extract.jdbc import jdbc_errors, jdbc_tables

                with jdbc_errors(bank):
                    sheets = frame_sheets(books, self.spark, jdbc_tables(bank, self.spark))
            elif kind == "postgresql":
                from txmq.reconcile.extract.postgres import export_snapshot

                snapshot, source_ms = stack.enter_context(export_snapshot(books))
                sheets = reader.option("snapshot", snapshot).load()
            else:
                sheets = reader.load()
            source = ExtractedSource(bank.name, kind, snapshot, taken_ms, source_ms, ())
            yield OpenBooks(sheets, source)

    def _write_log(self) -> None:
        window, place = self.rules.day.window(self.day), self.draft.at(LOG)
        if self.given.log:
            log = self.given.log_sheets(window)
            write_sheets(log.withColumn(SOURCE, f.lit(LOG)), place)
            return
        request = LogRequest(self.rules.log, self.rules.money, window)
        log = self.spark.read.format(DayLogSource.name()).options(**options_of(request)).load()
        write_sheets(log.withColumn(SOURCE, f.lit(LOG)), place)
        rests = place.at(f"{SOURCE}={LOG}", f"{TABLE}={RESTS.name}")
        if rests.files():
            found = read_sheets(self.spark, place, LOG_SHEETS)
            joined = with_rests_joined(request, found.where(f.col(TABLE) == RESTS.name))
            write_sheets(joined.withColumn(SOURCE, f.lit(LOG)), place)
            rests.remove_all()


def describe(
    spark: SparkSession,
    rules: Rules,
    day: date,
    banks: Iterable[ExtractedSource],
    extract: Folder,
    now_ms: int,
) -> Manifest:
    """Make the manifest of the written sheets, and move their notes into it.

    ``banks`` are in the order of the rules, without their tables. ``now_ms`` is the moment of the
    log, unless its notes have an earlier one.
    """
    written = add_up(spark, extract, {BOOKS: SHEETS, LOG: LOG_SHEETS})
    for source, table in written:
        if table == NOTES.name:
            place = LOG if source == LOG else BOOKS
            extract.at(place, f"{SOURCE}={source}", f"{TABLE}={table}").remove_all()
    log = log_of(_notes_of(LOG, written), now_ms)
    hashes = hashes_in(spark, extract)
    sources = (_with_tables(source, rules, written, hashes) for source in (*banks, log))
    return Manifest.of(rules, day, tuple(sources))


def _notes_of(source: str, written: Mapping[tuple[str, str], Written]) -> list[Note]:
    found = written.get((source, NOTES.name))
    return found.notes if found else []


def _with_tables(
    source: ExtractedSource,
    rules: Rules,
    written: Mapping[tuple[str, str], Written],
    hashes: Mapping[str, tuple[int, str]],
) -> ExtractedSource:
    notes = _notes_of(source.name, written)
    names = [*LOG_TABLES] if source.name == LOG else [*BANK_TABLES]
    if source.name in rules.banks(lambda bank: bank.accounts is None):
        names.remove(ACCOUNTS.name)
    tables = []
    for name in names:
        nothing = Written(Control(source.name, name, 0), NO_CONTENT, {}, [])
        found = written.get((source.name, name), nothing)
        parts = tuple(Part(path, rows, *hashes[path]) for path, rows in sorted(found.files.items()))
        aside = [QuarantinedRow(place, note) for about, place, note in notes if about == name]
        one = ExtractedTable(name, found.control, found.content, parts, tuple(sorted(aside)))
        tables.append(one)
    files = [note[1:] for note in notes if note[0] == "files"]
    snapshot = digest_of(files) if files else source.snapshot
    return replace(source, snapshot=snapshot, tables=tuple(tables))


def log_of(notes: Iterable[Note], now_ms: int) -> ExtractedSource:
    """The log as its notes describe it, without tables."""
    found = defaultdict[str, list[str]](list)
    for about, place, note in notes:
        found[about].append(place if about == "broker" else note)
    moment_ms = min([now_ms, *map(int, found["taken_ms"])])
    watermark = max(map(int, found["watermark"]), default=0)
    snapshot, texts = ", ".join(found["broker"]), tuple(found["note"])
    return ExtractedSource(LOG, "log", snapshot, moment_ms, moment_ms, (), watermark, texts)
