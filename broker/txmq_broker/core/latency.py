"""Histograms of durations."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

__all__ = ["BOUNDS_S", "LatencyHistogram"]

BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0
)  # fmt: skip
"""The upper bounds of the buckets, in seconds: from a fast disk to a client's time-out."""


class LatencyHistogram:
    """Counts durations by bucket.

    Attributes:
        counts: The durations in each bucket, and at the end those above all bounds.
        sum_s: The sum of all durations.
    """

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def note(self, seconds: float, times: int = 1) -> None:
        """Count a duration that several events share."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += times
        self.sum_s += seconds * times
