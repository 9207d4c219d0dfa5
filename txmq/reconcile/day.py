"""One function that reconciles a day: it extracts, checks, matches, proves and judges.

The :class:`Day` that it returns has DataFrames. :meth:`Day.write` publishes the result as its last
step, so a run that fails leaves the day's former result in force.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from contextlib import closing
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from txmq.errors import ReconcileRefused
from txmq.reconcile.core import ReconciledDay, reconcile_frames
from txmq.reconcile.differences import EXPLAINING, EXPLAINING_CLASSES, IS_OF_TRANSFER, carry_on
from txmq.reconcile.explanations import Explanations
from txmq.reconcile.extract.extraction import extract_day
from txmq.reconcile.extract.frame_books import GivenFrames
from txmq.reconcile.extract.loader import files_in, load
from txmq.reconcile.extract.manifest import FILE, Manifest
from txmq.reconcile.frames import contents_of, exact_sum, read, read_table
from txmq.reconcile.ledgers import CARRIED_ON, Files, Role, TableFile
from txmq.reconcile.progress import Progress
from txmq.reconcile.proofs import proofs_of
from txmq.reconcile.report.metrics import exposition
from txmq.reconcile.report.page import page
from txmq.reconcile.results import Results, open_results, run_id
from txmq.reconcile.rules import Rules
from txmq.reconcile.rules_file import read_rules
from txmq.reconcile.storage import Directory, Folder
from txmq.reconcile.summary import Result, Run, Verdict
from txmq.reconcile.tables import ENTRIES, TABLES
from txmq.reconcile.verdict import Findings, judge
from txmq.runtime.clock import SystemClock

__all__ = ["Day", "check_all_was_read", "earlier_days", "findings_in", "reconcile"]

Tables: TypeAlias = DataFrame | Mapping[str, DataFrame]
_PARQUET: Final = {
    "compression": "zstd",
    # No _SUCCESS file: the run has its own file that puts it in force.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
TREND: Final = 30
"""The number of earlier days that the report shows."""


class _Inputs(NamedTuple):
    """The inputs of a day."""

    rules: Rules
    manifest: Manifest
    past: Run | None
    people: Explanations
    began_ms: int


def reconcile(
    spark: SparkSession,
    *,
    rules: Rules | Path | str,
    date: dt.date | str,
    banks: Mapping[str, Tables] | None = None,
    messages: Tables | None = None,
    extract_id: str | None = None,
    progress: Progress | None = None,
) -> Day:
    """Reconcile a business date: both banks' books and the messages between them.

    The ledgers are read once, into an extract below the rules' directory, so a rerun sees what the
    first run saw. The session may be classic or Spark Connect; it is never stopped.

    Args:
        spark: The session that reads and reconciles.
        rules: The rules, or the path of their file.
        date: The business date.
        banks: DataFrames that replace a bank's database or files, by the bank's name: its journal,
            or ``{"entries": ..., "accounts": ...}``. They have the columns that the rules name.
        messages: A DataFrame that replaces the log, with the columns of ``messages`` as
            ``format("txmq.log")`` gives them; or ``{"messages": ..., "failures": ...,
            "offsets": ...}``.
        extract_id: An earlier extract to reuse; by default, a new one is taken.
        progress: Measures and shows the stages.

    Raises:
        ConfigError: The rules are invalid.
        ReconcileRefused: A ledger cannot be read or contradicts the rules, or the day before was
            not reconciled. Nothing was published.
    """
    rules = rules if isinstance(rules, Rules) else read_rules(Path(rules))
    day = date if isinstance(date, dt.date) else dt.date.fromisoformat(date)
    progress = progress or Progress()
    # Include the time that Spark took to start, before the first of several days.
    before_s = sum(stage.seconds for stage in progress.stages)
    began_ms = SystemClock().wall_ms() - round(before_s * 1000)
    results = Results(rules.directory)
    past = _day_before(rules, day, results)
    with progress.stage("extract") as stage:
        if extract_id is None:
            given = GivenFrames.of(rules, banks or {}, messages)
            manifest = extract_day(spark, rules, day, results.folder, given=given)
        else:
            manifest = Manifest.read(results.folder.at("extracts", day.isoformat(), extract_id))
            if manifest.reading_digest != rules.reading_digest:
                raise ReconcileRefused(
                    f"extract {extract_id} was taken by rules that read the ledgers differently: "
                    "take a new one, without --extract"
                )
        stage.rows = manifest.rows
    extract = results.folder.at("extracts", day.isoformat(), manifest.extract_id)
    if extract_id is not None:
        with progress.stage("check the extract") as stage:
            stage.rows = manifest.rows
            load(spark, manifest, extract)
    tables = files_in(manifest, extract) | earlier_days(rules, day, results, past)
    people = Explanations(results.folder)
    notes = {note.break_id: note for note in people.in_force()}
    with progress.stage("match") as stage:
        stage.rows = manifest.rows
        outcome = reconcile_frames(read(spark, tables), notes, rules, day, manifest.as_of_ms)
    with progress.stage("prove"):
        found_today = proofs_of(outcome, rules, manifest.sources).toArrow()
        left = results.table("proofs", past.day, past.run_id).pieces() if past else ()
        proofs = spark.createDataFrame(carry_on(found_today, left, rules, day))
    return Day(spark, _Inputs(rules, manifest, past, people, began_ms), outcome, proofs, progress)


class Day:
    """A reconciled day. Its tables are DataFrames, which Spark computes when they are read."""

    def __init__(
        self,
        spark: SparkSession,
        inputs: _Inputs,
        outcome: ReconciledDay,
        proofs: DataFrame,
        progress: Progress,
    ) -> None:
        self.tables: Mapping[str, DataFrame] = outcome.tables | {"proofs": proofs}
        """All tables of the day, by name."""
        self._spark = spark
        self._inputs = inputs
        self._outcome = outcome
        self._progress = progress

    @property
    def date(self) -> dt.date:
        """The business date."""
        return dt.date.fromisoformat(self._inputs.manifest.business_date)

    @property
    def items(self) -> DataFrame:
        """The transfers that are not agreed at the end of the day: breaks, and transfers that are
        in flight or explained.
        """
        return self.tables["items"]

    @property
    def breaks(self) -> DataFrame:
        """The items that a person must clear."""
        return self.items.where(F.col("group") == "break")

    @property
    def matches(self) -> DataFrame:
        """The transfers that are agreed."""
        return self.tables["matches"]

    @property
    def balances(self) -> DataFrame:
        """The balances of each bank's accounts over the day."""
        return self.tables["balances"]

    @property
    def proofs(self) -> DataFrame:
        """The balance proofs, and the differences that are not corrected yet."""
        return self.tables["proofs"]

    @property
    def totals(self) -> DataFrame:
        """The sums of each class."""
        return self.tables["totals"]

    @cached_property
    def result(self) -> Result:
        """The summary of the day, with its verdict.

        Raises:
            ReconcileRefused: The sums do not add up, which is an error in txmq or Spark.
        """
        return self._judge(self.tables, {})

    @property
    def verdict(self) -> Verdict:
        """``clean``, ``within limits`` or ``over limits``."""
        return self.result.verdict

    def write(self, path: Directory | None = None) -> Run:
        """Write the day's tables and its report, and put them in force.

        Args:
            path: The directory of results; by default, the rules' directory.

        Raises:
            ReconcileRefused: Another run is writing there, the result is signed and would change,
                or the day before has a newer result. The day's former result stays in force.
        """
        with open_results(self._inputs.rules.directory if path is None else path) as results:
            return self._publish(results)

    def release(self) -> None:
        """Free the day's cached frames; reading a table after that computes it again."""
        self._outcome.release()

    def _publish(self, results: Results) -> Run:
        rules, manifest, past, people, began_ms = self._inputs
        day, progress = self.date, self._progress
        digest = past.result_digest if past else None
        now = Results(rules.directory).previous(day)
        if (now.result_digest if now else None) != digest:
            raise ReconcileRefused(
                f"the day before {day} has another result than when this day was reconciled: "
                "reconcile it again"
            )
        name = run_id(day, rules.digest, manifest.extract_id, digest, people.digest)
        with progress.stage("write"):
            contents = _write(self._spark, results, self.tables, day, name)
        with progress.stage("judge"):
            places = {table: results.table(table, day, name) for table in contents}
            found = self._judge(_written(self._spark, places), contents)
        with progress.stage("report"):
            done = Run(
                run_id=name,
                extract_id=manifest.extract_id,
                result=found,
                result_digest=found.digest,
                trend=results.trend(day, TREND),
                stages=progress.stages,
                began_ms=began_ms,
                ended_ms=SystemClock().wall_ms(),
                txmq_version=version("txmq"),
                spark_version=pyspark.__version__,
                previous_run_id=past.run_id if past else None,
                previous_digest=digest,
                notes=manifest.notes,
            )
            done = results.with_sign_off(done)
            metrics = exposition(done).encode()
            files = {"report.html": page(done), "metrics.prom": metrics,
                     "summary.json": done.as_json()}  # fmt: skip
            results.publish(done, files)
            done = results.current(day) or done
            if rules.recon is not None:
                # Only this needs SQLAlchemy.
                from txmq.reconcile.schema import ReconSchema

                with closing(ReconSchema(rules.recon)) as schema:
                    schema.write(done, results.table("items", day, name).rows())
        progress.stages = ()  # The next date measures its own.
        return done

    def _judge(self, tables: Mapping[str, DataFrame], contents: Mapping[str, str]) -> Result:
        rules, manifest, _, people, _ = self._inputs
        check_all_was_read(tables["balances"], manifest)
        findings = findings_in(tables, rules.limits.evidence)
        return judge(findings, rules, manifest, contents, people)


