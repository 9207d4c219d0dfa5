"""Tables of metrics, and their samples as Prometheus text. Pure functions.

A table is the only place that names a metric; samples and the reference page refer to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from txmq.metrics.histogram import Histogram

__all__ = [
    "MetricKind",
    "MetricRow",
    "Sample",
    "counter",
    "gauge",
    "histogram",
    "metrics_text",
    "table_text",
]


class MetricKind(StrEnum):
    """Prometheus's metric types."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class MetricRow(NamedTuple):
    """One metric of a table."""

    kind: MetricKind
    meaning: str
    labels: tuple[str, ...] = ()
    origin: str = ""
    """Which processes have it, if the table covers several kinds of process."""


def gauge(meaning: str, *labels: str, origin: str = "") -> MetricRow:
    """A value that rises and falls."""
    return MetricRow(MetricKind.GAUGE, meaning, labels, origin)


def counter(meaning: str, *labels: str, origin: str = "") -> MetricRow:
    """A value that only rises."""
    return MetricRow(MetricKind.COUNTER, meaning, labels, origin)


def histogram(meaning: str, *labels: str, origin: str = "") -> MetricRow:
    """Durations by bucket."""
    return MetricRow(MetricKind.HISTOGRAM, meaning, labels, origin)


class Sample(NamedTuple):
    """One value of a metric."""

    name: str
    value: float | Histogram
    labels: tuple[str, ...] = ()


def table_text(prefix: str, table: Mapping[str, MetricRow], samples: Iterable[Sample]) -> str:
    """Render samples as text, in the order of the table.

    Args:
        prefix: The prefix of all names.
        table: The metrics; one without a sample is left out.
        samples: Their values.
    """
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    return metrics_text(
        _family(prefix + name, row, by_name[name]) for name, row in table.items() if name in by_name
    )


def metrics_text(metrics: Iterable[Metric]) -> str:
    """Render another library's metrics as text, without adding metrics of this process."""
    registry = CollectorRegistry()
    registry.register(_FixedMetrics(metrics))
    return generate_latest(registry).decode()


class _FixedMetrics(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _family(name: str, row: MetricRow, samples: Iterable[Sample]) -> Metric:
    labels = list(row.labels)
    if row.kind is MetricKind.HISTOGRAM:
        durations = HistogramMetricFamily(name, row.meaning, labels=labels)
        for sample in samples:
            assert isinstance(sample.value, Histogram)
            bounds = [*map(str, sample.value.bounds_s), "+Inf"]
            buckets = list(zip(bounds, accumulate(sample.value.counts), strict=True))
            durations.add_metric(sample.labels, buckets, sample.value.sum_s)
        return durations
    family: CounterMetricFamily | GaugeMetricFamily
    if row.kind is MetricKind.COUNTER:
        family = CounterMetricFamily(name.removesuffix("_total"), row.meaning, labels=labels)
    else:
        family = GaugeMetricFamily(name, row.meaning, labels=labels)
    for sample in samples:
        assert not isinstance(sample.value, Histogram)
        family.add_metric(sample.labels, float(sample.value))
    return family
