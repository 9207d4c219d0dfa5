"""Facts derived from a run: its verdict in words, the oldest break, its signatures. Pure.

The page, the JSON, the metrics and the terminal agree because all of them use this module.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from txmq.reconcile.classes import ABOUT, About, Class
from txmq.reconcile.signatures import SignatureState
from txmq.reconcile.summary import BUCKETS, Past, Result, Run, Verdict

__all__ = [
    "VERDICTS",
    "Headline",
    "Oldest",
    "about",
    "currencies",
    "days",
    "digits",
    "in_flight",
    "oldest",
    "rank",
    "signature",
]

_LEAST_AGES: Final = dict(zip(BUCKETS, (0, 1, 2, 4, 8), strict=True))
_RANKS: Final = {class_.value: at for at, class_ in enumerate(Class)}


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


class Oldest(NamedTuple):
    """The age of the oldest break, in business days."""

    days: int
    is_exact: bool
    """True if the age is exact: a result has only ranges of ages, and a sample."""


def about(name: str) -> About:
    """The meaning, cause and action of a class."""
    return ABOUT[Class(name)]


def rank(name: str) -> int:
    """The place of a class among all of them."""
    return _RANKS[name]


def digits(result: Result, currency: str | None) -> int:
    """The digits after the point; 0 without a currency, since that is a count."""
    return 0 if currency is None else result.digits.get(currency, 2)


def currencies(result: Result) -> tuple[str, ...]:
    """The currencies of the result."""
    return tuple(sorted({total.currency for total in result.totals} | result.digits.keys()))


def in_flight(result: Result) -> tuple[int, dict[str, int]]:
    """The number of transfers in flight, and their sums by currency."""
    found = [total for total in result.totals if total.class_ == Class.IN_FLIGHT]
    sums: dict[str, int] = {}
    for total in found:
        sums[total.currency] = sums.get(total.currency, 0) + total.at_risk
    return sum(total.transfers for total in found), sums


def oldest(result: Result) -> Oldest | None:
    """The age of the oldest break; ``None`` without breaks."""
    aged = [cell for cell in result.aging if cell.transfers and _is_break(cell.class_)]
    if not aged:
        return None
    least = max(_LEAST_AGES[cell.bucket] for cell in aged)
    shown = [item.age_days for item in result.items if _is_break(item.class_)]
    among = [age for age in shown if age >= least]
    bucket = BUCKETS[list(_LEAST_AGES.values()).index(least)]
    all_of_it = sum(cell.transfers for cell in aged if cell.bucket == bucket)
    return Oldest(max(among, default=least), len(among) >= all_of_it or bucket in {"0", "1"})


def days(run: Run) -> tuple[Past, ...]:
    """The earlier days and this one, oldest first."""
    return (*run.trend, run.result.past)


def signature(run: Run) -> SignatureState:
    """The state of the signatures, regardless of other days."""
    if run.sign_off is None:
        return "unsigned"
    if run.sign_off.result_digest != run.result_digest:
        return "invalidated"
    return "signed" if run.sign_off.is_complete else "prepared"


def _is_break(name: str) -> bool:
    return about(name).group == "break"
