"""The history of a broker: figures of its own, lag of groups, and rates of topics. Pure.

All of it is in memory, and its size is bounded: 0.5 MiB for the broker's own figures, and 30 MiB
for 10,000 groups with two queues each and 10,000 topics. A restart begins anew.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, Generic, NamedTuple, TypeVar

from txmq.limits import HISTORY_QUEUES_MAX, HISTORY_SERIES_MAX
from txmq_broker.core.statistics import BOUNDS_S

__all__ = [
    "BROKER_COLUMNS",
    "LAG_KEPT",
    "BrokerHistory",
    "BrokerTotals",
    "FigureRing",
    "LagHistory",
    "RateHistory",
    "SeriesTable",
]

K = TypeVar("K")

BROKER_COLUMNS: Final = (
    "messages_in_per_second",
    "messages_out_per_second",
    "send_p50_ms",
    "send_p99_ms",
    "transactions_open",
    "transactions_parked",
)
"""The figures of a broker, in the order of its rows."""

FINE_S: Final = 10
FINE_KEPT: Final = 360
"""Rows of an hour."""
COARSE_S: Final = 60
COARSE_KEPT: Final = 1_440
"""Rows of a day."""

LAG_KEPT: Final = 180
"""Rows of a group or a topic, one each minute: three hours."""
QUEUES_SHOWN: Final = 8
"""A group with at most this many queues also has the lag of each."""

_UNKNOWN: Final = 0xFFFF_FFFF
_VALUE_MAX: Final = _UNKNOWN - 1

Row = tuple[float | None, ...]


class BrokerTotals(NamedTuple):
    """What a broker has counted up to a moment."""

    at_ms: int
    messages_in: int
    messages_out: int
    sends: tuple[int, ...]
    """Acknowledged sends by the buckets of their duration."""
    transactions_open: int
    transactions_parked: int


class FigureRing:
    """Rows of figures, of which the oldest are dropped.

    Args:
        period_s: The usual pause between two rows.
        kept: The number of rows.
    """

    def __init__(self, period_s: int, kept: int) -> None:
        self.period_s = period_s
        self.times: deque[int] = deque(maxlen=kept)
        self.rows: deque[Row] = deque(maxlen=kept)
        self._last: BrokerTotals | None = None

    def note(self, totals: BrokerTotals) -> None:
        """Add a row about the time since the last call; the first call only begins."""
        last, self._last = self._last, totals
        if last is None or totals.at_ms <= last.at_ms:
            return  # The clock was set back: the next row begins here.
        seconds = (totals.at_ms - last.at_ms) / 1000
        sends = [now - before for now, before in zip(totals.sends, last.sends, strict=True)]
        self.times.append(totals.at_ms)
        self.rows.append(
            (
                (totals.messages_in - last.messages_in) / seconds,
                (totals.messages_out - last.messages_out) / seconds,
                quantile_ms(sends, 0.5),
                quantile_ms(sends, 0.99),
                totals.transactions_open,
                totals.transactions_parked,
            )
        )

    def after(self, from_ms: int, count: int) -> tuple[list[int], list[Row], bool]:
        """The times and rows from a time on, and whether there are more."""
        start = bisect_left(self.times, from_ms)
        times = list(self.times)[start : start + count]
        rows = list(self.rows)[start : start + count]
        return times, rows, start + len(times) < len(self.times)


class BrokerHistory:
    """The figures of a broker: each ten seconds of an hour, and each minute of a day."""

    def __init__(self) -> None:
        self.fine = FigureRing(FINE_S, FINE_KEPT)
        self.coarse = FigureRing(COARSE_S, COARSE_KEPT)
        self._rounds = 0

    def note(self, totals: BrokerTotals) -> bool:
        """Add the figures of ten seconds; returns whether a minute is over."""
        self.fine.note(totals)
        is_minute = self._rounds % (COARSE_S // FINE_S) == 0
        self._rounds += 1
        if is_minute:
            self.coarse.note(totals)
        return is_minute

    def ring(self, period_s: int) -> FigureRing:
        """The rows with the wanted pause, or with the next longer one."""
        return self.fine if period_s <= FINE_S else self.coarse


class _Series:
    """Values of consecutive rounds; four bytes each."""

    __slots__ = ("first", "values")

    def __init__(self, first: int) -> None:
        self.first = first
        """The number of the round of the first value."""
        self.values = array("I")

    def put(self, number: int, value: int) -> None:
        missed = number - self.first - len(self.values)
        if missed:
            self.values.extend([_UNKNOWN] * min(missed, LAG_KEPT))
        self.values.append(min(max(value, 0), _VALUE_MAX))
        if (extra := len(self.values) - LAG_KEPT) > 0:
            del self.values[:extra]
        self.first = number + 1 - len(self.values)

    def between(self, start: int, end: int) -> list[float | None]:
        found: list[float | None] = []
        for number in range(start, end):
            at = number - self.first
            value = self.values[at] if 0 <= at < len(self.values) else _UNKNOWN
            found.append(None if value == _UNKNOWN else value)
        return found


class SeriesTable(Generic[K]):
    """Series of many names, taken together in rounds.

    Args:
        series_max: The number of names; further ones have no series.
    """

    def __init__(self, series_max: int) -> None:
        self._series_max = series_max
        self._by_name: dict[K, _Series] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: K) -> bool:
        return name in self._by_name

    def put(self, name: K, number: int, value: int) -> None:
        """Add the value of a round."""
        series = self._by_name.get(name)
        if series is None:
            if len(self._by_name) >= self._series_max:
                return
            series = self._by_name[name] = _Series(number)
        series.put(number, value)

    def between(self, name: K, start: int, end: int) -> list[float | None]:
        """The values of some rounds; ``None`` for those without one."""
        series = self._by_name.get(name)
        return [None] * (end - start) if series is None else series.between(start, end)

    def drop_before(self, number: int) -> None:
        """Forget the names that have had no value since a round: they were deleted."""
        old = [
            name
            for name, series in self._by_name.items()
            if series.first + len(series.values) <= number
        ]
        for name in old:
            del self._by_name[name]


class _Rounds:
    """The times of the rounds that are kept."""

    def __init__(self) -> None:
        self.times: deque[int] = deque(maxlen=LAG_KEPT)
        self.number = -1
        """The number of the round of the last time."""

    def begin(self, at_ms: int) -> None:
        """Begin a round."""
        self.times.append(at_ms)
        self.number += 1

    def window(self, from_ms: int, count: int) -> tuple[list[int], int, int]:
        """The times of some rounds, and their numbers from the first to behind the last."""
        start = bisect_left(self.times, from_ms)
        times = list(self.times)[start : start + count]
        first = self.number + 1 - len(self.times) + start
        return times, first, first + len(times)

    def has_more(self, times: Sequence[int]) -> bool:
        """Whether there are rounds after these."""
        return bool(times) and times[-1] < self.times[-1]


class LagHistory(_Rounds):
    """The lag of groups each minute, and that of each queue where there are few."""

    def __init__(self) -> None:
        super().__init__()
        self._groups: SeriesTable[str] = SeriesTable(HISTORY_SERIES_MAX)
        self._queues: SeriesTable[tuple[str, str]] = SeriesTable(HISTORY_QUEUES_MAX)
        self._names: dict[str, tuple[str, ...]] = {}
        """The names of the queues of each group that has series of them."""

    def note(self, group: str, lags: Mapping[str, int]) -> None:
        """Add the lag of a group by queue to the round that has begun."""
        self._groups.put(group, self.number, sum(lags.values()))
        if len(lags) > QUEUES_SHOWN or group not in self._groups:
            self._names.pop(group, None)
            return
        if len(lags) > 1:
            for name, lag in lags.items():
                self._queues.put((group, name), self.number, lag)
            if (known := self._names.get(group)) is None or len(known) != len(lags):
                self._names[group] = tuple(lags)

    def end(self) -> None:
        """End the round: forget the groups that had no value in it."""
        for table in (self._groups, self._queues):
            table.drop_before(self.number)
        for group in [name for name in self._names if name not in self._groups]:
            del self._names[group]

    def rows(self, group: str, from_ms: int, count: int) -> tuple[list[str], list[int], list[Row]]:
        """The columns, times and rows of a group."""
        times, start, end = self.window(from_ms, count)
        names = [name for name in self._names.get(group, ()) if (group, name) in self._queues]
        columns = [self._groups.between(group, start, end)]
        columns += [self._queues.between((group, name), start, end) for name in names]
        return ["lag", *names], times, list(zip(*columns, strict=True))


class RateHistory(_Rounds):
    """The messages that topics received each minute."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: SeriesTable[str] = SeriesTable(HISTORY_SERIES_MAX)
        self._totals: dict[str, int] = {}

    def note(self, topic: str, total: int) -> None:
        """Add the total of a topic to the round that has begun."""
        last = self._totals.get(topic, 0)
        if topic in self._totals or len(self._totals) < HISTORY_SERIES_MAX:
            self._totals[topic] = total
            # A topic that was deleted and created again counts from 0.
            self._counts.put(topic, self.number, total - last if total >= last else total)

    def end(self) -> None:
        """End the round: forget the topics that had no value in it."""
        self._counts.drop_before(self.number)
        for topic in [name for name in self._totals if name not in self._counts]:
            del self._totals[topic]

    def rows(self, topic: str, from_ms: int, count: int) -> tuple[list[str], list[int], list[Row]]:
        """The columns, times and rows of a topic."""
        times, start, end = self.window(from_ms, count)
        values = self._counts.between(topic, start, end)
        rates: Iterator[Row] = ((None if value is None else value / COARSE_S,) for value in values)
        return ["messages_in_per_second"], times, list(rates)


def quantile_ms(counts: Sequence[int], share: float) -> float | None:
    """The duration that a share of the events does not exceed, from their buckets.

    Within a bucket the durations count as evenly spread. Beyond the last bound the bound itself is
    the answer.
    """
    total = sum(counts)
    if total <= 0:
        return None
    wanted = share * total
    for number, reached in enumerate(accumulate(counts)):
        if reached >= wanted and counts[number]:
            if number >= len(BOUNDS_S):
                break
            low = BOUNDS_S[number - 1] if number else 0.0
            part = 1 - (reached - wanted) / counts[number]
            return 1000 * (low + (BOUNDS_S[number] - low) * part)
    return 1000 * BOUNDS_S[-1]
