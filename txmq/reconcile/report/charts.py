"""Trends as shares of a width, with a description in words for screen readers. Pure.

Widths and positions are texts in percent, so that a chart fills its place and its letters keep
their size. They are computed in whole numbers: amounts are never floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from txmq.reconcile.report import facts
from txmq.reconcile.report.words import amount, rate
from txmq.reconcile.summary import Run

__all__ = ["PLOT", "TOP", "Trend", "TrendDay", "break_trend", "rate_trend", "risk_trends"]

PLOT: Final = 96
"""Pixels between the lowest line of a trend and its highest one."""
TOP: Final = 24
"""Pixels above the highest line."""

_SLOTS_MIN: Final = 7
_LABELS_MAX: Final = 7
_VALUES_MAX: Final = 10
_FITTING: Final = 4
"""The maximum of letters of a value above a column on a phone."""
_FLOORS: Final = tuple(map(Decimal, ("99.9", "99.5", "99", "98", "95", "90", "80", "50", "0")))


class TrendDay(NamedTuple):
    """A day of a trend: a vertical column, or a point of a line."""

    label: str
    value: str
    title: str
    left: str
    middle: str
    width: str
    height: int
    is_today: bool

    @property
    def y(self) -> int:
        """The upper end, in pixels from the top."""
        return TOP + PLOT - self.height


class Trend(NamedTuple):
    """Days beside each other."""

    id: str
    title: str
    about: str
    now: str
    highest: str
    """The value of the upper line, if the days do not show their values."""
    lowest: str
    days: tuple[TrendDay, ...]
    is_line: bool


def rate_trend(run: Run) -> Trend:
    """The match rate of each day, as a line."""
    days = facts.days(run)
    rates = [rate(day.match_rate) for day in days]
    shares = [Decimal(text.rstrip("%")) for text in rates]
    floor = next(floor for floor in _FLOORS if floor <= min(shares))
    heights = [int((share - floor) * PLOT / (100 - floor)) for share in shares]
    lowest = rates[shares.index(min(shares))]
    about = f"{rates[-1]} on {days[-1].business_date}; the lowest is {lowest}."
    shown = _days([day.business_date for day in days], rates, heights)
    return Trend("rate", "Match rate", about, rates[-1], "100%", f"{floor}%", shown, True)


def break_trend(run: Run) -> Trend:
    """The number of breaks of each day."""
    counts = [day.breaks for day in facts.days(run)]
    return _columns(run, "breaks", "Breaks", counts, [f"{count:,}" for count in counts])


def risk_trends(run: Run) -> tuple[Trend, ...]:
    """The value at risk of each day; a chart for each currency with breaks."""
    days, trends = facts.days(run), []
    for currency in sorted({name for day in days for name, sum_ in day.at_risk.items() if sum_}):
        places = facts.digits(run.result, currency)
        worth = [day.at_risk.get(currency, 0) for day in days]
        values = [amount(sum_, places) for sum_ in worth]
        title = f"Value at risk, {currency}"
        trends.append(_columns(run, f"risk-{currency}", title, worth, values))
    return tuple(trends)


def _columns(
    run: Run, name: str, title: str, numbers: Sequence[int], values: Sequence[str]
) -> Trend:
    dates = [day.business_date for day in facts.days(run)]
    most = max(numbers)
    heights = [max(n * PLOT // most, 2 if n else 0) if most else 0 for n in numbers]
    highest = values[numbers.index(most)]
    about = f"{values[-1]} on {dates[-1]}; the most is {highest}."
    fits = len(dates) <= _VALUES_MAX and len(highest) <= _FITTING
    shown = _days(dates, values, heights, has_values=fits)
    return Trend(name, title, about, values[-1], "" if fits else highest, "", shown, False)


def _days(
    dates: Sequence[str], values: Sequence[str], heights: Sequence[int], *, has_values: bool = False
) -> tuple[TrendDay, ...]:
    slots = max(len(dates), _SLOTS_MIN)
    step = -(-len(dates) // _LABELS_MAX)
    found = []
    for at, (day, value, height) in enumerate(zip(dates, values, heights, strict=True)):
        slot, from_last = slots - len(dates) + at, len(dates) - 1 - at
        found.append(
            TrendDay(
                label=day[5:] if from_last % step == 0 else "",
                value=value if has_values else "",
                title=f"{day}: {value}",
                left=_share(20 * slot + 3, 20 * slots),
                middle=_share(2 * slot + 1, 2 * slots),
                width=_share(14, 20 * slots),
                height=height,
                is_today=from_last == 0,
            )
        )
    return tuple(found)


def _share(part: int, whole: int) -> str:
    """A part in percent; at least a visible one if it is not zero."""
    hundredths = max(part * 10_000 // whole, 40 if part else 0)
    return f"{hundredths // 100}.{hundredths % 100:02d}%"
