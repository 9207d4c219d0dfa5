"""The report page for the controller: one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from txmq.printable import printable
from txmq.reconcile.report import account_mask, charts, facts, view, words
from txmq.reconcile.summary import BUCKETS, Run

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
    shown = {
        "run": run,
        "result": result,
        "style": Markup(style),  # noqa: S704 - it is ours
        "style_hash": base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        "headline": facts.VERDICTS[result.verdict],
        "verdicts": facts.VERDICTS,
        "figures": view.figures(run),
        "groups": view.groups(result),
        "sums": view.sums(result.totals),
        "not_found": view.not_found(result),
        "aged": view.aged(result),
        "buckets": BUCKETS,
        "days": facts.days(run),
        "trends": (charts.rate_trend(run), charts.break_trend(run), *charts.risk_trends(run)),
        "currencies": facts.currencies(result),
        "proofs": view.proofs(result),
        "evidence": view.evidence(result),
        "signature": facts.signature(run),
        "mask_rule": account_mask.RULE,
        "top": charts.TOP,
        "plot": charts.PLOT,
    }
    return _PAGE.render(shown).encode()


def _escape_foreign(value: object) -> object:
    """Jinja calls this for every printed value, so no template can forget it."""
    is_foreign = isinstance(value, str) and not isinstance(value, Markup)
    return printable(str(value)) if is_foreign else value


@pass_context
def _money(context: Context, minor: int, currency: str | None) -> str:
    return words.amount(minor, facts.digits(context["result"], currency))


@pass_context
def _moment(context: Context, at_ms: int) -> str:
    return words.moment(at_ms, context["result"].zone)


@pass_context
def _signed(context: Context, minor: int, currency: str | None) -> str:
    return words.signed(minor, facts.digits(context["result"], currency))


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
        "long_date": words.long_date,
        "moment": _moment,
        "money": _money,
        "rate": words.rate,
        "seconds": words.seconds,
        "signed": _signed,
    }
    return made


_PAGE: Final = _environment().get_template("page.html")
