"""The report page for the controller: one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from txmq.printable import printable
from txmq.reconcile.classes import Class
from txmq.reconcile.report import charts, words
from txmq.reconcile.summary import BUCKETS, RANKS, Aged, Proof, Run, sum_totals

__all__ = ["page"]

_HERE: Final = Path(__file__).parent / "templates"


def page(run: Run) -> bytes:
    """A run as HTML.

    The file loads no script, font or picture, and its content policy forbids them all. The policy
    allows one style, by its hash, so a text from a ledger could not change even the look of the
    page if it ever got past the escaping.
    """
    style = (_HERE / "page.css").read_text()
    result = run.result
    together = (msgspec.structs.replace(cell, class_="All") for cell in result.aging)
    shown = {
        "run": run,
        "result": result,
        "style": Markup(style),  # noqa: S704 - it is ours
        "style_hash": base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        "verdicts": words.VERDICTS,
        "classes": {class_.value: class_ for class_ in Class},
        "no_transfers": RANKS.keys() - {total.class_ for total in result.totals if total.transfers},
        "sum_totals": sum_totals,
        "in_flight": {total.currency: total.at_risk for total in result.in_flight},
        "aged": _aged(result.aging),
        "aged_together": _aged(together),
        "buckets": BUCKETS,
        "trends": charts.trends(run),
        "proofs": _proofs(result.proofs),
        "mask_rule": words.MASK_RULE,
        "plot": charts.PLOT,
    }
    return _PAGE.render(shown).encode()


def _aged(cells: Iterable[Aged]) -> Mapping[tuple[str, str], list[tuple[int, int]]]:
    """The rows of the aging matrix by class and currency: the number of items and their sum, for
    each bucket and for all of them.
    """
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for cell in sorted(cells, key=lambda cell: (RANKS.get(cell.class_, 0), cell.currency)):
        row = found.setdefault((cell.class_, cell.currency), [(0, 0)] * (len(BUCKETS) + 1))
        for place in (BUCKETS.index(cell.bucket), -1):
            transfers, at_risk = row[place]
            row[place] = transfers + cell.transfers, at_risk + cell.at_risk
    return found


def _proofs(proofs: Iterable[Proof]) -> Mapping[str, list[Proof]]:
    """The proofs by currency: those with an open difference, the explained ones, then those that
    hold. Those of counts have the currency ``""``, and come first.
    """
    found: dict[str, list[Proof]] = {}
    for proof in sorted(
        proofs,
        key=lambda one: (one.currency or "", not one.is_open, one.holds, -abs(one.difference)),
    ):
        found.setdefault(proof.currency or "", []).append(proof)
    return found


def _escape_foreign(value: object) -> object:
    """Jinja calls this for every printed value, so no template can forget it."""
    is_foreign = isinstance(value, str) and not isinstance(value, Markup)
    return printable(str(value)) if is_foreign else value


@pass_context
def _money(context: Context, minor: int, currency: str | None) -> str:
    return words.amount(minor, context["result"].places(currency))


@pass_context
def _amounts(context: Context, sums: Mapping[str, int]) -> list[tuple[str, str]]:
    """The sums with their currencies, without those of zero."""
    found = ((_money(context, sums[name], name), name) for name in sorted(sums) if sums[name])
    return list(found) or [("0", "")]


@pass_context
def _moment(context: Context, at_ms: int) -> str:
    return words.moment(at_ms, context["result"].zone)


@pass_context
def _signed(context: Context, minor: int, currency: str | None) -> str:
    return words.signed(minor, context["result"].places(currency))


def _percent(part: int, whole: int) -> str:
    """A part in percent, as a place in a chart that fills its width."""
    hundredths = part * 10_000 // whole
    return f"{hundredths // 100}.{hundredths % 100:02d}%"


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_escape_foreign,
    )
    made.filters |= {
        "amounts": _amounts,
        "long_date": words.long_date,
        "moment": _moment,
        "money": _money,
        "percent": _percent,
        "points": words.points,
        "rate": words.rate,
        "seconds": words.seconds,
        "signed": _signed,
    }
    return made


_PAGE: Final = _environment().get_template("page.html")
