"""A run: it extracts, checks, reconciles, writes, judges and publishes a day, in this order.

A step that fails ends the run with an error that gives the reason. The day's former result stays
in force.
"""

from __future__ import annotations

from contextlib import closing
from datetime import date, timedelta
from importlib.metadata import version
from typing import Final

import pyspark
from pyspark.sql import DataFrame, SparkSession

from txmq.errors import ReconcileRefused
from txmq.reconcile.core import reconcile
from txmq.reconcile.differences import carry_on
from txmq.reconcile.explanations import Explanations
from txmq.reconcile.extract.extraction import extract_day
from txmq.reconcile.extract.loader import files_in, load
from txmq.reconcile.extract.manifest import FILE, Manifest
from txmq.reconcile.frames import contents_of, read
from txmq.reconcile.ledgers import CARRIED_ON, Files, Role
from txmq.reconcile.progress import Progress
from txmq.reconcile.proofs import proofs_of
from txmq.reconcile.report.metrics import exposition
from txmq.reconcile.report.page import page
from txmq.reconcile.results import Results, run_id
from txmq.reconcile.rules import Rules
from txmq.reconcile.schema import ReconSchema
from txmq.reconcile.summary import Run
from txmq.reconcile.tables import TABLES
from txmq.reconcile.verdict import judge
from txmq.runtime.clock import Clock, SystemClock

__all__ = ["earlier_days", "run"]

_PARQUET: Final = {
    "compression": "zstd",
    # Its file says that a job has ended; here that is said by the run's own.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
TREND: Final = 30
"""The number of earlier days that the report shows."""


def run(
    rules: Rules,
    day: date,
    spark: SparkSession,
    results: Results,
    progress: Progress,
    *,
    extract_id: str | None = None,
    clock: Clock | None = None,
) -> Run:
    """Reconcile a day, and publish the result.

    ``extract_id`` names an earlier extract to use; a new one is taken if left out.

    Raises:
        ReconcileRefused: The run failed; nothing was published.
    """
    clock = clock or SystemClock()
    # Spark's start before the first of several days counts, too.
    before_s = sum(stage.seconds for stage in progress.stages)
    began_ms = clock.wall_ms() - round(before_s * 1000)
    past = _day_before(rules, day, results)
    with progress.stage("extract") as stage:
        if extract_id is None:
            manifest = extract_day(spark, rules, day, results.folder)
            stage.rows = manifest.rows
        else:
            manifest = Manifest.read(results.folder.at("extracts", day.isoformat(), extract_id))
            if manifest.reading_digest != rules.reading_digest:
                raise ReconcileRefused(
                    f"extract {extract_id} was taken by rules that read the ledgers differently: "
                    "take a new one, without --extract"
                )
    extract = results.folder.at("extracts", day.isoformat(), manifest.extract_id)
    if extract_id is not None:
        with progress.stage("check the extract") as stage:
            stage.rows = manifest.rows
            load(spark, manifest, extract)
    tables = files_in(manifest, extract)
    people = Explanations(results.folder)
    before_this = past.result_digest if past else None
    name = run_id(day, rules.digest, manifest.extract_id, before_this, people.digest)
    tables |= earlier_days(rules, day, results, past)
    notes = {note.break_id: note for note in people.in_force()}
    with progress.stage("match") as stage:
        stage.rows = manifest.rows
        outcome = reconcile(read(spark, tables), notes, rules, day, manifest.as_of_ms)
    with progress.stage("prove and write"):
        found_today = proofs_of(outcome, rules, manifest.sources).toArrow()
        left = results.table("proofs", past.day, past.run_id).pieces() if past else ()
        proofs = spark.createDataFrame(carry_on(found_today, left, rules, day))
        contents = _write(spark, results, outcome.tables | {"proofs": proofs}, day, name)
        outcome.release()
    with progress.stage("judge"):
        written = {table: results.table(table, day, name) for table in contents}
        found = judge(written, rules, manifest, contents, people)
    with progress.stage("report"):
        done = Run(
            run_id=name,
            extract_id=manifest.extract_id,
            result=found,
            result_digest=found.digest,
            trend=results.trend(day, TREND),
            stages=progress.stages,
            began_ms=began_ms,
            ended_ms=clock.wall_ms(),
            txmq_version=version("txmq"),
            spark_version=pyspark.__version__,
            previous_run_id=past.run_id if past else None,
            previous_digest=before_this,
            notes=manifest.notes,
        )
        done = results.with_sign_off(done)
        metrics = exposition(done).encode()
        files = {"report.html": page(done), "metrics.prom": metrics, "summary.json": done.as_json()}
        results.publish(done, files)
        done = results.current(day) or done
        if rules.recon is not None:
            with closing(ReconSchema(rules.recon)) as schema:
                schema.write(done, written["items"].rows())
    progress.stages = ()  # The next date has its own.
    return done


def _write(
    spark: SparkSession, results: Results, tables: dict[str, DataFrame], day: date, run: str
) -> dict[str, str]:
    """Write the tables of a run; the hash of each one's rows, as they are in its files."""
    drafts = {table: results.draft(table, run) for table in tables}
    for table, frame in tables.items():
        # Spark makes files of a good size, a single one of a small table.
        frame.hint("rebalance").write.options(**_PARQUET).parquet(drafts[table].spark_path)
    contents = contents_of({
        table: (TABLES[table], spark.read.schema(TABLES[table].ddl).parquet(draft.spark_path))
        for table, draft in drafts.items()
    })  # fmt: skip
    for table, draft in drafts.items():
        results.take(draft, table, day, run, contents[table])
    return contents


def _day_before(rules: Rules, day: date, results: Results) -> Run | None:
    """The run of the day before, whose open items and differences this run continues."""
    past = results.previous(day)
    if past is None:
        return None
    if past.result.end_ms >= rules.day.window(day).start_ms:
        if (why := results.why_outdated(past, day)) is not None:
            raise ReconcileRefused(why)
        results.verify(past, (*CARRIED_ON, "proofs"))
        return past
    missing = past.day + timedelta(days=1)
    raise ReconcileRefused(
        f"{missing} was not reconciled, and its open items would be lost: run it first, or all "
        f"days with --from {missing} --to {day}"
    )


def earlier_days(rules: Rules, day: date, results: Results, past: Run | None) -> Files:
    """The tables that earlier days left.

    Those of ``day.history`` have the last dates, as far as their extracts still exist.
    """
    runs = results.chain(past, day - timedelta(days=rules.day.history))
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
