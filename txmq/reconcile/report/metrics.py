"""Figures of a run in the text format of Prometheus. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily

from txmq.metrics_text import metrics_text
from txmq.reconcile.classes import Class
from txmq.reconcile.report.words import VERDICTS, exact
from txmq.reconcile.summary import Result, Run

__all__ = ["METRICS", "exposition"]

METRICS: Final[Mapping[str, str]] = {
    "info": "Always 1; its labels name the versions of txmq, Spark and the rules.",
    "verdict": "1 for the verdict of the run, and 0 for the others.",
    "final": "1 if the business date was over when the books were read.",
    "match_ratio": "The share of agreed transfers, from 0 to 1.",
    "transfers": "Transfers of each class.",
    "at_risk": "The amount at risk in each class, in whole units of the currency.",
    "breaks": "Transfers that need a person.",
    "oldest_break_days": "The age of the oldest break in business days; 0 without breaks.",
    "in_flight": "Transfers in flight when the date ended, within the grace.",
    "broken_proofs": "Balance proofs that do not hold and are not explained.",
    "quarantined_rows": "Rows of the banks' tables that cannot be read.",
    "closed": "Items of earlier dates that were agreed on this one.",
    "stage_seconds": "The duration of each stage of the run.",
    "stage_rows_per_second": "The rows per second of each stage.",
    "run_seconds": "The duration of the run.",
    "business_date_end_timestamp_seconds": "The end of the business date.",
    "last_success_timestamp_seconds": "The end of the last successful run.",
}
"""The figures without their prefix ``txmq_reconcile_``, and their meanings. All are gauges."""


def exposition(run: Run) -> str:
    """Each figure of :data:`METRICS`, with the name of the rules as a label.

    Every class has a value for every currency, also zero, so that an alert ends with its break.
    Values are floats, as Prometheus keeps them.
    """
    families = {
        name: GaugeMetricFamily(f"txmq_reconcile_{name}", meaning)
        for name, meaning in METRICS.items()
    }

    def add(metric: str, value: str | float, **labels: str) -> None:
        family = families[metric]
        family.add_sample(family.name, {"name": run.result.name, **labels}, float(value))

    _add_run(run, add)
    _add_result(run.result, add)
    return metrics_text(families.values())


def _add_run(run: Run, add: Callable[..., None]) -> None:
    versions = {"version": run.txmq_version, "spark": run.spark_version}
    add("info", 1, **versions, rules=run.result.rules_version)
    add("run_seconds", exact(run.ended_ms - run.began_ms, 3))
    add("last_success_timestamp_seconds", exact(run.ended_ms, 3))
    for stage in run.stages:
        add("stage_seconds", f"{stage.seconds:.3f}", stage=stage.name)
        if stage.rows and stage.seconds:
            add("stage_rows_per_second", f"{stage.rows / stage.seconds:.0f}", stage=stage.name)


def _add_result(result: Result, add: Callable[..., None]) -> None:
    for verdict in VERDICTS:
        add("verdict", result.verdict == verdict, verdict=verdict)
    add("final", result.is_final)
    add("match_ratio", result.match_rate)
    add("breaks", result.breaks)
    add("oldest_break_days", result.oldest_days)
    add("in_flight", sum(total.transfers for total in result.in_flight))
    add("broken_proofs", result.broken_proofs)
    add("quarantined_rows", result.quarantined)
    add("closed", result.closed)
    add("business_date_end_timestamp_seconds", exact(result.end_ms, 3))
    totals = {(total.class_, total.currency): total for total in result.totals}
    for name in Class:
        for currency in result.currencies:
            total = totals.get((name.value, currency))
            labels = {"class": name.value, "group": name.group, "currency": currency}
            worth = exact(total.at_risk if total else 0, result.places(currency))
            add("transfers", total.transfers if total else 0, **labels)
            add("at_risk", worth, **labels)
