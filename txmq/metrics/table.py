"""Tables of metrics: their kinds and meanings, and the text that Prometheus reads. Pure.

A table is the only place that names a metric: the samples and the reference page follow it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import accumulate
from typing import Final, NamedTuple

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from txmq.metrics.text import metrics_text

__all__ = ["DurationBuckets", "FigureRow", "FigureSample", "RowKind", "table_text"]

BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds of the buckets of durations, in seconds."""


class RowKind(StrEnum):
    """The kinds that Prometheus knows."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class FigureRow(NamedTuple):
    """One metric of a table."""

    kind: RowKind
    meaning: str
    labels: tuple[str, ...] = ()


class DurationBuckets:
    """Counts durations by bucket."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def note(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


class FigureSample(NamedTuple):
    """One value of a metric."""

    name: str
    value: float | DurationBuckets
    labels: tuple[str, ...] = ()


def table_text(prefix: str, table: Mapping[str, FigureRow], samples: Iterable[FigureSample]) -> str:
    """The text of some samples, in the order of the table.

    Args:
        prefix: What all names begin with.
        table: The metrics; one without a sample is left out.
        samples: Their values.
    """
    by_name: dict[str, list[FigureSample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    return metrics_text(
        _family(prefix + name, row, by_name[name]) for name, row in table.items() if name in by_name
    )


def _family(name: str, row: FigureRow, samples: Iterable[FigureSample]) -> Metric:
    labels = list(row.labels)
    if row.kind is RowKind.HISTOGRAM:
        histogram = HistogramMetricFamily(name, row.meaning, labels=labels)
        for sample in samples:
            assert isinstance(sample.value, DurationBuckets)
            bounds = [*map(str, BOUNDS_S), "+Inf"]
            buckets = list(zip(bounds, accumulate(sample.value.counts), strict=True))
            histogram.add_metric(sample.labels, buckets, sample.value.sum_s)
        return histogram
    family: CounterMetricFamily | GaugeMetricFamily
    if row.kind is RowKind.COUNTER:
        family = CounterMetricFamily(name.removesuffix("_total"), row.meaning, labels=labels)
    else:
        family = GaugeMetricFamily(name, row.meaning, labels=labels)
    for sample in samples:
        assert not isinstance(sample.value, DurationBuckets)
        family.add_metric(sample.labels, float(sample.value))
    return family