def _write(
    spark: SparkSession, results: Results, tables: Mapping[str, DataFrame], day: dt.date, run: str
) -> dict[str, str]:
    """Write the tables of a run; returns the hash of each table's rows, as read from its files."""
    drafts = {table: results.draft(table, run) for table in tables}
    for table, frame in tables.items():
        frame.write.options(**_PARQUET).parquet(drafts[table].spark_path)
    written = _written(spark, drafts)
    contents = contents_of({table: (TABLES[table], frame) for table, frame in written.items()})
    for table, draft in drafts.items():
        results.take(draft, table, day, run, contents[table])
    return contents


def _written(spark: SparkSession, folders: Mapping[str, Folder]) -> dict[str, DataFrame]:
    """The tables in these folders, by name."""
    return {
        table: read_table(spark, TABLES[table], [TableFile(folder.spark_path)])
        for table, folder in folders.items()
    }


def _day_before(rules: Rules, day: dt.date, results: Results) -> Run | None:
    """The run of the day before, whose open items and differences this run continues."""
    past = results.previous(day)
    if past is None:
        return None
    if not past.result.is_final:
        raise ReconcileRefused(f"{past.day} was reconciled before it was over: run it again first")
    if past.result.end_ms >= rules.day.window(day).start_ms:
        if (why := results.why_outdated(past, day)) is not None:
            raise ReconcileRefused(why)
        results.verify(past, (*CARRIED_ON, "proofs"))
        return past
    missing = past.day + dt.timedelta(days=1)
    raise ReconcileRefused(
        f"{missing} was not reconciled, and its open items would be lost: run it first, or all "
        f"days with --from {missing} --to {day}"
    )


