"""The directory of results: what each run of each day has come to, and which of them is in force.

A run writes into places of its own, and nothing reads them before its last step, which names it as
the day's current one. One that dies before leaves the former in force; done again, it has the same
id, writes the same files, and what is whole already stays untouched.

    <directory>/results/<table>/business_date=D/run=<run id>/part-00000.parquet …
    <directory>/runs/D/<run id>/run.json, report.html, …
    <directory>/runs/D/current
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from txmq.errors import ReconcileRefused
from txmq.reconcile.causes import SPARK_ERRORS
from txmq.reconcile.chain import current_run_file, days_with_run, read_run_file
from txmq.reconcile.explanations import Explanations
from txmq.reconcile.ledgers import EarlierDays
from txmq.reconcile.parquet_files import (
    finalize_folder,
    fingerprint,
    move_into_place,
    parquet_options,
)
from txmq.reconcile.rules import DayWindow
from txmq.reconcile.signatures import Signatures
from txmq.reconcile.summary import Past, Run
from txmq.reconcile.tables import (
    BALANCES,
    ENTRIES,
    FAILURES,
    ITEMS,
    MATCHES,
    MESSAGES,
    PROOFS,
    TOTALS,
)
from txmq.reconcile.written_table import WrittenTable
from txmq.runtime.disk import LocalDisk

__all__ = ["CARRIED_ON", "Results", "content_hash", "open_results", "run_id"]

CARRIED_ON: Final = ("items", "entries", "messages", "failures", "balances")
"""The tables that a day reads of the run of the day before."""
_TABLES: Final[Mapping[str, str]] = {
    "matches": MATCHES.ddl,
    "items": ITEMS.ddl,
    "closed": ITEMS.ddl,
    "entries": f"{ENTRIES.ddl}, bank STRING",
    "messages": MESSAGES.ddl,
    "failures": FAILURES.ddl,
    "by_hand": MESSAGES.ddl,
    "balances": BALANCES.ddl,
    "proofs": PROOFS.ddl,
    "totals": TOTALS.ddl,
}
_SMALL: Final[Mapping[str, tuple[str, ...]]] = {
    "items": ("key",),
    "closed": ("key",),
    "proofs": ("proof", "bank", "account", "currency"),
    "totals": ("class", "currency"),
    "entries": ("key",),
    "messages": ("key",),
    "failures": ("key",),
    "by_hand": ("key",),
}
"""By what they are sorted; each is one file."""
_LARGE: Final[Mapping[str, tuple[str, ...]]] = {"balances": ("bank", "account", "currency")}
"""By what they are sorted within each of their parts."""
_AS_THEY_COME: Final = frozenset({"matches"})
"""They stand in the order of the books, and to sort them would take as long as to find them."""
_HASHES: Final = ("one_hash", "other_hash")
"""Of each row; each begins with its own name."""
_LOW: Final = 0xFFFFFFFF
_SIGNED_ERROR: Final = (
    "run {run} of {day} is signed, and {what} would be another now: raise `version` in the rules "
    "to have a run of its own beside it"
)


def run_id(
    day: date, rules_digest: str, extract_id: str, previous: str | None, explained: str = ""
) -> str:
    """A run's name: the same for the same date, rules and inputs.

    Args:
        day: The business date.
        rules_digest: Of the rules.
        extract_id: What was read.
        previous: The digest of the result whose items are carried on.
        explained: The digest of the explanations that hold.
    """
    named = [day.isoformat(), rules_digest, extract_id, previous or "", explained]
    return hashlib.sha256(msgspec.json.encode(named)).hexdigest()[:16]


def content_hash(table: DataFrame) -> str:
    """A table's content in a word, in whatever order and partitions its rows are: how many, and
    two sums of their hashes. It reads all of it.
    """
    return _word(_with_hashes(table).agg(*_sums()).collect()[0].asDict())


@contextmanager
def open_results(directory: str | Path) -> Iterator[Results]:
    """The results of a directory, which no other run writes to meanwhile.

    Raises:
        ReconcileRefused: Another run is at work there.
    """
    try:
        lock = LocalDisk(directory).lock()
    except BlockingIOError as error:
        raise ReconcileRefused(
            f"another run is at work in {directory}: wait until it has ended, and try again"
        ) from error
    try:
        for left in Path(directory).glob("results/*/*/.run=*.draft"):
            shutil.rmtree(left)  # By a run that was killed.
        yield Results(directory)
    finally:
        lock.release()


class Results:
    """What runs have written. Anybody may read; who writes has come by :func:`open_results`.

    Args:
        directory: The one that the rules name.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._signatures = Signatures(directory)

    def write_table(self, name: str, table: DataFrame, day: date, run: str) -> str:
        """Write a table of a run; returns its :func:`content_hash`, found on the way.

        Raises:
            ReconcileRefused: The run is signed, and this is not what was signed.
        """
        place = self._table(name, day, run)
        draft = place.with_name(f".{place.name}.draft")
        seen = Observation()
        ordered = _sort(name, _with_hashes(table)).observe(seen, *_sums()).drop(*_HASHES)
        ordered.write.mode("overwrite").options(**parquet_options(table.columns)).parquet(
            _url(draft)
        )
        finalize_folder(draft)
        word = _word(seen.get)
        if self._has_same_rows(table.sparkSession, name, place, word):
            shutil.rmtree(draft)
        else:
            self._remove_table(name, day, run, word)
            move_into_place(draft, place)
        return word

    def written_tables(self, day: date, run: str, names: Iterable[str]) -> dict[str, WrittenTable]:
        """Some tables of a run, to be read without Spark."""
        return {
            name: WrittenTable(name, sorted(self._table(name, day, run).glob("*.parquet")))
            for name in names
        }

    def fingerprints(self, day: date, run: str, names: Iterable[str]) -> dict[str, str]:
        """Of the files of some tables of a run, as they lie there."""
        return {name: fingerprint(self._table(name, day, run)) for name in names}

    def publish(self, run: Run, files: Mapping[str, bytes]) -> None:
        """Keep what was said of a run, and make it the one that is in force.

        Args:
            run: What it came to; the names under it are kept elsewhere.
            files: More of it by their names, such as ``report.html``. Those of a signed run stay
                as they were when it was signed.

        Raises:
            ReconcileRefused: The run is signed, and this is not what was signed.
        """
        assert run.result_digest == run.result.digest
        disk, day = LocalDisk(self.directory), run.result.business_date
        if run.run_id in self._signatures.signed_runs(day):
            signed = read_run_file(self.file(run, "run.json"), Run)
            if signed.result_digest != run.result_digest:
                raise ReconcileRefused(
                    _SIGNED_ERROR.format(run=run.run_id, day=day, what="its result")
                )
            # The same rows may lie in other files now.
            run, files = msgspec.structs.replace(signed, files=run.files), {}
        text = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(run, sign_off=None)))
        self.write_files(run, {**files, "run.json": text + b"\n"})
        # The last step: before it, the run is nothing to anybody.
        named = msgspec.json.encode({"run_id": run.run_id})
        disk.replace(f"runs/{day}/current", named + b"\n")

    def write_files(self, run: Run, files: Mapping[str, bytes]) -> None:
        """Say something anew of a run, such as who has signed it; its result stays as it is."""
        disk = LocalDisk(self.directory)
        for name, data in files.items():
            disk.replace(f"runs/{run.result.business_date}/{run.run_id}/{name}", data)

    def current(self, day: date) -> Run | None:
        """The run of a day that is in force, with the names under it; none before the first.

        Raises:
            ReconcileRefused: What is said of it cannot be read.
        """
        path = current_run_file(self.directory, day)
        return None if path is None else self.with_sign_off(read_run_file(path, Run))

    def with_sign_off(self, run: Run) -> Run:
        """A run with the names under it."""
        return msgspec.structs.replace(run, sign_off=self._signatures.last(run))

    def days(self) -> list[date]:
        """The days that have a run in force, oldest first."""
        return days_with_run(self.directory)

    def previous(self, day: date) -> Run | None:
        """The current run of the latest day before; there may be days between that have none."""
        before = [earlier for earlier in self.days() if earlier < day]
        return self.current(before[-1]) if before else None

    def chain(self, run: Run | None, since: date) -> list[Run]:
        """A run and those that it goes on from, back to a date and oldest first.

        They are the same whatever was run again since, so that what is made from them is, too.

        Raises:
            ReconcileRefused: What is said of one of them cannot be read.
        """
        found: list[Run] = []
        while run is not None and (day := date.fromisoformat(run.result.business_date)) >= since:
            found.append(run)
            before = f"runs/{day - timedelta(days=1)}/{run.previous_run_id}/run.json"
            path = self.directory / before
            run = read_run_file(path, Run) if path.exists() else None
        return found[::-1]

    def file(self, run: Run, name: str) -> Path:
        """Where something that was said of a run is."""
        return self.directory / "runs" / run.result.business_date / run.run_id / name

    def trend(self, day: date, most: int) -> tuple[Past, ...]:
        """The last days before this one, oldest first, so many at most."""
        before = [earlier for earlier in self.days() if earlier < day]
        runs = [self.current(earlier) for earlier in before[len(before) - most :] if most]
        return tuple(_past(run) for run in runs if run is not None)

    def read_table(self, spark: SparkSession, name: str, run: Run) -> DataFrame:
        """A table of a run."""
        day = date.fromisoformat(run.result.business_date)
        return self._read(spark, name, self._table(name, day, run.run_id))

    def earlier_days(self, spark: SparkSession, window: DayWindow, run: Run | None) -> EarlierDays:
        """What the run of the day before has left to a day, but for its history."""
        told = Explanations(self.directory).frame(spark)
        if run is None:
            return EarlierDays(explanations=told)
        items, entries, messages, failures, balances = (
            self.read_table(spark, name, run) for name in CARRIED_ON
        )
        is_next = run.result.end_ms == window.start_ms
        return EarlierDays(
            items, entries, messages, failures, balances if is_next else None, explanations=told
        )

    def closed(self, spark: SparkSession, runs: Sequence[Run]) -> DataFrame | None:
        """What runs have closed, as far as it is still there: key, and the history of each."""
        days = (
            (date.fromisoformat(earlier.result.business_date), earlier.run_id) for earlier in runs
        )
        places = [place for named in days if (place := self._table("closed", *named)).exists()]
        return self._read(spark, "closed", *places).select("key", "history") if places else None

    def verify(self, run: Run, names: Iterable[str] | None = None) -> None:
        """See that the files of a run's tables are still those that it has written.

        They are read, and not their rows: that takes no Spark, and less than a second where rows
        would take many.

        Args:
            run: The run.
            names: Of the tables; all of them where it is left out.

        Raises:
            ReconcileRefused: One of them was changed.
        """
        day = date.fromisoformat(run.result.business_date)
        wanted = run.result.contents if names is None else names
        for name, found in self.fingerprints(day, run.run_id, wanted).items():
            if found != run.files.get(name):
                raise ReconcileRefused(
                    f"{name} of {run.result.business_date} are not what run {run.run_id} has "
                    "written: they were changed since; run the day again"
                )

    def _table(self, name: str, day: date, run: str) -> Path:
        return self.directory / "results" / name / f"business_date={day}" / f"run={run}"

    def _read(self, spark: SparkSession, name: str, *places: Path) -> DataFrame:
        reader = spark.read
        if name in _TABLES:
            reader = reader.schema(_TABLES[name])
        return reader.parquet(*(_url(place) for place in places))

    def _has_same_rows(self, spark: SparkSession, name: str, place: Path, word: str) -> bool:
        """Whether the same rows lie there in other files: so many cores make so many parts."""
        try:
            return place.exists() and content_hash(self._read(spark, name, place)) == word
        except SPARK_ERRORS:
            return False  # What cannot be read is not the same.

    def _remove_table(self, name: str, day: date, run: str, word: str) -> None:
        """Make room for a table that is another than the one that lies there.

        The same inputs come to the same, unless txmq or Spark has changed. Where that is so, the
        run is not in force until it is whole again. One that somebody has signed stays, unless its
        table was damaged and this is the one that was signed.

        Raises:
            ReconcileRefused: It is signed, and this is another.
        """
        place = self._table(name, day, run)
        if not place.exists():
            return
        if run in self._signatures.signed_runs(day.isoformat()):
            signed = read_run_file(
                self.directory / "runs" / day.isoformat() / run / "run.json", Run
            )
            if signed.result.contents.get(name) != word:
                raise ReconcileRefused(_SIGNED_ERROR.format(run=run, day=day, what=name))
        current = self.current(day)
        if current is not None and current.run_id == run:
            LocalDisk(self.directory).remove(f"runs/{day}/current")
        shutil.rmtree(place)


