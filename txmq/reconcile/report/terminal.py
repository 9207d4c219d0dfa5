"""A run in a terminal: the verdict, the classes, failed proofs, and the path of the report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from txmq.printable import printable
from txmq.reconcile.report.words import VERDICTS, amount, long_date, rate, seconds, signed
from txmq.reconcile.summary import Run, Total, sum_totals

__all__ = ["show"]

_AMOUNTS: Final = ("debited", "credited", "at_risk")
_UNBOUNDED: Final = 10_000
_PROOFS: Final = 10
_STYLES: Final = {"good": "bold green", "wait": "bold yellow", "bad": "bold red"}
_SIGNS: Final = {"good": "✔", "wait": "▲", "bad": "✖"}
_GROUPS: Final = {"break": "red", "open": "yellow", "agreed": "green"}


def show(run: Run, console: Console, report: str = "") -> None:
    """Print the result of a run, and the path of its page if there is one.

    A console without colours, or a narrow one, gets the same words.
    """
    result = run.result
    _say(console, f"{result.name}, {long_date(result.business_date)}", "bold")
    if not result.is_final:
        _say(console, "The day was not over when the books were read.", "yellow")
    headline = VERDICTS[result.verdict]
    sign = "" if console.options.ascii_only else f"{_SIGNS[headline.mood]} "
    _say(console, f"{sign}{headline.words}", _STYLES[headline.mood])
    for why in result.why:
        _say(console, f"  - {why}")
    console.print()
    rows = sorted(result.totals, key=lambda total: list(_GROUPS).index(total.group))
    # An amount is never cut: if the table does not fit, each class gets its own lines.
    table = _table(run, rows)
    unbounded = console.options.update(max_width=_UNBOUNDED)
    if Measurement.get(console, unbounded, table).maximum <= console.width:
        console.print(table)
    else:
        for total in rows:
            line = f"{total.class_}: {total.transfers:,} ({total.group})"
            _say(console, line, _GROUPS[total.group])
            if total.at_risk:
                worth = amount(total.at_risk, result.places(total.currency))
                _say(console, f"  {worth} {total.currency} at risk")
        console.print()
    _say(
        console,
        f"{rate(result.match_rate)} of "
        f"{_count(result.transfers, 'transfer is', 'transfers are')} agreed, "
        f"{_count(result.breaks, 'is a break', 'are breaks')}, "
        f"{_count(result.closed, 'of earlier days was', 'of earlier days were')} closed; "
        f"it took {seconds((run.ended_ms - run.began_ms) / 1000)}.",
    )
    _proofs(run, console)
    if count := result.decided_by_hand:
        decided = _count(count, "transaction was", "transactions were")
        _say(console, f"{decided} decided by hand; the report says why.", "yellow")
    for note in run.notes:
        _say(console, f"note: {note}", "yellow")
    if report:
        _say(console, f"report: {report}")


def _table(run: Run, rows: Iterable[Total]) -> Table:
    drawn = Table("class", "group", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("transfers", *_AMOUNTS):
        drawn.add_column(heading.replace("_", " "), justify="right")
    drawn.add_column("")
    for totals, style in ((rows, ""), (sum_totals(run.result.totals), "bold")):
        for total in totals:
            places = run.result.places(total.currency)
            drawn.add_row(
                total.class_,
                Text(total.group, style=_GROUPS.get(total.group, "")),
                f"{total.transfers:,}",
                *(amount(getattr(total, name), places) for name in _AMOUNTS),
                Text(printable(total.currency)),
                style=style,
            )
        drawn.add_section()
    return drawn


def _proofs(run: Run, console: Console) -> None:
    result = run.result
    if not result.broken_proofs:
        is_whole = all(proof.holds for proof in result.proofs)
        _say(console, f"All balance proofs hold{'' if is_whole else ' or are explained'}.")
        return
    count = _count(result.broken_proofs, "balance proof does", "balance proofs do")
    _say(console, f"{count} not hold:", _STYLES["bad"])
    unexplained = [proof for proof in result.proofs if proof.is_open]
    shown = sorted(unexplained, key=lambda proof: -abs(proof.rest))[:_PROOFS]
    for proof in shown:
        places, unit = result.places(proof.currency), f" {proof.currency or ''}".rstrip()
        where = ", ".join(filter(None, (proof.bank, proof.account)))
        name = f"{proof.proof} of {where}" if where else proof.proof
        expected, found = amount(proof.expected, places), amount(proof.found, places)
        off = f"{signed(proof.difference, places)}{unit}"
        if proof.rest != proof.difference:
            off += f", {signed(proof.rest, places)}{unit} unexplained"
        _say(console, f"  - {name}: {expected} expected, {found} found, {off}")
    if result.broken_proofs > len(shown):
        _say(console, f"  and {result.broken_proofs - len(shown):,} more")


def _count(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


def _say(console: Console, text: str, style: str = "") -> None:
    # Names come from ledgers: they must not act as markup or as terminal commands. Outside a
    # terminal, lines are never broken, so that programs find them whole.
    console.print(Text(printable(text), style=style), soft_wrap=not console.is_terminal)