def earlier_days(rules: Rules, day: dt.date, results: Results, past: Run | None) -> Files:
    """The tables that earlier days left.

    Agreed and closed transfers, and old rows, come from the dates of ``day.history`` whose results
    and extracts still exist.
    """
    runs = results.chain(past, day - dt.timedelta(days=rules.day.history))
    found: Files = {
        Role.AGREED: results.files("matches", *runs),
        Role.CLOSED: results.files("closed", *runs),
        Role.OLD_ENTRIES: [],
        Role.OLD_MESSAGES: [],
    }
    if past is not None:
        found |= {role: results.files(name, past) for name, role in CARRIED_ON.items()}
        if past.result.end_ms != rules.day.window(day).start_ms:
            del found[Role.BALANCES]
    for run in runs:
        folder = results.folder.at("extracts", run.result.business_date, run.extract_id)
        if folder.exists(FILE):
            extract = files_in(Manifest.read(folder), folder)
            found[Role.OLD_ENTRIES] += extract[Role.ENTRIES]
            found[Role.OLD_MESSAGES] += extract[Role.MESSAGES]
    return found


_GROUPS: Final = ("class", "currency", "bucket", "age_days", "first_seen")


def findings_in(tables: Mapping[str, DataFrame], most: int) -> Findings:
    """Add up the tables of a day, and find the rows to show: up to ``most`` in each class."""
    items, by_hand = tables["items"], tables["by_hand"]
    proofs = tables["proofs"].toArrow()
    groups = items.groupBy(*_GROUPS).agg(
        F.count("*").alias("count"), exact_sum(F.col("amount")).alias("amount")
    )
    oldest = Window.partitionBy("class").orderBy(F.desc("age_days"), F.desc("amount"), "key")
    first = items.withColumn("place", F.row_number().over(oldest)).where(F.col("place") <= most)
    latest = by_hand.orderBy(F.desc_nulls_last("decided_ms"), "position").limit(most)
    return Findings(
        totals=_rows(tables["totals"]),
        proofs=proofs,
        explaining=_explaining(items, proofs),
        groups=_rows(groups),
        items=_rows(first.drop("place")),
        decisions=_rows(latest),
        closed=tables["closed"].count(),
        decided_by_hand=by_hand.count(),
    )


def _explaining(items: DataFrame, proofs: pa.Table) -> list[dict[str, Any]]:
    failed = proofs.filter(IS_OF_TRANSFER)["account"]
    if not failed.length():
        return []
    keys = items.sparkSession.createDataFrame(pa.table({"key": failed}))
    some = items.where(F.col("class").isin(*(one.value for one in EXPLAINING_CLASSES)))
    return _rows(some.join(keys, "key", "left_semi").select(*EXPLAINING))


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def check_all_was_read(balances: DataFrame, manifest: Manifest) -> None:
    """Check that the accounts' bookings equal the extract, to the row and to the cent.

    Raises:
        ReconcileRefused: They differ: the workers did not read the whole extract.
    """
    sums = balances.groupBy("bank", "currency").agg(
        F.sum("rows").alias("rows"), exact_sum(F.col("moved")).alias("moved")
    )
    found: dict[tuple[str, str], Row] = {
        (row["bank"], row["currency"]): row for row in sums.collect()
    }
    for control in (one for one in manifest.controls if one.table == ENTRIES.name):
        bank = control.source
        rows = sum(row["rows"] for (name, _), row in found.items() if name == bank)
        amounts = {
            name: int(found[bank, name]["moved"]) if (bank, name) in found else 0
            for name in control.amounts
        }
        now = msgspec.structs.replace(control, rows=rows, amounts=amounts)
        if (differs := control.difference(now)) is not None:
            raise ReconcileRefused(f"the workers did not read the whole extract: {differs}")
