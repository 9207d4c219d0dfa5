"""The report page for the controller: one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from itertools import groupby, zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from txmq.reconcile.classes import Class
from txmq.reconcile.report import words
from txmq.reconcile.summary import BUCKETS, Aged, Proof, Run, sum_totals
from txmq.text import printable

__all__ = ["page"]

_HERE: Final = Path(__file__).parent / "templates"
_PLOT: Final = 96
"""Pixels between the lowest line of a trend and its highest one. Heights are whole numbers: amounts
are never floats."""
_VALUES_MAX: Final = 10
_FITTING: Final = 4
"""The most characters of a value that fit above a column on a phone."""
_FLOORS: Final = tuple(map(Decimal, ("99.9", "99.5", "99", "98", "95", "90", "80", "50", "0")))


class Trend(NamedTuple):
    """The days side by side: points of a line, or columns; ``about`` is for screen readers."""

    id: str
    title: str
    about: str
    values: Sequence[str]
    heights: Sequence[int | None]
    """Pixels above the lowest line; ``None`` on days without a value."""
    highest: str
    """The value of the upper line; empty if the columns show their values."""
    lowest: str = ""
    """The value of the lower line; empty for columns."""


def page(run: Run) -> bytes:
    """A run as HTML.

    The file loads no script, font or picture, and its content policy forbids them all. The policy
    allows one style, by its hash, so a text from a ledger that got past the escaping could not even
    change the look of the page.
    """
    style = (_HERE / "page.css").read_text()
    result = run.result

    def money(minor: int, currency: str | None) -> str:
        return words.amount(minor, result.places(currency))

    def amounts(sums: Mapping[str, int]) -> list[tuple[str, str]]:
        """The sums that are not zero, with their currencies."""
        found = [(money(sum_, name), name) for name, sum_ in sorted(sums.items()) if sum_]
        return found or [("0", "")]

    # Open differences come first, then explained ones. Counts have the currency "".
    proofs = sorted(
        result.proofs, key=lambda one: (not one.is_open, one.holds, -abs(one.difference))
    )
    proofs_of = {
        name: _with_places(proof for proof in proofs if (proof.currency or "") == name)
        for name in sorted({proof.currency or "" for proof in proofs})
    }
    places = {"evidence", *(f"break-{item['break_id']}" for item in result.items)}
    places |= {place for rows in proofs_of.values() for place, _ in rows if place}
    cells = sorted(result.aging, key=lambda cell: cell.currency)
    together = [msgspec.structs.replace(cell, class_="All") for cell in cells]
    shown = {
        "run": run,
        "result": result,
        "style": Markup(style),  # noqa: S704 - it is ours
        "style_hash": base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        "verdicts": words.VERDICTS,
        "classes": {class_.value: class_ for class_ in Class},
        "no_transfers": set(Class) - {total.class_ for total in result.totals if total.transfers},
        "reasons": [
            (why, place if place in places else "")
            for why, place in zip_longest(result.why, result.why_at, fillvalue="")
        ],
        "by_class": lambda totals: [list(of) for _, of in groupby(totals, attrgetter("class_"))],
        "sum_totals": sum_totals,
        "aged": _aged(result.aging),
        "aged_together": _aged(together),
        "buckets": BUCKETS,
        "trends": _trends(run),
        "proofs": proofs_of,
        "plot": _PLOT,
        "money": money,
        "amounts": amounts,
        "moment": partial(words.moment, zone=result.zone),
        "signed": lambda minor, currency: words.signed(minor, result.places(currency)),
    }
    return _PAGE.render(shown).encode()


def _with_places(proofs: Iterable[Proof]) -> list[tuple[str, Proof]]:
    """The rows of a currency, with a place for the first one of each proof that does not hold."""
    seen, found = {""}, list[tuple[str, Proof]]()
    for proof in proofs:
        place = proof.place if proof.is_open else ""
        found.append(("" if place in seen else place, proof))
        seen.add(place)
    return found


def _aged(cells: Iterable[Aged]) -> Mapping[str, Mapping[str, list[tuple[int, int]]]]:
    """By class and currency: the number of items and their sum, for each bucket and for all."""
    found: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for cell in cells:
        rows = found.setdefault(cell.class_, {})
        row = rows.setdefault(cell.currency, [(0, 0)] * (len(BUCKETS) + 1))
        for place in (BUCKETS.index(cell.bucket), -1):
            transfers, at_risk = row[place]
            row[place] = transfers + cell.transfers, at_risk + cell.at_risk
    return found


def _trends(run: Run) -> tuple[Trend, ...]:
    """The match rate, the breaks, and the value at risk in each currency with breaks."""
    rates = [words.rate(day) for day in run.days]
    shares = [Decimal(words.rate(day).rstrip("%")) if day.transfers else None for day in run.days]
    least = min((share for share in shares if share is not None), default=Decimal(100))
    floor = next(floor for floor in _FLOORS if floor <= least)
    heights = [
        None if share is None else int((share - floor) * _PLOT / (100 - floor)) for share in shares
    ]
    lowest = rates[shares.index(least)] if least in shares else "100%"
    about = f"{rates[-1]} on {run.result.business_date}; the lowest is {lowest}."
    found = [
        Trend("rate", "Match rate", about, rates, heights, "100%", f"{floor}%"),
        _columns(run, "breaks", "Breaks", [day.breaks for day in run.days], None),
    ]
    of_breaks = {name for day in run.days for name, sum_ in day.at_risk.items() if sum_}
    for currency in sorted(of_breaks):
        worth = [day.at_risk.get(currency, 0) for day in run.days]
        title = f"Value at risk, {currency}"
        found.append(_columns(run, f"risk-{currency}", title, worth, currency))
    return tuple(found)


def _columns(run: Run, name: str, title: str, numbers: list[int], currency: str | None) -> Trend:
    values = [words.amount(number, run.result.places(currency)) for number in numbers]
    most = max(numbers)
    heights = [max(n * _PLOT // most, 2 if n else 0) if most else 0 for n in numbers]
    highest = values[numbers.index(most)]
    about = f"{values[-1]} on {run.result.business_date}; the most is {highest}."
    fits = len(values) <= _VALUES_MAX and len(highest) <= _FITTING
    return Trend(name, title, about, values, heights, "" if fits else highest)


def _escape_foreign(value: object) -> object:
    """Jinja calls this for every printed value, so no template can forget it."""
    is_foreign = isinstance(value, str) and not isinstance(value, Markup)
    return printable(str(value)) if is_foreign else value


_ENVIRONMENT: Final = Environment(
    loader=FileSystemLoader(_HERE),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_escape_foreign,
)
_ENVIRONMENT.filters |= {
    "long_date": words.long_date,
    # A position in a chart, as a share of its width.
    "percent": lambda part, whole: f"{Decimal(part * 10_000 // whole) / 100:.2f}%",
    "points": words.points,
    "rate": words.rate,
    "seconds": words.seconds,
}
_PAGE: Final = _ENVIRONMENT.get_template("page.html")
