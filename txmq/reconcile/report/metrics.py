"""Figures of a run in the text that Prometheus reads. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily

from txmq.metrics_text import metrics_text
from txmq.reconcile.classes import ABOUT, Class
from txmq.reconcile.report import facts
from txmq.reconcile.report.words import exact
from txmq.reconcile.summary import Run

__all__ = ["METRICS", "exposition"]

METRICS: Final[Mapping[str, str]] = {
    "info": "Always 1; its labels say what made the run, and by which rules.",
    "verdict": "1 for the verdict of the run, and 0 for the others.",
    "final": "1 where the business date was over when the books were read.",
    "match_ratio": "The share of agreed transfers, from 0 to 1.",
    "transfers": "Transfers of each class.",
    "at_risk": "What the transfers of each class have at risk, in whole units of the currency.",
    "breaks": "Transfers that need a person.",
    "oldest_break_days": "The age of the oldest of them in business days; 0 without any.",
    "in_flight": "Transfers that were under way in time when the date ended.",
    "broken_proofs": "Balance proofs that do not hold.",
    "closed": "Items of earlier dates that were agreed on this one.",
    "stage_seconds": "How long each stage of the run took.",
    "stage_rows_per_second": "How many rows of each stage were worked on in a second.",
    "run_seconds": "How long the run took.",
    "business_date_end_timestamp_seconds": "When the business date ended.",
    "last_success_timestamp_seconds": "When the run ended. One that could not run leaves it.",
}
"""The figures, without ``txmq_reconcile_`` before them, and what they mean. All are gauges."""


class MetricSample(NamedTuple):
    """A value, as it is written, under its labels."""

    metric: str
    value: str
    labels: tuple[tuple[str, str], ...] = ()


def exposition(run: Run) -> str:
    """The text: each figure of :data:`METRICS`, with the name of the rules as a label.

    Every class has a value for every currency, also zero, so that an alert ends when its break
    is gone. Values are floats, as Prometheus keeps them.
    """
    families = {
        name: GaugeMetricFamily(f"txmq_reconcile_{name}", meaning)
        for name, meaning in METRICS.items()
    }
    for samples in (_of_the_run(run), _of_the_result(run), _of_the_classes(run)):
        for sample in samples:
            family = families[sample.metric]
            labels = {"name": run.result.name, **dict(sample.labels)}
            family.add_sample(family.name, labels, float(sample.value))
    return metrics_text(families.values())


def _of_the_run(run: Run) -> Iterator[MetricSample]:
    yield MetricSample(
        "info",
        "1",
        (
            ("version", run.txmq_version),
            ("spark", run.spark_version),
            ("rules", run.result.rules_version),
        ),
    )
    yield MetricSample("run_seconds", exact(run.ended_ms - run.began_ms, 3))
    yield MetricSample("last_success_timestamp_seconds", exact(run.ended_ms, 3))
    for stage in run.stages:
        label = (("stage", stage.name),)
        yield MetricSample("stage_seconds", f"{stage.seconds:.3f}", label)
        if stage.rows and stage.seconds:
            yield MetricSample("stage_rows_per_second", f"{stage.rows / stage.seconds:.0f}", label)


def _of_the_result(run: Run) -> Iterator[MetricSample]:
    result = run.result
    oldest = facts.oldest(result)
    for verdict in facts.VERDICTS:
        yield MetricSample("verdict", str(int(result.verdict == verdict)), (("verdict", verdict),))
    yield MetricSample("final", str(int(result.is_final)))
    yield MetricSample("match_ratio", repr(result.match_rate))
    yield MetricSample("breaks", str(result.breaks))
    yield MetricSample("oldest_break_days", str(oldest.days if oldest else 0))
    yield MetricSample("in_flight", str(facts.in_flight(result)[0]))
    yield MetricSample("broken_proofs", str(result.broken_proofs))
    yield MetricSample("closed", str(result.closed))
    yield MetricSample("business_date_end_timestamp_seconds", exact(result.end_ms, 3))


def _of_the_classes(run: Run) -> Iterator[MetricSample]:
    result = run.result
    found = {(total.class_, total.currency): total for total in result.totals}
    for name in Class:
        for currency in facts.currencies(result):
            total = found.get((name.value, currency))
            labels = (("class", name.value), ("group", ABOUT[name].group), ("currency", currency))
            worth = exact(total.at_risk if total else 0, facts.digits(result, currency))
            yield MetricSample("transfers", str(total.transfers if total else 0), labels)
            yield MetricSample("at_risk", worth, labels)
