"""The buckets of a broker's durations."""

from __future__ import annotations

from typing import Final

from txmq.metrics.histogram import Histogram

__all__ = ["BOUNDS_S", "durations"]

BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0
)  # fmt: skip
"""The upper bounds of the buckets, in seconds: from a fast disk to a client's time-out."""


def durations() -> Histogram:
    """Durations of sends, syncs or pulls."""
    return Histogram(BOUNDS_S)