def _sort(name: str, table: DataFrame) -> DataFrame:
    """Its rows in files and places that depend on nothing but what they are."""
    if name in _AS_THEY_COME:
        return table
    if name in _SMALL:
        first, parted = _SMALL[name], table.coalesce(1)
    else:
        # It was parted by the same when it was worked out.
        first, parted = _LARGE[name], table
    # Rows with the same hashes are the same; to compare each of many columns is much to compile.
    return parted.sortWithinPartitions(*first, *_HASHES)


def _with_hashes(table: DataFrame) -> DataFrame:
    """With two hashes of each row. A place that is empty leaves a hash as it is, so that it is told
    which are.
    """
    names = [f"`{name}`" for name in sorted(table.columns)]
    empty = (f"shiftleft(bigint({name} IS NULL), {at})" for at, name in enumerate(names))
    row = ", ".join([*names, " | ".join(empty)])
    # In words of SQL: hundreds of columns that are made one by one are as many questions to Java.
    hashes = (f"xxhash64('{name}', {row}) AS {name}" for name in _HASHES)
    return table.selectExpr("*", *hashes)


def _sums() -> list[Column]:
    """Of the hashes, in halves, whose sums fit."""
    sums = ["count(1) AS rows"]
    for name in _HASHES:
        sums.append(f"sum({name} & {_LOW}L) AS {name}_low")
        sums.append(f"sum(shiftright({name}, 32)) AS {name}_high")
    return [F.expr(expression) for expression in sums]


def _word(found: Mapping[str, Any]) -> str:
    halves = [[int(found[f"{name}_{half}"] or 0) for half in ("low", "high")] for name in _HASHES]
    one, other = ((low + (high << 32)) % 2**64 for low, high in halves)
    return f"{found['rows']}-{one:016x}{other:016x}"


def _past(run: Run) -> Past:
    result = run.result
    return Past(
        business_date=result.business_date,
        transfers=result.transfers,
        match_rate=result.match_rate,
        breaks=result.breaks,
        open=sum(total.transfers for total in result.totals if total.group == "open"),
        at_risk=result.at_risk,
        verdict=result.verdict,
    )


def _url(place: Path) -> str:
    """Spark's own default may be another file system."""
    return f"file://{place.resolve()}"
