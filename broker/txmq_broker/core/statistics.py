"""Counters, their rates over the windows that operators' tools show, and durations by bucket."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from txmq.metrics.histogram import Histogram
from txmq_broker.core.topics import Topics

__all__ = [
    "BOUNDS_S",
    "MINUTE_S",
    "SAMPLE_S",
    "Meter",
    "MidnightTotals",
    "Rate",
    "Statistics",
    "durations",
]

SAMPLE_S: Final = 10.0
MINUTE_S: Final = 60.0
HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
_WINDOWS: Final = (SAMPLE_S, MINUTE_S, 600.0)


class Rate(NamedTuple):
    """The events of a window."""

    sum: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Events a second."""
        return self.sum / self.seconds if self.seconds > 0 else 0.0


class Sample(NamedTuple):
    """A counter's value at a time."""

    at: float
    total: int
    moved_after: float
    """The latest time at which the counter still had the previous sample's value."""


class SampleHistory:
    """Samples of a counter at a fixed interval; samples without a change are left out."""

    __slots__ = ("_gap", "_samples", "_still_at")

    def __init__(self, gap: float, samples_max: int) -> None:
        self._gap = gap
        self._samples: deque[Sample] = deque(maxlen=samples_max)
        self._still_at = 0.0

    def sample(self, now: float, total: int) -> None:
        """Add a sample if the counter has changed and the interval is over."""
        if not self._samples:
            # The counter was 0 before its first sample; the events since then must count.
            self._still_at = now - self._gap
            self._samples.append(Sample(self._still_at, 0, self._still_at))
        last = self._samples[-1]
        if total == last.total:
            self._still_at = now
        elif now - last.at > self._gap * 0.9:
            self._samples.append(Sample(now, total, self._still_at))
            self._still_at = now

    def base(self, start: float) -> tuple[float, int]:
        """The time and value of the sample nearest to a time."""
        still_at = start
        at, total = start, 0
        for at, total, moved_after in reversed(self._samples):
            if at <= start:
                return max(at, min(start, still_at)), total
            still_at = moved_after
        return at, total


class Meter:
    """One counter with its recent history."""

    __slots__ = ("_days", "_hours", "_minutes", "total")

    def __init__(self) -> None:
        self.total = 0
        self._minutes = SampleHistory(SAMPLE_S, 61)
        self._hours = SampleHistory(600.0, 7)
        self._days = SampleHistory(HOUR_S, 25)

    def sample(self, now: float) -> None:
        """Add the counter's value to its history."""
        for trail in (self._minutes, self._hours, self._days):
            trail.sample(now, self.total)

    def rate(self, window: float, now: float) -> Rate:
        """The events of the last ``window`` seconds, or since the history began."""
        trail = self._minutes if window <= 600 else self._hours if window <= HOUR_S else self._days
        since, total = trail.base(now - window)
        return Rate(self.total - total, now - since)

    def rates_text(self, now: float) -> str:
        """Rates over ten seconds, a minute and ten minutes, as tools print them."""
        return " ".join(f"{self.rate(window, now).per_second:.4f}" for window in _WINDOWS)


class MidnightTotals:
    """A total at the last two midnights, from which tools compute yesterday's and today's."""

    def __init__(self) -> None:
        self._day: int | None = None
        self.yesterday = 0
        self.today = 0

    def note(self, day: int, total: int) -> None:
        """Record a total; the first one on a new day counts as its midnight's."""
        if self._day is not None and day != self._day:
            self.yesterday, self.today = self.today, total
        self._day = day


class Statistics:
    """All counters of a broker, by the names in clients' requests."""

    def __init__(self) -> None:
        self._meters: dict[str, dict[str, Meter]] = {}
        self.put_midnights = MidnightTotals()
        self.get_midnights = MidnightTotals()
        self.pull_times = durations()
        """Pulls that found messages, by the time to read them."""

    def meter(self, name: str, key: str) -> Meter:
        """A counter, created on first use."""
        meters = self._meters.get(name)
        if meters is None:
            meters = self._meters[name] = {}
        found = meters.get(key)
        if found is None:
            found = meters[key] = Meter()
        return found

    def find(self, name: str, key: str) -> Meter | None:
        """A counter, or ``None`` if it was never used."""
        return self.named(name).get(key)

    def named(self, name: str) -> Mapping[str, Meter]:
        """All counters of a name, by key, the oldest first."""
        return self._meters.get(name, {})

    def count_puts(self, topics: Topics) -> None:
        """Copy the counters of topics, which keep their own so that the path of a send is short."""
        puts, size = topics.puts_forgotten, topics.bytes_forgotten
        for topic in topics:
            if topic.put_count:
                self.meter("TOPIC_PUT_NUMS", topic.name).total = topic.put_count
                self.meter("TOPIC_PUT_SIZE", topic.name).total = topic.put_bytes
                puts += topic.put_count
                size += topic.put_bytes
        self.meter("BROKER_PUT_NUMS", "").total = puts
        self.meter("BROKER_PUT_SIZE", "").total = size

    def sample(self, now: float, day: int) -> None:
        """Sample all counters; ``day`` is the number of today's date."""
        for meters in self._meters.values():
            for meter in meters.values():
                meter.sample(now)
        self.put_midnights.note(day, self.meter("BROKER_PUT_NUMS", "").total)
        self.get_midnights.note(day, self.meter("BROKER_GET_NUMS", "").total)

    def forget_topic(self, topic: str) -> None:
        """Delete the counters of a topic, and of groups in it."""
        start = f"{topic}@"
        self._forget(lambda key: key == topic or key.startswith(start))

    def forget_group(self, group: str) -> None:
        """Delete the counters of a group."""
        end = f"@{group}"
        self._forget(lambda key: key.endswith(end))

    def _forget(self, is_meant: Callable[[str], bool]) -> None:
        for meters in self._meters.values():
            for key in [key for key in meters if is_meant(key)]:
                del meters[key]


BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0
)  # fmt: skip
"""The upper bounds of the buckets, in seconds: from a fast disk to a client's time-out."""


def durations() -> Histogram:
    """Durations of sends, syncs or pulls."""
    return Histogram(BOUNDS_S)
