"""A run in a terminal: the verdict, the classes, failed proofs, and the path of the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, TypeAlias

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from txmq.reconcile.report.words import VERDICTS, amount, long_date, rate, seconds, signed
from txmq.reconcile.summary import Result, Run, Total, sum_totals
from txmq.text import printable

__all__ = ["show"]

_AMOUNTS: Final = ("debited", "credited", "at_risk")
_HEADS: Final = ("transfers", *(name.replace("_", " ") for name in _AMOUNTS))
_Line: TypeAlias = tuple[str, str, list[str]]
"""A class, its group, and its currency, number and sums."""
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
    lines = [_line(total, result) for total in (*rows, *sum_totals(rows))]
    # An amount is never cut: if the table does not fit, each class gets its own lines.
    table = _table(lines)
    unbounded = console.options.update(max_width=_UNBOUNDED)
    if Measurement.get(console, unbounded, table).maximum > console.width:
        _print_classes(lines, console)
    elif rows:
        console.print(table)
    _say(console, f"{_counts(result)}; it took {seconds((run.ended_ms - run.began_ms) / 1000)}.")
    _proofs(run, console)
    if count := result.decided_by_hand:
        decided = _count(count, "transaction was", "transactions were")
        _say(console, f"{decided} decided by hand; the report says why.", "yellow")
    for note in run.notes:
        _say(console, f"note: {note}", "yellow")
    if report:
        _say(console, f"report: {report}")


def _counts(result: Result) -> str:
    """One sentence on the day's own transfers and on what became of items of earlier days."""
    breaks = _count(result.breaks, "is a break", "are breaks")
    still_open = f", {_count(result.carried, 'is', 'are')} still open" if result.carried else ""
    if not result.own_transfers:
        closed = _count(result.closed, "was", "were")
        return f"The day had no transfers; of earlier days {breaks}, {closed} closed{still_open}"
    own = _count(result.own_transfers, "transfer is", "transfers are")
    closed = _count(result.closed, "of earlier days was", "of earlier days were")
    return f"{rate(result.past)} of {own} agreed, {breaks}, {closed} closed{still_open}"


def _line(total: Total, result: Result) -> _Line:
    amounts = (amount(getattr(total, name), result.places(total.currency)) for name in _AMOUNTS)
    return total.class_, total.group, [printable(total.currency), f"{total.transfers:,}", *amounts]


def _print_classes(lines: Sequence[_Line], console: Console) -> None:
    """Print each class with a line for each currency; if that does not fit, one for each sum."""
    table = [["", *_HEADS], *(cells for *_, cells in lines)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    fits = sum(widths) + 2 * len(widths) <= console.width

    def show_cells(cells: Iterable[str]) -> None:
        padded = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        _say(console, "  " + "  ".join(padded))

    if fits:
        show_cells(table[0])
    for (class_, group), of_class in groupby(lines, itemgetter(0, 1)):
        _say(console, f"{class_} ({group})" if group else class_, _GROUPS.get(group, "bold"))
        for *_, cells in of_class:
            if fits:
                show_cells(cells)
                continue
            currency, count, *amounts = cells
            _say(console, f"  {count} {currency}".rstrip())
            for head, cell in zip(_HEADS[1:], amounts, strict=True):
                _say(console, f"    {cell} {head}")
    console.print()


def _table(lines: Iterable[_Line]) -> Table:
    drawn = Table("class", "group", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in _HEADS:
        drawn.add_column(heading, justify="right")
    drawn.add_column("")
    for (class_, group), of_class in groupby(lines, itemgetter(0, 1)):
        if not group:
            drawn.add_section()  # The sums of all classes.
        names = class_, Text(group, style=_GROUPS.get(group, ""))
        for *_, (currency, *cells) in of_class:
            drawn.add_row(*names, *cells, Text(currency), style="" if group else "bold")
            names = "", Text()
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
        if proof.first_seen not in {None, result.business_date}:
            off += f", since {proof.first_seen}"
        _say(console, f"  - {name}: {expected} expected, {found} found, {off}")
    if result.broken_proofs > len(shown):
        _say(console, f"  and {result.broken_proofs - len(shown):,} more")


def _count(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


def _say(console: Console, text: str, style: str = "") -> None:
    # Names come from ledgers: they must not act as markup or as terminal commands. Outside a
    # terminal, lines are never wrapped, so that programs find them whole.
    console.print(Text(printable(text), style=style), soft_wrap=not console.is_terminal)
