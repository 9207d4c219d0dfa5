"""Results of reconciliations: the days, one day with its breaks, and one break."""

from __future__ import annotations

from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Final

from txmq.console.markup import link
from txmq.console.pages.parts import require_operator
from txmq.console.visits import PageContent, Routes, Visit, render
from txmq.errors import NotFound, ReconcileRefused, UsageError
from txmq.limits import CONSOLE_ROWS
from txmq.reconcile.classes import Class
from txmq.reconcile.report.words import VERDICTS, amount, moment, rate, signed
from txmq.reconcile.summary import BUCKETS, Run

if TYPE_CHECKING:
    from txmq.reconcile.archive import DayRow, ItemFilter

__all__ = ["routes"]

routes = Routes()

PAGES_MAX: Final = 100
"""How many pages of breaks are shown; a filter finds the rest."""
_DAYS_MAX: Final = 9_999
_STATES: Final = {"unsigned": "calm", "prepared": "wait", "signed": "good", "invalidated": "bad"}
_STATUSES: Final = ("new", "open", "changed", "reopened", "explained", "closed")
_FACTS: Final = (
    *("key", "currency", "holder", "debit_bank", "credit_bank", "payer", "payee"),
    *("debits", "returns", "credits", "messages", "message_id", "message_state", "delivery"),
    *("decided_by", "reason", "first_seen", "age_days", "id_doubt", "suggestion"),
    *("explained_by", "explanation", "owner", "ticket", "due"),
)


@routes.page("/reconciliation")
async def show_list(visit: Visit) -> PageContent:
    """Show the days with a result, the newest first."""
    await require_operator(visit)
    number, total = 1, 0
    rows: list[DayRow] = []
    if visit.reports.directory:
        number = visit.page_number()
        rows, total = await visit.reports.ask(
            lambda archive: archive.days((number - 1) * CONSOLE_ROWS, CONSOLE_ROWS)
        )
    return render(
        "reconciliation.html",
        title="Reconciliation",
        directory=visit.reports.directory,
        rows=rows,
        number=number,
        pages=max(1, -(-total // CONSOLE_ROWS)),
        verdicts=VERDICTS,
        states=_STATES,
        money=_money,
        rate=rate,
    )


@routes.page("/reconciliation/day")
async def show_day(visit: Visit) -> PageContent:
    """Show a day: its verdict, sums, signatures, failed proofs and breaks."""
    await require_operator(visit)
    day, number = _day_of(visit), visit.page_number()
    if number > PAGES_MAX:
        raise UsageError(
            f"a list of breaks has at most {PAGES_MAX} pages; choose a class or a bank"
        )
    report = await visit.reports.ask(lambda archive: archive.day(day))
    wanted = _filter_of(visit)
    breaks, problem = None, ""
    try:
        breaks = await visit.reports.ask(
            lambda archive: archive.breaks(day, wanted, (number - 1) * CONSOLE_ROWS, CONSOLE_ROWS)
        )
    except ReconcileRefused as error:
        problem = str(error)
    result = report.run.result
    older = "" if wanted.older_than is None else wanted.older_than
    page_link = partial(
        link,
        "/reconciliation/day",
        date=day.isoformat(),
        **{"class": wanted.class_, "status": wanted.status, "bank": wanted.bank, "older": older},
    )
    return render(
        "reconciliation_day.html",
        title="Reconciliation of a day",
        day=day.isoformat(),
        report=report,
        run=report.run,
        result=result,
        headline=VERDICTS[result.verdict],
        state_mood=_STATES[report.state],
        money=partial(_money, report.run),
        amount=lambda minor, currency: amount(minor, result.places(currency)),
        signed=lambda minor, currency: signed(minor, result.places(currency)),
        rate=rate,
        moment=partial(moment, zone=result.zone),
        buckets=BUCKETS,
        aged=_aged(report.run),
        wanted=wanted,
        older=older,
        classes=[class_ for class_ in Class if class_.group != "agreed"],
        meanings={class_.value: class_ for class_ in Class},
        statuses=_STATUSES,
        breaks=breaks,
        problem=problem,
        number=number,
        before=page_link(page=number - 1),
        next=page_link(page=number + 1) if number < PAGES_MAX else "",
    )


@routes.page("/reconciliation/break")
async def show_break(visit: Visit) -> PageContent:
    """Show one break: its facts, its history, and what people noted."""
    await require_operator(visit)
    day, break_id = _day_of(visit), visit.required("id")
    run, row, comments = await visit.reports.ask(lambda archive: archive.find_break(day, break_id))
    result = run.result
    sums = ("amount", "debited", "returned", "credited", "ordered")
    own = Class(row["was"] or row["class"])
    return render(
        "reconciliation_break.html",
        title="Break",
        day=day.isoformat(),
        row=row,
        own=own,
        sums=[(name, amount(row[name], result.places(row["currency"]))) for name in sums],
        facts=[
            (name.replace("_", " "), row[name]) for name in _FACTS if row[name] not in (None, "")
        ],
        history=[change for change in (row["history"] or "").split(",") if change],
        comments=[(moment(note.at_ms, result.zone), note.by, note.comment) for note in comments],
        transfer=row["key"].partition("/")[2] or row["key"],
    )


def _day_of(visit: Visit) -> date:
    text = visit.required("date")
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise NotFound(f"{text[:40]!r} is not a date; write 2026-03-31") from error


def _filter_of(visit: Visit) -> ItemFilter:
    from txmq.reconcile.archive import ItemFilter

    class_, status, older = visit.text("class"), visit.text("status"), visit.text("older")
    if class_ and class_ not in list(Class):
        raise UsageError(f"class {class_!r} does not exist; choose one of the list")
    if status and status not in _STATUSES:
        raise UsageError(f"status {status!r} does not exist; use one of {', '.join(_STATUSES)}")
    if older and not (older.isascii() and older.isdecimal() and int(older) <= _DAYS_MAX):
        raise UsageError(f"the age is a number of business days up to {_DAYS_MAX}, not {older!r}")
    bank = visit.text("bank")
    return ItemFilter(
        class_ or None, status or None, bank or None, older_than=int(older) if older else None
    )


def _money(run: Run, sums: dict[str, int]) -> list[str]:
    """Sums of several currencies."""
    shown = [
        f"{amount(sum_, run.result.places(currency))} {currency}"
        for currency, sum_ in sorted(sums.items())
        if sum_
    ]
    return shown or ["0"]


def _aged(run: Run) -> dict[tuple[str, str], list[int]]:
    """The number of transfers by class and currency, for each age."""
    found: dict[tuple[str, str], list[int]] = {}
    for cell in run.result.aging:
        row = found.setdefault((cell.class_, cell.currency), [0] * len(BUCKETS))
        row[BUCKETS.index(cell.bucket)] += cell.transfers
    return found
