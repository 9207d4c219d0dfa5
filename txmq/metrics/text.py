"""Metrics as the text that Prometheus reads. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

__all__ = ["metrics_text"]


class _FixedMetrics(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def metrics_text(metrics: Iterable[Metric]) -> str:
    """The text of some metrics, in their order; nothing of this process is added to them."""
    registry = CollectorRegistry()
    registry.register(_FixedMetrics(metrics))
    return generate_latest(registry).decode()
