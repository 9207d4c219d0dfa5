"""Counters and their rates over the windows that operators' tools show."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

__all__ = ["SAMPLE_S", "Meter", "Rate", "Statistics"]

SAMPLE_S: Final = 10.0
_WINDOWS: Final = (10.0, 60.0, 600.0)
_SAMPLES_KEPT: Final = 61


class Rate(NamedTuple):
    """What happened in a window."""

    sum: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Events a second."""
        return self.sum / self.seconds if self.seconds > 0 else 0.0


class Meter:
    """One counter with its recent past."""

    __slots__ = ("_samples", "total")

    def __init__(self) -> None:
        self.total = 0
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES_KEPT)

    def sample(self, now: float) -> None:
        """Remember where the counter stands."""
        self._samples.append((now, self.total))

    def rate(self, window: float, now: float) -> Rate:
        """What was added in the last so many seconds, as far as it is remembered."""
        start, total = now, self.total
        for moment, value in reversed(self._samples):
            if now - moment > window + SAMPLE_S:
                break
            start, total = moment, value
        return Rate(self.total - total, now - start)

    def three(self, now: float) -> str:
        """Rates over ten seconds, a minute and ten minutes, as tools print them."""
        return " ".join(f"{self.rate(window, now).per_second:.4f}" for window in _WINDOWS)


class Statistics:
    """All counters of a broker by the names that clients ask for."""

    def __init__(self) -> None:
        self._meters: dict[tuple[str, str], Meter] = {}

    def meter(self, name: str, key: str) -> Meter:
        """A counter, made when first named."""
        found = self._meters.get((name, key))
        if found is None:
            found = self._meters[name, key] = Meter()
        return found

    def find(self, name: str, key: str) -> Meter | None:
        """A counter, if anything was ever counted in it."""
        return self._meters.get((name, key))

    def sample(self, now: float) -> None:
        """Remember where all counters stand."""
        for meter in self._meters.values():
            meter.sample(now)
