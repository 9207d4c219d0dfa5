"""Histograms of durations."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["Histogram"]


class Histogram:
    """Counts durations by bucket.

    Args:
        bounds_s: The buckets' upper bounds, in seconds; one more bucket counts all above them.
        counts: The durations in each bucket so far; none by default.
        sum_s: The sum of these durations.
    """

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(
        self, bounds_s: Sequence[float], counts: list[int] | None = None, sum_s: float = 0.0
    ) -> None:
        self.bounds_s = bounds_s
        self.counts = counts or [0] * (len(bounds_s) + 1)
        self.sum_s = sum_s

    def note(self, seconds: float, times: int = 1) -> None:
        """Count a duration that several events share."""
        self.counts[bisect_left(self.bounds_s, seconds)] += times
        self.sum_s += seconds * times
