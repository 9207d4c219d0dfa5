"""Facts derived from a run: its verdict in words, its signatures. Pure.

The page, the JSON, the metrics and the terminal agree because all of them use this module.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from txmq.reconcile.classes import ABOUT, About, Class
from txmq.reconcile.signatures import SignatureState
from txmq.reconcile.summary import Past, Result, Run, Verdict

__all__ = [
    "VERDICTS",
    "Headline",
    "about",
    "currencies",
    "days",
    "digits",
    "in_flight",
    "rank",
    "signature",
]

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
