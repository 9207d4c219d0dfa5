"""Verdicts, amounts, moments and masked accounts as text; pure. Money is never a float."""

from __future__ import annotations

from datetime import date, datetime
from decimal import ROUND_FLOOR, Decimal
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from txmq.reconcile.summary import Past, Verdict


class Headline(NamedTuple):
    """A verdict in words."""

    mood: str
    words: str


VERDICTS: Final[dict[Verdict, Headline]] = {
    "clean": Headline("good", "Clean"),
    "within limits": Headline("wait", "Breaks within limits"),
    "over limits": Headline("bad", "Over the limits"),
}


def amount(minor: int, digits: int) -> str:
    """An amount in major units: 1,234,567 with two digits is ``12,345.67``."""
    # Made from text, a Decimal has all digits; its arithmetic would round to 28 of them.
    return f"{Decimal(f'{minor}E-{digits}'):,f}"


def signed(minor: int, digits: int = 0) -> str:
    """A difference with its sign; ``±0`` for zero."""
    return f"{'+' if minor > 0 else ''}{amount(minor, digits)}" if minor else "±0"


def rate(day: Past) -> str:
    """The share of a day's own transfers that are agreed, in percent.

    It is never rounded up: one break among millions is not 100%.
    """
    if not day.transfers:
        return "no transfers"
    return "100%" if day.match_rate == 1 else f"{_percent(day.match_rate)}%"


def points(day: Past, before: Past) -> str:
    """The difference between the rates of two days, in percentage points."""
    more = _percent(day.match_rate) - _percent(before.match_rate)
    return f"{more:+} points" if more else "±0"


def _percent(share: float) -> Decimal:
    # The shortest text of the float, not all of its 53 bits: 0.29 is 29, not 28.999.
    return (Decimal(repr(share)) * 100).quantize(Decimal("0.001"), ROUND_FLOOR)


def moment(at_ms: int, zone: str) -> str:
    """A moment in a zone, with its UTC offset: ``2026-03-31 23:00:00+08:00``.

    A moment outside the calendar, as in a damaged row, is shown as a number.
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


def mask(account: str) -> str:
    """An account number without its middle; the same number always has the same mask.

    ``6222 0200 1234 0011`` becomes ``62…0011``. At least half of a number stays hidden, but a
    number with fewer than 8 characters is shown. With the books, the mask and the transfer's key
    identify the account; with the report alone they do not. Two accounts may have the same
    mask. Spaces are ignored.
    """
    bare = "".join(account.split())
    if len(bare) < 8:
        return bare
    return f"{bare[:2]}…{bare[-4:] if len(bare) >= 12 else bare[-2:]}"


def mask_sides(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a transfer with masks; `` / `` joins the accounts of a side that has several."""
    sides = {side: row[side] for side in ("payer", "payee") if row[side]}
    return row | {side: " / ".join(map(mask, of.split(" / "))) for side, of in sides.items()}
