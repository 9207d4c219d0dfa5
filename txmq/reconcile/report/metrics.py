"""Figures of a run in the text format of Prometheus; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from txmq.metrics.table import MetricRow, Sample, gauge, table_text
from txmq.reconcile.classes import Class
from txmq.reconcile.report.words import VERDICTS
from txmq.reconcile.summary import Run

__all__ = ["METRICS", "PREFIX", "exposition"]

PREFIX: Final = "txmq_reconcile_"
_GROUPED: Final = ("class", "group", "currency")


METRICS: Final[Mapping[str, MetricRow]] = {
    "info": gauge(
        "Always 1; its labels name the versions of txmq, Spark and the rules.",
        *("version", "spark", "rules"),
    ),
    "verdict": gauge("1 for the verdict of the run, and 0 for the others.", "verdict"),
    "final": gauge("1 if the business date was over when the books were read."),
    "match_ratio": gauge(
        "The share of the date's own transfers that are agreed; 1 if it has none."
    ),
    "transfers": gauge("Transfers of each class, with open items of earlier dates.", *_GROUPED),
    "at_risk": gauge(
        "The amount at risk in each class, in major units: 12.34 for 12.34 CNY.", *_GROUPED
    ),
    "breaks": gauge("Transfers that need a person."),
    "oldest_break_days": gauge("The age of the oldest break in business days; 0 without breaks."),
    "in_flight": gauge("Transfers in flight when the date ended, within the grace."),
    "broken_proofs": gauge("Balance proofs that do not hold and are not explained."),
    "quarantined_rows": gauge("Rows of the banks' tables that cannot be read."),
    "closed": gauge("Items of earlier dates that were agreed on this one."),
    "stage_seconds": gauge("The duration of each stage of the run.", "stage"),
    "stage_rows_per_second": gauge("The rows per second of each stage.", "stage"),
    "run_seconds": gauge("The duration of the run."),
    "business_date_end_timestamp_seconds": gauge("The end of the business date."),
    "last_success_timestamp_seconds": gauge("The end of the last successful run."),
}
"""The figures without :data:`PREFIX`. Each also has the label ``name``, that of the rules."""


def exposition(run: Run) -> str:
    """Each figure of :data:`METRICS`, with the name of the rules as a label.

    Every class has a value for every currency, even zero, so that an alert ends with its break.
    Values are floats, as Prometheus keeps them.
    """
    table = {name: row._replace(labels=("name", *row.labels)) for name, row in METRICS.items()}
    samples = (one._replace(labels=(run.result.name, *one.labels)) for one in _samples(run))
    return table_text(PREFIX, table, samples)


def _samples(run: Run) -> Iterator[Sample]:
    result = run.result
    versions = run.txmq_version, run.spark_version, result.rules_version
    yield Sample("info", 1, versions)
    unread = (one for one in result.proofs if one.proof == "readable-rows" and not one.account)
    plain = {
        "final": result.is_final,
        "match_ratio": result.match_rate,
        "breaks": result.breaks,
        "oldest_break_days": result.oldest_days,
        "in_flight": result.in_flight["transfers"],
        "broken_proofs": result.broken_proofs,
        "quarantined_rows": -sum(proof.difference for proof in unread),
        "closed": result.closed,
        "run_seconds": (run.ended_ms - run.began_ms) / 1000,
        "business_date_end_timestamp_seconds": result.end_ms / 1000,
        "last_success_timestamp_seconds": run.ended_ms / 1000,
    }
    for metric, value in plain.items():
        yield Sample(metric, value)
    for verdict in VERDICTS:
        yield Sample("verdict", result.verdict == verdict, (verdict,))
    for stage in run.stages:
        yield Sample("stage_seconds", round(stage.seconds, 3), (stage.name,))
        if stage.rows and stage.seconds:
            rate = round(stage.rows / stage.seconds)
            yield Sample("stage_rows_per_second", rate, (stage.name,))
    totals = {(total.class_, total.currency): total for total in result.totals}
    for class_ in Class:
        for currency in result.currencies:
            total = totals.get((class_, currency))
            labels = class_.value, class_.group, currency
            yield Sample("transfers", total.transfers if total else 0, labels)
            worth = (total.at_risk if total else 0) / 10 ** result.places(currency)
            yield Sample("at_risk", worth, labels)
