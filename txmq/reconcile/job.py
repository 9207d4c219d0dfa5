"""A run: a day is extracted, checked, reconciled, judged, written and published, in this order.

Whatever cannot be done ends it with an error that says why, and leaves the day's former result in
force.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from functools import reduce
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import DataFrame, SparkSession

from txmq.errors import ReconcileRefused
from txmq.reconcile.chain import outdated
from txmq.reconcile.core import reconcile
from txmq.reconcile.explaining import Explanations
from txmq.reconcile.extract.loading import load, load_unchecked
from txmq.reconcile.extract.manifest import FILE, Manifest, place, read_manifest
from txmq.reconcile.extract.taking import take
from txmq.reconcile.judging import judged
from txmq.reconcile.ledgers import Ledgers
from txmq.reconcile.log.taking import extract_log
from txmq.reconcile.progress import Progress
from txmq.reconcile.report.figures import exposition
from txmq.reconcile.report.page import page
from txmq.reconcile.report.summary_json import as_json
from txmq.reconcile.results import CARRIED_ON, Results, run_id
from txmq.reconcile.rules import Rules
from txmq.reconcile.schema import ReconSchema
from txmq.reconcile.spark import sized
from txmq.reconcile.summary import Result, Run
from txmq.runtime.clock import Clock, SystemClock

__all__ = ["run"]

TREND: Final = 30
"""So many earlier days the report shows."""


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
    """Reconcile a day, and publish what it came to.

    Args:
        rules: Where the ledgers are, what they mean, and what is forgiven.
        day: The business date.
        spark: Does the work.
        results: Where it is written.
        progress: Is told how far it is.
        extract_id: An extract that was taken before; a new one is taken where it is left out.
        clock: Tells when it ran.

    Raises:
        ReconcileRefused: It cannot be run; nothing was published.
    """
    clock = clock or SystemClock()
    began_ms, before = clock.wall_ms(), len(progress.stages)
    past = _day_before(rules, day, results)
    manifest = _extracted(rules, day, spark, progress, extract_id)
    directory = place(rules.directory, manifest)
    with progress.stage("check the extract") as stage:
        stage.rows = sum(control.rows for control in manifest.controls)
        sized(spark, stage.rows)
        ledgers = load(spark, manifest, directory)
    told = Explanations(results.directory).digest
    before_this = past.result_digest if past else None
    name = run_id(day, rules.digest, manifest.extract_id, before_this, told)
    try:
        found = _worked_out(rules, day, spark, results, progress, manifest, ledgers, past, name)
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
        )
        done = results.named(done)
        results.publish(
            done,
            {
                "report.html": page(done),
                "metrics.prom": exposition(done).encode(),
                "summary.json": as_json(done),
            },
        )
        done = results.current(day) or done
        if rules.recon is not None:
            _write_back(rules, spark, results, done)
    return done


def _day_before(rules: Rules, day: date, results: Results) -> Run | None:
    """The run that this one goes on from.

    Raises:
        ReconcileRefused: There are days between that nobody has reconciled, or it does not hold any
            more: a day before was run again, or a table was changed.
    """
    past = results.previous(day)
    if past is None:
        return None
    if past.result.end_ms >= rules.day.window(day).start_ms:
        if (why := outdated(results.directory, past, day)) is not None:
            raise ReconcileRefused(why)
        results.verify(past, CARRIED_ON)
        return past
    missing = date.fromisoformat(past.result.business_date) + timedelta(days=1)
    raise ReconcileRefused(
        f"{missing} was not reconciled, and what was open then would be lost: run it first, or all "
        f"of them with --from {missing} --to {day}"
    )


def _extracted(
    rules: Rules, day: date, spark: SparkSession, progress: Progress, extract_id: str | None
) -> Manifest:
    with progress.stage("extract") as stage:
        if extract_id is None:

            def count(source: str, rows: int) -> None:
                del source
                stage.rows += rows

            return take(rules, day, take_log=extract_log, spark=spark, progress=count)
        found = Path(rules.directory) / "extracts" / day.isoformat() / extract_id
        manifest = read_manifest(found)
        if manifest.reading_digest != rules.reading_digest:
            raise ReconcileRefused(
                f"extract {extract_id} was taken by rules that read the ledgers otherwise: take a "
                "new one, without --extract"
            )
        return manifest


def _worked_out(
    rules: Rules,
    day: date,
    spark: SparkSession,
    results: Results,
    progress: Progress,
    manifest: Manifest,
    ledgers: Ledgers,
    past: Run | None,
    name: str,
) -> Result:
    """What the day came to, with its tables written."""
    window = rules.day.window(day)
    yesterday = results.yesterday(spark, window, past)
    looked_back = results.chain(past, day - timedelta(days=rules.day.history))
    yesterday = yesterday._replace(
        history=_history(rules, spark, looked_back), closed=results.closed(spark, looked_back)
    )
    with progress.stage("match") as stage:
        stage.rows = sum(control.rows for control in manifest.controls)
        outcome = reconcile(ledgers, yesterday, rules, day, manifest.as_of_ms)
    with progress.stage("prove and write"):
        contents = {
            table_name: results.write_table(table_name, table, day, name)
            for table_name, table in outcome._asdict().items()
        }
    with progress.stage("judge"):
        return judged(results.written(day, name, contents), rules, manifest, contents)


def _history(rules: Rules, spark: SparkSession, runs: Sequence[Run]) -> Ledgers | None:
    """What was extracted for these runs, as far as it is still there."""
    some: list[Ledgers] = []
    for earlier in runs:
        day = earlier.result.business_date
        directory = Path(rules.directory) / "extracts" / day / earlier.extract_id
        if (directory / FILE).exists():
            some.append(load_unchecked(spark, read_manifest(directory), directory))
    if not some:
        return None
    return Ledgers(*(reduce(DataFrame.unionByName, tables) for tables in zip(*some, strict=True)))


def _write_back(rules: Rules, spark: SparkSession, results: Results, done: Run) -> None:
    assert rules.recon is not None
    schema = ReconSchema(rules.recon)
    try:
        schema.create()
        items = results.read_table(spark, "items", done)
        schema.write(done, (item.asDict() for item in items.toLocalIterator()))
    finally:
        schema.close()
