"""A run: it extracts, checks, reconciles, writes, judges and publishes a day, in this order.

A step that fails ends the run with an error that gives the reason. The day's former result stays
in force.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import date, timedelta
from functools import partial, reduce
from importlib.metadata import version
from typing import Final

import pyspark
from pyspark.sql import DataFrame, SparkSession

from txmq.errors import ReconcileRefused
from txmq.reconcile.chain import why_outdated
from txmq.reconcile.core import reconcile
from txmq.reconcile.explanations import Explanations
from txmq.reconcile.extract.extraction import extract_day
from txmq.reconcile.extract.loader import load, load_unchecked
from txmq.reconcile.extract.manifest import FILE, Manifest, place, read_manifest
from txmq.reconcile.ledgers import EarlierDays, Ledgers
from txmq.reconcile.log.log_extract import extract_log
from txmq.reconcile.progress import Progress
from txmq.reconcile.proofs import proofs_of
from txmq.reconcile.report.metrics import exposition
from txmq.reconcile.report.page import page
from txmq.reconcile.results import CARRIED_ON, Results, run_id
from txmq.reconcile.rules import Recon, Rules
from txmq.reconcile.schema import ReconSchema
from txmq.reconcile.spark import check_reach, fit_to_rows, warm_up
from txmq.reconcile.summary import Run
from txmq.reconcile.verdict import judge
from txmq.reconcile.written_table import WrittenTable
from txmq.runtime.clock import Clock, SystemClock

__all__ = ["run"]

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

    Args:
        rules: The places of the ledgers, the meaning of their columns, and the limits.
        day: The business date.
        spark: The session that does the work.
        results: The target of the result.
        progress: Receives the stages.
        extract_id: An earlier extract to use; a new one is taken if left out.
        clock: Stamps the run.

    Raises:
        ReconcileRefused: The run failed; nothing was published.
    """
    clock = clock or SystemClock()
    began_ms, before = clock.wall_ms(), len(progress.stages)
    check_reach(spark, results.folder.uri)
    past = _day_before(rules, day, results)
    manifest = _extract(rules, day, spark, results, progress, extract_id)
    extract = place(results.folder, manifest)
    with progress.stage("check the extract") as stage:
        stage.rows = rows = sum(control.rows for control in manifest.controls)
        fit_to_rows(spark, rows)
        ledgers = load(spark, manifest, extract)
    people = Explanations(results.folder)
    explained = people.digest
    before_this = past.result_digest if past else None
    name = run_id(day, rules.digest, manifest.extract_id, before_this, explained)
    try:
        yesterday = _yesterday(rules, day, spark, results, past)
        with progress.stage("match") as stage:
            stage.rows = rows
            outcome = reconcile(ledgers, yesterday, rules, day, manifest.as_of_ms)
        with progress.stage("prove and write"):
            contents = results.write_tables(outcome.tables, day, name)
            balances = results.table("balances", day, name)
            proofs = proofs_of(outcome, balances.pieces(), rules, manifest.sources)
            contents["proofs"] = results.write_table("proofs", proofs, day, name)
        with progress.stage("judge"):
            tables = {table: results.table(table, day, name) for table in contents}
            found = judge(tables, rules, manifest, contents, people)
    finally:
        spark.catalog.clearCache()
    with progress.stage("report"):
        done = Run(
            run_id=name,
            extract_id=manifest.extract_id,
            result=found,
            result_digest=found.digest,
            trend=results.trend(day, TREND),
            stages=progress.stages[before:],
            began_ms=began_ms,
            ended_ms=clock.wall_ms(),
            txmq_version=version("txmq"),
            spark_version=pyspark.__version__,
            previous_run_id=past.run_id if past else None,
            previous_digest=before_this,
            files=results.fingerprints(day, name, found.contents),
            notes=manifest.notes,
        )
        done = results.with_sign_off(done)
        results.publish(
            done,
            {
                "report.html": page(done),
                "metrics.prom": exposition(done).encode(),
                "summary.json": done.as_json(),
            },
        )
        done = results.current(day) or done
        if rules.recon is not None:
            _write_back(rules.recon, done, tables["items"])
    return done


def _day_before(rules: Rules, day: date, results: Results) -> Run | None:
    """The run of the day before, whose open items this run continues.

    Raises:
        ReconcileRefused: A day in between was not reconciled, an earlier day was run again, or a
            table was changed.
    """
    past = results.previous(day)
    if past is None:
        return None
    if past.result.end_ms >= rules.day.window(day).start_ms:
        if (why := why_outdated(results.folder, past, day)) is not None:
            raise ReconcileRefused(why)
        results.verify(past, CARRIED_ON)
        return past
    missing = past.day + timedelta(days=1)
    raise ReconcileRefused(
        f"{missing} was not reconciled, and its open items would be lost: run it first, or all "
        f"days with --from {missing} --to {day}"
    )


def _extract(
    rules: Rules,
    day: date,
    spark: SparkSession,
    results: Results,
    progress: Progress,
    extract_id: str | None,
) -> Manifest:
    with progress.stage("extract") as stage:
        if extract_id is None:
            # Workers that read a cluster write into the draft, which may be only here.
            is_shared = results.folder.local is not None or not rules.log.cluster
            take_log = partial(extract_log, spark=spark if is_shared else None)
            pool = ThreadPoolExecutor(1)
            pool.submit(warm_up, spark)
            pool.shutdown(wait=False)
            return extract_day(rules, day, take_log=take_log, spark=spark, progress=stage.count)
        manifest = read_manifest(results.folder.at("extracts", day.isoformat(), extract_id))
        if manifest.reading_digest != rules.reading_digest:
            raise ReconcileRefused(
                f"extract {extract_id} was taken by rules that read the ledgers differently: "
                "take a new one, without --extract"
            )
        return manifest


def _yesterday(
    rules: Rules, day: date, spark: SparkSession, results: Results, past: Run | None
) -> EarlierDays:
    """The state that earlier days left, with the history of ``day.history`` dates."""
    runs = results.chain(past, day - timedelta(days=rules.day.history))
    closed, agreed = (results.of_runs(spark, name, runs) for name in ("closed", "matches"))
    return results.earlier_days(spark, rules.day.window(day), past)._replace(
        history=_history(results, spark, runs),
        agreed=None if agreed is None else agreed.select("key"),
        closed=None if closed is None else closed.select("key", "history"),
    )


def _history(results: Results, spark: SparkSession, runs: Sequence[Run]) -> Ledgers | None:
    """The extracts of these runs, as far as they still exist."""
    some: list[Ledgers] = []
    for earlier in runs:
        day = earlier.result.business_date
        folder = results.folder.at("extracts", day, earlier.extract_id)
        if folder.exists(FILE):
            some.append(load_unchecked(spark, read_manifest(folder), folder))
    if not some:
        return None
    return Ledgers(*(reduce(DataFrame.unionByName, tables) for tables in zip(*some, strict=True)))


def _write_back(recon: Recon, done: Run, items: WrittenTable) -> None:
    with closing(ReconSchema(recon)) as schema:
        schema.write(done, (row for piece in items.pieces() for row in piece.to_pylist()))
