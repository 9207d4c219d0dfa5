"""Verdicts, amounts and moments as text for people. Pure, and money is never a float."""

from __future__ import annotations

from datetime import date, datetime
from decimal import ROUND_FLOOR, Decimal
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from txmq.reconcile.summary import Verdict

__all__ = [
    "VERDICTS",
    "Headline",
    "amount",
    "exact",
    "long_date",
    "moment",
    "points",
    "rate",
    "seconds",
    "signed",
]

_FINEST: Final = Decimal("0.001")


class Headline(NamedTuple):
    """A verdict in words."""

    mood: str
    words: str
    meaning: str


VERDICTS: Final[dict[Verdict, Headline]] = {
    "clean": Headline(
        "good",
        "Clean",
        "Every transfer is agreed, explained, or in flight for a permitted time; every proof holds "
        "or is explained.",
    ),
    "within limits": Headline(
        "wait",
        "Breaks within limits",
        "There are breaks, within the limits of the rules.",
    ),
    "over limits": Headline(
        "bad",
        "Over the limits",
        "The breaks or proofs exceed the limits of the rules. A person must act today.",
    ),
}


def amount(minor: int, digits: int) -> str:
    """An amount in major units: 1,234,567 with two digits is ``12,345.67``."""
    return _major(minor, digits, ",")


def exact(minor: int, digits: int) -> str:
    """An amount for programs: without commas."""
    return _major(minor, digits, "")


def signed(minor: int, digits: int = 0) -> str:
    """A difference with its sign; ``±0`` for zero."""
    return f"{'+' if minor > 0 else ''}{amount(minor, digits)}" if minor else "±0"


def _major(minor: int, digits: int, separator: str) -> str:
    whole, rest = divmod(abs(minor), 10**digits)
    point = f".{rest:0{digits}d}" if digits else ""
    return f"{'-' if minor < 0 else ''}{whole:{separator}d}{point}"


def rate(share: float) -> str:
    """A share in percent, never rounded up: one break among millions is not 100%."""
    return "100%" if share == 1 else f"{_percent(share)}%"


def points(share: float, before: float) -> str:
    """The difference of two shares in percentage points."""
    more = _percent(share) - _percent(before)
    return f"{more:+} points" if more else "±0"


def _percent(share: float) -> Decimal:
    # The shortest text of the float, not all of its 53 bits: 0.29 is 29, not 28.999.
    return (Decimal(repr(share)) * 100).quantize(_FINEST, ROUND_FLOOR)


def moment(at_ms: int, zone: str) -> str:
    """A moment in a zone, with its distance from UTC: ``2026-03-31 23:00:00+08:00``.

    A moment outside the calendar, as in a damaged row, is its number.
    """
    try:
        found = datetime.fromtimestamp(at_ms // 1000, ZoneInfo(zone))
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
    return found.isoformat(" ", "seconds")


def long_date(day: str) -> str:
    """A date with the name of its weekday."""
    found = date.fromisoformat(day)
    return f"{found:%A}, {found.day} {found:%B} {found.year}"


def seconds(time_s: float) -> str:
    """A duration."""
    if time_s < 60:
        return f"{time_s:.1f} s"
    minutes, rest = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
