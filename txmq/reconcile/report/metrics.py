"""Figures of a run in the text format of Prometheus. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily

from txmq.metric_rows import FigureRow, RowKind
from txmq.metrics_text import metrics_text
from txmq.reconcile.classes import Class
from txmq.reconcile.report.words import VERDICTS
from txmq.reconcile.summary import Run

__all__ = ["METRICS", "PREFIX", "exposition"]

PREFIX: Final = "txmq_reconcile_"
_GROUPED: Final = ("class", "group", "currency")


def _gauge(meaning: str, *labels: str) -> FigureRow:
    return FigureRow(RowKind.GAUGE, meaning, labels)


METRICS: Final[Mapping[str, FigureRow]] = {
    "info": _gauge(
        "Always 1; its labels name the versions of txmq, Spark and the rules.",
        "version",
        "spark",
        "rules",
    ),
    "verdict": _gauge("1 for the verdict of the run, and 0 for the others.", "verdict"),
    "final": _gauge("1 if the business date was over when the books were read."),
    "match_ratio": _gauge(
        "The share of the date's own transfers that are agreed; 1 if it has none."
    ),
    "transfers": _gauge("Transfers of each class, with open items of earlier dates.", *_GROUPED),
    "at_risk": _gauge(
        "The amount at risk in each class, in major units: 12.34 for 12.34 CNY.", *_GROUPED
    ),
    "breaks": _gauge("Transfers that need a person."),
    "oldest_break_days": _gauge("The age of the oldest break in business days; 0 without breaks."),
    "in_flight": _gauge("Transfers in flight when the date ended, within the grace."),
    "broken_proofs": _gauge("Balance proofs that do not hold and are not explained."),
    "quarantined_rows": _gauge("Rows of the banks' tables that cannot be read."),
    "closed": _gauge("Items of earlier dates that were agreed on this one."),
    "stage_seconds": _gauge("The duration of each stage of the run.", "stage"),
    "stage_rows_per_second": _gauge("The rows per second of each stage.", "stage"),
    "run_seconds": _gauge("The duration of the run."),
    "business_date_end_timestamp_seconds": _gauge("The end of the business date."),
    "last_success_timestamp_seconds": _gauge("The end of the last successful run."),
}
"""The figures without :data:`PREFIX`. Each also has the label ``name``, that of the rules."""


def exposition(run: Run) -> str:
    """Each figure of :data:`METRICS`, with the name of the rules as a label.

    Every class has a value for every currency, also zero, so that an alert ends with its break.
    Values are floats, as Prometheus keeps them.
    """
    families = {
        name: GaugeMetricFamily(f"{PREFIX}{name}", row.meaning) for name, row in METRICS.items()
    }
    for metric, value, labels in _samples(run):
        family = families[metric]
        family.add_sample(family.name, {"name": run.result.name, **labels}, float(value))
    return metrics_text(families.values())


def _samples(run: Run) -> Iterator[tuple[str, float, dict[str, str]]]:
    """The values, each with its metric and labels."""
    result = run.result
    versions = {"version": run.txmq_version, "spark": run.spark_version}
    yield "info", 1, {**versions, "rules": result.rules_version}
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
        yield metric, value, {}
    for verdict in VERDICTS:
        yield "verdict", result.verdict == verdict, {"verdict": verdict}
    for stage in run.stages:
        yield "stage_seconds", round(stage.seconds, 3), {"stage": stage.name}
        if stage.rows and stage.seconds:
            yield "stage_rows_per_second", round(stage.rows / stage.seconds), {"stage": stage.name}
    totals = {(total.class_, total.currency): total for total in result.totals}
    for class_ in Class:
        for currency in result.currencies:
            total = totals.get((class_, currency))
            labels = {"class": class_.value, "group": class_.group, "currency": currency}
            yield "transfers", total.transfers if total else 0, labels
            worth = (total.at_risk if total else 0) / 10 ** result.places(currency)
            yield "at_risk", worth, labels
