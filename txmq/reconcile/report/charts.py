"""Trends as heights, with a description in words for screen readers; the page draws them. Pure.

Heights are computed in whole numbers: amounts are never floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from txmq.reconcile.report.words import amount, rate
from txmq.reconcile.summary import Run

__all__ = ["PLOT", "Trend", "trends"]

PLOT: Final = 96
"""Pixels between the lowest line of a trend and its highest one."""

_VALUES_MAX: Final = 10
_FITTING: Final = 4
"""The maximum of letters of a value above a column on a phone."""
_FLOORS: Final = tuple(map(Decimal, ("99.9", "99.5", "99", "98", "95", "90", "80", "50", "0")))


class Trend(NamedTuple):
    """The days beside each other: points of a line, or columns."""

    id: str
    title: str
    about: str
    values: Sequence[str]
    """A text for each day."""
    heights: Sequence[int]
    """Pixels above the lowest line, for each day."""
    highest: str
    """The value of the upper line; empty if the columns show their values."""
    lowest: str = ""
    """The value of the lower line of a chart with a line."""


def trends(run: Run) -> tuple[Trend, ...]:
    """The match rate, the breaks, and the value at risk in each currency with breaks."""
    breaks = [day.breaks for day in run.days]
    found = [
        _rate_trend(run),
        _columns(run, "breaks", "Breaks", breaks, [f"{count:,}" for count in breaks]),
    ]
    of_breaks = {name for day in run.days for name, sum_ in day.at_risk.items() if sum_}
    for currency in sorted(of_breaks):
        worth = [day.at_risk.get(currency, 0) for day in run.days]
        values = [amount(sum_, run.result.places(currency)) for sum_ in worth]
        title = f"Value at risk, {currency}"
        found.append(_columns(run, f"risk-{currency}", title, worth, values))
    return tuple(found)


def _rate_trend(run: Run) -> Trend:
    rates = [rate(day.match_rate) for day in run.days]
    shares = [Decimal(text.rstrip("%")) for text in rates]
    floor = next(floor for floor in _FLOORS if floor <= min(shares))
    heights = [int((share - floor) * PLOT / (100 - floor)) for share in shares]
    lowest = rates[shares.index(min(shares))]
    about = f"{rates[-1]} on {run.result.business_date}; the lowest is {lowest}."
    return Trend("rate", "Match rate", about, rates, heights, "100%", f"{floor}%")


def _columns(
    run: Run, name: str, title: str, numbers: Sequence[int], values: Sequence[str]
) -> Trend:
    most = max(numbers)
    heights = [max(n * PLOT // most, 2 if n else 0) if most else 0 for n in numbers]
    highest = values[numbers.index(most)]
    about = f"{values[-1]} on {run.result.business_date}; the most is {highest}."
    fits = len(values) <= _VALUES_MAX and len(highest) <= _FITTING
    return Trend(name, title, about, values, heights, "" if fits else highest)
