"""Charts as shares of a width: what is drawn where, and in words for who does not see it. Pure.

Widths and places are texts in percent, so that a chart is as wide as its place and its letters keep
their size. They are worked out in whole numbers: no amount is ever a float.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from txmq.reconcile.classes import Class
from txmq.reconcile.report import facts
from txmq.reconcile.report.words import amount, rate
from txmq.reconcile.summary import BUCKETS, Result, Run

__all__ = [
    "PLOT",
    "TOP",
    "Bar",
    "Bars",
    "Day",
    "Piece",
    "Trend",
    "ages",
    "break_trend",
    "classes_by_value",
    "rate_trend",
    "risk_trends",
]

PLOT: Final = 96
"""Pixels between the lowest line of a trend and its highest one."""
TOP: Final = 24
"""Pixels above these."""

_SLOTS_MIN: Final = 7
_LABELS_MAX: Final = 7
_VALUES_MAX: Final = 10
_FITTING: Final = 4
"""Days and letters of a value that have place above a column of a telephone's screen."""
_FLOORS: Final = tuple(map(Decimal, ("99.9", "99.5", "99", "98", "95", "90", "80", "50", "0")))


class Piece(NamedTuple):
    """A part of a bar."""

    kind: str
    left: str
    width: str
    told: str


class Bar(NamedTuple):
    """A bar that lies, with what it stands for above it."""

    label: str
    value: str
    pieces: tuple[Piece, ...]


class Bars(NamedTuple):
    """Bars below each other."""

    id: str
    title: str
    about: str
    bars: tuple[Bar, ...]


class Day(NamedTuple):
    """A day of a trend: a column that stands, or a point of a line."""

    label: str
    value: str
    told: str
    left: str
    middle: str
    width: str
    height: int
    is_today: bool

    @property
    def y(self) -> int:
        """Where it ends, from above."""
        return TOP + PLOT - self.height


class Trend(NamedTuple):
    """Days beside each other."""

    id: str
    title: str
    about: str
    now: str
    highest: str
    """What the upper line stands for, where the days do not say it themselves."""
    lowest: str
    days: tuple[Day, ...]
    is_line: bool


def classes_by_value(result: Result) -> tuple[Bars, ...]:
    """What the breaks of each class are worth; a chart for each currency."""
    return tuple(filter(None, (_by_value(result, each) for each in facts.currencies(result))))


def _by_value(result: Result, currency: str) -> Bars | None:
    found = [
        each
        for each in result.totals
        if each.currency == currency and each.group == "break" and each.at_risk > 0
    ]
    if not found:
        return None
    found.sort(key=lambda each: (-each.at_risk, facts.rank(each.class_)))
    places = facts.digits(result, currency)
    bars = []
    for each in found:
        worth = f"{amount(each.at_risk, places)} {currency}"
        width = _share(each.at_risk, found[0].at_risk)
        bars.append(Bar(each.class_, worth, (Piece("worth", "0%", width, worth),)))
    told = f"{found[0].class_} has the most: {bars[0].value}. "
    return Bars(
        f"worth-{currency}", f"Value at risk by class, {currency}", told + _told(bars), tuple(bars)
    )


def ages(result: Result) -> Bars | None:
    """How old the items of each class are; nothing where there are none.

    What is in flight is left out: it is never old, and there is so much more of it.
    """
    counts: dict[str, dict[str, int]] = {}
    for each in result.aging:
        if each.class_ == Class.IN_FLIGHT:
            continue
        row = counts.setdefault(each.class_, {})
        row[each.bucket] = row.get(each.bucket, 0) + each.transfers
    most = max((sum(row.values()) for row in counts.values()), default=0)
    if not most:
        return None
    bars = []
    for name in sorted(counts, key=facts.rank):
        pieces, before = [], 0
        for at, bucket in enumerate(BUCKETS):
            if count := counts[name].get(bucket, 0):
                told = f"{name}, {bucket} business days: {count:,}"
                pieces.append(Piece(f"age-{at}", _share(before, most), _share(count, most), told))
                before += count
        bars.append(Bar(name, f"{before:,}", tuple(pieces)))
    oldest = sum(row.get(BUCKETS[-1], 0) for row in counts.values())
    told = f"{oldest:,} are older than 7 business days. Each bar begins with the youngest. "
    return Bars("ages", "Age by class", told + _told(bars), tuple(bars))


def rate_trend(run: Run) -> Trend:
    """The match rate of each day, as a line."""
    days = facts.days(run)
    rates = [rate(each.match_rate) for each in days]
    shares = [Decimal(each.rstrip("%")) for each in rates]
    floor = next(each for each in _FLOORS if each <= min(shares))
    heights = [int((each - floor) * PLOT / (100 - floor)) for each in shares]
    lowest = rates[shares.index(min(shares))]
    about = f"{rates[-1]} on {days[-1].business_date}; the lowest is {lowest}."
    shown = _days([each.business_date for each in days], rates, heights)
    return Trend("rate", "Match rate", about, rates[-1], "100%", f"{floor}%", shown, True)


def break_trend(run: Run) -> Trend:
    """How many breaks each day had."""
    counts = [each.breaks for each in facts.days(run)]
    return _columns(run, "breaks", "Breaks", counts, [f"{each:,}" for each in counts])


def risk_trends(run: Run) -> tuple[Trend, ...]:
    """What the breaks of each day were worth; a chart for each currency that had any."""
    days, trends = facts.days(run), []
    for currency in sorted({name for each in days for name, sum_ in each.at_risk.items() if sum_}):
        places = facts.digits(run.result, currency)
        worth = [each.at_risk.get(currency, 0) for each in days]
        told = [amount(each, places) for each in worth]
        title = f"Value at risk, {currency}"
        trends.append(_columns(run, f"risk-{currency}", title, worth, told))
    return tuple(trends)


def _columns(run: Run, name: str, title: str, values: Sequence[int], told: Sequence[str]) -> Trend:
    dates = [each.business_date for each in facts.days(run)]
    most = max(values)
    heights = [max(each * PLOT // most, 2 if each else 0) if most else 0 for each in values]
    highest = told[values.index(most)]
    about = f"{told[-1]} on {dates[-1]}; the most is {highest}."
    fits = len(dates) <= _VALUES_MAX and len(highest) <= _FITTING
    shown = _days(dates, told, heights, says_values=fits)
    return Trend(name, title, about, told[-1], "" if fits else highest, "", shown, False)


def _days(
    dates: Sequence[str], told: Sequence[str], heights: Sequence[int], *, says_values: bool = False
) -> tuple[Day, ...]:
    slots = max(len(dates), _SLOTS_MIN)
    step = -(-len(dates) // _LABELS_MAX)
    found = []
    for at, (day, value, height) in enumerate(zip(dates, told, heights, strict=True)):
        slot, from_last = slots - len(dates) + at, len(dates) - 1 - at
        found.append(
            Day(
                label=day[5:] if from_last % step == 0 else "",
                value=value if says_values else "",
                told=f"{day}: {value}",
                left=_share(20 * slot + 3, 20 * slots),
                middle=_share(2 * slot + 1, 2 * slots),
                width=_share(14, 20 * slots),
                height=height,
                is_today=from_last == 0,
            )
        )
    return tuple(found)


def _told(bars: Iterable[Bar]) -> str:
    return "; ".join(f"{each.label} {each.value}" for each in bars) + "."


def _share(part: int, whole: int) -> str:
    """A part in percent, which is to be seen where there is any."""
    hundredths = max(part * 10_000 // whole, 40 if part else 0)
    return f"{hundredths // 100}.{hundredths % 100:02d}%"
