"""The directory of results: the tables and files of each run, and which run is in force.

A run writes into its own directories, and its last step makes it the day's current run. If it
dies before, the former run stays in force. A rerun has the same id and the same rows, and leaves
complete tables untouched.

    <directory>/results/<table>/business_date=D/run=<run id>/part-00000.parquet …
    <directory>/runs/D/<run id>/run.json, report.html, …
    <directory>/runs/D/current

Tables are written below ``results/.drafts``, which readers of Parquet ignore, and then moved. On a
store of objects they move file by file; a table that a killed run left in part has no run in
force, and the rerun writes it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import date, timedelta
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from txmq.errors import ReconcileRefused
from txmq.reconcile.chain import current_run, days_with_run, read_run_file
from txmq.reconcile.explanations import Explanations
from txmq.reconcile.extract.contents import ContentHash
from txmq.reconcile.extract.table_writer import parquet_writer
from txmq.reconcile.file_systems import Directory, open_folder
from txmq.reconcile.ledgers import EarlierDays, Rows
from txmq.reconcile.parquet_files import parquet_options
from txmq.reconcile.rules import DayWindow
from txmq.reconcile.second_pass import RESULTS
from txmq.reconcile.signatures import Signatures
from txmq.reconcile.storage import Folder
from txmq.reconcile.summary import Past, Run
from txmq.reconcile.tables import BALANCES, TOTALS, TableSchema
from txmq.reconcile.written_table import WrittenTable

__all__ = ["CARRIED_ON", "TABLES", "Results", "open_results", "run_id"]

CARRIED_ON: Final = ("items", "entries", "messages", "failures", "balances")
"""The tables that a day reads of the run of the day before."""
TABLES: Final[Mapping[str, TableSchema]] = {**RESULTS, "balances": BALANCES, "totals": TOTALS}
_DRAFTS: Final = "results/.drafts"
_SIGNED_ERROR: Final = (
    "run {run} of {day} is signed, and {what} would change: raise `version` in the rules to get a "
    "separate run"
)


def run_id(
    day: date, rules_digest: str, extract_id: str, previous: str | None, explained: str = ""
) -> str:
    """A run's id: the same for the same date, rules and inputs.

    Args:
        day: The business date.
        rules_digest: The digest of the rules.
        extract_id: The extract that was read.
        previous: The digest of the result whose items this run continues.
        explained: The digest of the explanations that hold.
    """
    named = [day.isoformat(), rules_digest, extract_id, previous or "", explained]
    return hashlib.sha256(msgspec.json.encode(named)).hexdigest()[:16]


@contextmanager
def open_results(directory: Directory) -> Iterator[Results]:
    """Open a directory of results for writing, and lock out other runs.

    Raises:
        ReconcileRefused: Another run is writing there, or the directory cannot be written.
    """
    folder = open_folder(directory)
    with ExitStack() as stack:
        try:
            check_lock = stack.enter_context(folder.lock())
            drafts = folder.at(_DRAFTS)
            drafts.remove_all()  # A killed run left them.
        except BlockingIOError as error:
            why = "" if folder.local else f" ({error})"
            raise ReconcileRefused(
                f"another run works in {folder}{why}: wait until it has ended, and try again"
            ) from error
        except OSError as error:
            raise ReconcileRefused(
                f"directory {str(folder)!r} cannot be written: {error}"
            ) from error
        try:
            yield Results(folder, check_lock)
        finally:
            # The next run removes them otherwise. A run that lost its lock has none there.
            with suppress(OSError, ReconcileRefused):
                check_lock()
                drafts.remove_all()


class Results:
    """The results of runs. Reading is always safe; writers use :func:`open_results`.

    Args:
        directory: The one that the rules name.
        check_lock: Raises if another run may write there.
    """

    def __init__(self, directory: Directory, check_lock: Callable[[], None] = lambda: None) -> None:
        self.folder = open_folder(directory)
        self._check_lock = check_lock
        self._signatures = Signatures(self.folder)

    def write_table(self, name: str, table: Rows, day: date, run: str) -> str:
        """Write a table of a run; returns a hash of its rows, in any order and any files.

        Args:
            name: The table.
            table: Its rows, in an order that depends only on them.
            day: The business date.
            run: The run.

        Raises:
            ReconcileRefused: The run is signed, and this differs from what was signed.
        """
        place = self.table(name, day, run).folder
        draft = self.folder.at(_DRAFTS, name, f"run={run}")
        draft.remove_all()
        if isinstance(table, pa.Table):
            with (
                draft.create("part-00000.parquet") as file,
                parquet_writer(file, table.schema) as writer,
            ):
                writer.write_table(table)
        else:
            table.write.options(**parquet_options(table.columns)).parquet(draft.uri)
        word = content_of(TABLES[name], draft)
        if _has_content(name, place, word):
            draft.remove_all()
        else:
            self._remove_table(name, day, run, word)
            place.publish(draft)
        return word

    def table(self, name: str, day: date, run: str) -> WrittenTable:
        """A table of a run, for reading without Spark."""
        return WrittenTable.of_run(self.folder, day, run, name)

    def fingerprints(self, day: date, run: str, names: Iterable[str]) -> dict[str, str]:
        """The fingerprints of the files of a run's tables."""
        return {name: self.table(name, day, run).folder.fingerprint() for name in names}

    def publish(self, run: Run, files: Mapping[str, bytes]) -> None:
        """Write a run's files, and make it the run that is in force.

        Args:
            run: The run; its signatures are stored separately.
            files: Other files by name, such as ``report.html``. Those of a signed run stay as they
                were when it was signed.

        Raises:
            ReconcileRefused: The run is signed, and this result differs.
        """
        assert run.result_digest == run.result.digest
        day = run.result.business_date
        if run.run_id in self._signatures.signed_runs(day):
            signed = read_run_file(self.folder_of(run))
            if signed.result_digest != run.result_digest:
                raise ReconcileRefused(
                    _SIGNED_ERROR.format(run=run.run_id, day=day, what="its result")
                )
            # The same rows may be in other files now.
            run, files = msgspec.structs.replace(signed, files=run.files), {}
        text = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(run, sign_off=None)))
        self.write_files(run, {**files, "run.json": text + b"\n"})
        self._check_lock()
        # The last step: before it no reader sees the run.
        named = msgspec.json.encode({"run_id": run.run_id})
        self.folder.at("runs", day).replace("current", named + b"\n")

    def write_files(self, run: Run, files: Mapping[str, bytes]) -> None:
        """Write files of a run again, for example after a signature; its result stays."""
        folder = self.folder_of(run)
        for name, data in files.items():
            folder.replace(name, data)

    def current(self, day: date) -> Run | None:
        """The day's run in force, with its signatures; ``None`` before the first run.

        Raises:
            ReconcileRefused: The file of the run cannot be read.
        """
        run = current_run(self.folder, day)
        return None if run is None else self.with_sign_off(run)

    def with_sign_off(self, run: Run) -> Run:
        """A run with its signatures."""
        return msgspec.structs.replace(run, sign_off=self._signatures.last(run))

    def days(self) -> list[date]:
        """The days that have a run in force, oldest first."""
        return days_with_run(self.folder)

    def previous(self, day: date) -> Run | None:
        """The current run of the latest earlier day; days between may have no run."""
        before = [earlier for earlier in self.days() if earlier < day]
        return self.current(before[-1]) if before else None

    def chain(self, run: Run | None, since: date) -> list[Run]:
        """A run and the runs that it continues, back to a date, oldest first.

        Later reruns do not change this chain, so results made from it stay reproducible.

        Raises:
            ReconcileRefused: The file of a run cannot be read.
        """
        found: list[Run] = []
        while run is not None and run.day >= since:
            found.append(run)
            if run.previous_run_id is None:
                break
            day = run.day - timedelta(days=1)
            before = self.folder.at("runs", day.isoformat(), run.previous_run_id)
            run = read_run_file(before) if before.exists("run.json") else None
        return found[::-1]

    def folder_of(self, run: Run) -> Folder:
        """The folder of a run's files."""
        return self.folder.at("runs", run.result.business_date, run.run_id)

    def trend(self, day: date, most: int) -> tuple[Past, ...]:
        """The latest days before this one, oldest first, up to a number."""
        before = [earlier for earlier in self.days() if earlier < day]
        runs = [self.current(earlier) for earlier in before[len(before) - most :] if most]
        return tuple(run.result.past for run in runs if run is not None)

    def read_table(self, spark: SparkSession, name: str, run: Run) -> DataFrame:
        """A table of a run."""
        return self._read(spark, name, self.table(name, run.day, run.run_id))

    def earlier_days(self, spark: SparkSession, window: DayWindow, run: Run | None) -> EarlierDays:
        """The state that the run of the day before left, without the history."""
        explanations = {one.break_id: one for one in Explanations(self.folder).in_force()}
        if run is None:
            return EarlierDays(explanations=explanations)
        items, entries, messages, failures, balances = (
            self.read_table(spark, name, run) for name in CARRIED_ON
        )
        is_next = run.result.end_ms == window.start_ms
        return EarlierDays(
            items,
            entries,
            messages,
            failures,
            balances if is_next else None,
            explanations=explanations,
        )

    def of_runs(self, spark: SparkSession, name: str, runs: Sequence[Run]) -> DataFrame | None:
        """A table of several runs, as far as it still exists."""
        tables = [self.table(name, run.day, run.run_id) for run in runs]
        found = [table for table in tables if table.parts]
        return self._read(spark, name, *found) if found else None

    def verify(self, run: Run, names: Iterable[str] | None = None) -> None:
        """Check that the files of a run's tables are unchanged.

        It hashes files and not rows, which needs no Spark and takes less than a second.

        Args:
            run: The run.
            names: The tables; all if left out.

        Raises:
            ReconcileRefused: A table was changed.
        """
        wanted = run.result.contents if names is None else names
        for name, found in self.fingerprints(run.day, run.run_id, wanted).items():
            if found != run.files.get(name):
                raise ReconcileRefused(
                    f"{name} of {run.day} changed since run {run.run_id} wrote "
                    "them: run the day again"
                )

    def _read(self, spark: SparkSession, name: str, *tables: WrittenTable) -> DataFrame:
        uris = (table.folder.uri for table in tables)
        return spark.read.schema(TABLES[name].ddl).parquet(*uris)

    def _remove_table(self, name: str, day: date, run: str, word: str) -> None:
        """Remove a table that differs from the new one.

        The same inputs give the same rows, unless txmq or Spark has changed. Then the run is not
        in force until it is complete again. A signed table stays, unless it was damaged and the
        new one equals the signed one.

        Raises:
            ReconcileRefused: The run is signed, and the new table differs.
        """
        place = self.table(name, day, run).folder
        if not place.files("*"):
            return
        if run in self._signatures.signed_runs(day.isoformat()):
            signed = read_run_file(self.folder.at("runs", day.isoformat(), run))
            if signed.result.contents.get(name) != word:
                raise ReconcileRefused(_SIGNED_ERROR.format(run=run, day=day, what=name))
        current = self.current(day)
        if current is not None and current.run_id == run:
            self.folder.at("runs", day.isoformat()).remove("current")
        place.remove_all()


def content_of(table: TableSchema, folder: Folder) -> str:
    """A hash of the rows in a folder's files, in any order.

    Raises:
        OSError: A file cannot be read.
        pyarrow.ArrowException: A file is not Parquet, or has other columns.
    """
    contents = ContentHash(table)
    folder.read_rows(folder.files("part-*"), contents.add)
    return contents.word


def _has_content(name: str, place: Folder, word: str) -> bool:
    """True if a table has the same rows already, perhaps cut into other files."""
    try:
        return bool(place.files("*")) and content_of(TABLES[name], place) == word
    except (OSError, pa.ArrowException):
        return False  # An unreadable table is not the same.
