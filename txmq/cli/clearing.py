"""What people do with a reconciled day: ``breaks``, ``proofs`` and ``signoff``."""

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec
import typer

from txmq.cli.commands import Answer
from txmq.cli.common import AsJson, Yes, confirm, flag, option
from txmq.cli.output import as_json, note, say, shortened, table
from txmq.cli.reconcile_options import (
    NOT_RUN,
    Config,
    Day,
    ReconcileCommands,
    date_of,
    last_finished,
    report_failures,
    rules_of,
)
from txmq.errors import ConfigError, ReconcileRefused
from txmq.reconcile import Class, Result, Rules, Run
from txmq.reconcile.report.words import amount, mask, mask_sides, moment, signed
from txmq.runtime.clock import SystemClock
from txmq.text import printable, quantity

if TYPE_CHECKING:
    from txmq.reconcile.archive import ItemFilter
    from txmq.reconcile.results import Results, Role

__all__ = ["as_csv", "breaks_app", "proofs_app", "signoff"]

Cell: TypeAlias = str | int | Decimal | None

breaks_app = ReconcileCommands()
proofs_app = ReconcileCommands()

By = Annotated[str, typer.Option("--by", help="The name of the person who decides.")]
Reason = Annotated[str, typer.Option("--reason", help="The explanation.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Their ids, or the beginnings of the ids.")]
IdFile = Annotated[
    typer.FileText | None,
    typer.Option("--file", help="Only the ids in this file, one in each line."),
]
Bank = Annotated[str | None, typer.Option("--bank", help="Only of this bank.")]
Account = Annotated[
    str | None, typer.Option("--account", help="Only of this account, as it is in the books.")
]
Unmasked = Annotated[bool, typer.Option("--unmasked", help="Show account numbers as they are.")]
ClassName = Annotated[
    str | None, typer.Option("--class", help="Only this class, such as double-credit.")
]
ProofName = Annotated[
    str | None, typer.Option("--proof", help="Only this proof, such as account-table.")
]
_TEXTS: Final = {
    "key": ("transfer", True), "id_doubt": ("id doubt", False), "suggestion": ("suggestion", False),
    "payer": ("payer", True), "payee": ("payee", True), "owner": ("owner", False),
    "due": ("due", False), "overdue": ("", False),
}  # fmt: skip
"""The last columns of the list: their headings, and whether they are there without any value."""
_AMOUNTS: Final = ("amount", "debited", "returned", "credited", "ordered")
_EXPORTED: Final = (
    *("break_id", "class", "was", "status", "first_seen", "age_days", "currency", *_AMOUNTS),
    *("key", "id_doubt", "suggestion"),
    *("debit_bank", "credit_bank", "payer", "payee", "message_id", "message_state"),
    *("delivery", "decided_by", "reason", "explained_by", "explanation"),
    *("owner", "ticket", "due", "overdue", "comments"),
)
_DIFFERENCES: Final = (
    *("id", "proof", "bank", "account", "since", "difference", ""),
    *("explained by", "until", "hint"),
)
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a text that begins with one of these for a formula."""
_ROLES: Final[dict[str | None, "Role"]] = {"preparer": "preparer", "reviewer": "reviewer"}


class DayRun(NamedTuple):
    """A reconciled date, and its rules."""

    day: Day = None
    config: Config = None

    def read(self) -> "tuple[Rules, Results, Run]":
        """The rules, their results, and the run in force; of the last finished date by default.

        Raises:
            ReconcileRefused: The date was not reconciled yet.
        """
        from txmq.reconcile.results import Results

        rules = rules_of(self.config)
        wanted, results = self.day or last_finished(rules), Results(rules.directory)
        run = results.current(wanted)
        if run is None:
            raise ReconcileRefused(
                f"{wanted} was not reconciled yet: txmq reconcile --date {wanted}"
            )
        return rules, results, run


class BreakChoice(NamedTuple):
    """The breaks that are wanted, beside their class."""

    bank: Bank = None
    account: Account = None
    older_than: int | None = option("Only older; business days.", "--older-than", metavar="DAYS")
    file: IdFile = None

    def filter(self, class_: str | None, status: str | None = None) -> "ItemFilter":
        """What items of the archive must be.

        Raises:
            ConfigError: The class does not exist.
        """
        from txmq.reconcile.archive import ItemFilter

        _check_name("class", class_, list(Class))
        return ItemFilter(class_, status, self.bank, self.account, self.older_than)


@breaks_app.callback()
def breaks(
    ctx: typer.Context,
    *,
    day_run: DayRun,
    class_: ClassName = None,
    status: str | None = option(
        "Only these.", "--status", metavar="new|open|changed|reopened|explained"
    ),
    choice: BreakChoice,
    everything: bool = flag("Also items in flight, and explained ones.", "--all"),
    unmasked: Unmasked = False,
    export: Path | None = option("Write them to this .csv file.", "--export"),
    json: AsJson = False,
) -> None:
    """List the breaks of a business date, oldest first; explain, withdraw or assign them."""
    if ctx.invoked_subcommand is not None:
        return
    with report_failures():
        wanted, named = choice.filter(class_, status), _ids_of(None, choice.file)
        rules, results, run = day_run.read()
        items = _find(results, run, wanted, named, is_complete=everything)
        found = _with_notes(items if unmasked else list(map(mask_sides, items)), rules)
        if export is not None:
            _export(found, run, export)
            return
        words = [name for name in _TEXTS if _TEXTS[name][1] or any(one[name] for one in found)]
        headings = "break", "class", "status", "days", "amount", ""
        rows = (
            (
                *(item[name] for name in ("break_id", "class", "status", "age_days")),
                amount(item["amount"], run.result.places(item["currency"])),
                item["currency"],
                *(shortened(item[name] or "") for name in words),
            )
            for item in found
        )
        empty = f"no such breaks on {run.result.business_date}"
        columns = (*headings, *(_TEXTS[name][0] for name in words))
        Answer(found, lambda: table(columns, rows, empty=empty)).show(json=json)


@breaks_app.command("explain")
def explain_breaks(
    ids: Ids = None,
    *,
    by: By,
    reason: Reason,
    day_run: DayRun,
    class_: ClassName = None,
    choice: BreakChoice,
    yes: Yes = False,
) -> None:
    """Explain breaks. They stop counting as such from the next run until their facts change.

    The proofs clearing and double-entry of their transfers are explained with them.
    """
    with report_failures():
        from txmq.reconcile.differences import differences_in
        from txmq.reconcile.explanations import Difference, Explanation, Explanations

        wanted, named = choice.filter(class_), _ids_of(ids, choice.file)
        rules, results, run = day_run.read()
        items = _choose(results, run, wanted, named, yes=yes)
        rows = differences_in(rules.directory, run, is_complete=True)
        differences = msgspec.convert(rows, list[Difference])
        said = by, reason, SystemClock().wall_ms(), differences
        made = [Explanation.of(item, *said) for item in items]
        Explanations(rules.directory).add(made)
        for done in made:
            say(
                f"{done.break_id} counts as explained from the next run on, as long as it is "
                f"{done.class_} and its facts do not change"
            )


@breaks_app.command()
@proofs_app.command()
def withdraw(
    id_: Annotated[str, typer.Argument(metavar="ID", help="The whole id.")],
    *,
    by: By,
    reason: str = option("Why the explanation is wrong.", "--reason", default=...),
    config: Config = None,
) -> None:
    """Withdraw an explanation."""
    with report_failures():
        from txmq.reconcile.explanations import Explanations

        directory = rules_of(config).directory
        Explanations(directory).withdraw(id_, by, reason, SystemClock().wall_ms())
        say(f"{id_} is not explained any more from the next run on")


@breaks_app.command()
def assign(
    ids: Ids = None,
    *,
    by: By,
    owner: str = option("Who works on it.", "--owner", default=""),
    ticket: str = option("The link to a ticket.", "--ticket", default=""),
    due: date | None = option("When it should be done.", "--due", parser=date_of, metavar="DATE"),
    comment: str = option("A comment; all are kept.", "--comment", default=""),
    day_run: DayRun,
    class_: ClassName = None,
    choice: BreakChoice,
    yes: Yes = False,
) -> None:
    """Give breaks an owner, a ticket or a due date, or comment on them. No result depends on it."""
    with report_failures():
        from txmq.reconcile.explanations import BreakNote, Explanations

        news = owner, ticket, due.isoformat() if due else "", comment
        if not any(news) or not by.strip():
            raise ConfigError("give your name, and --owner, --ticket, --due or --comment")
        wanted, named = choice.filter(class_), _ids_of(ids, choice.file)
        rules, results, run = day_run.read()
        items = _choose(results, run, wanted, named, yes=yes)
        now_ms = SystemClock().wall_ms()
        Explanations(rules.directory).add(
            [BreakNote(item["break_id"], by.strip(), now_ms, *news) for item in items]
        )
        say(f"noted for {quantity(len(items), 'break')}")


def _find(
    results: "Results",
    run: Run,
    wanted: "ItemFilter",
    ids: Sequence[str],
    *,
    is_complete: bool = False,
) -> list[dict[str, Any]]:
    """The items that fit; of those with ids, also the ones in flight or explained."""
    from txmq.reconcile.archive import find_items, items_of

    items = items_of(results, run, wanted, is_complete=is_complete or bool(ids))
    return find_items(items, ids) if ids else items


def _choose(
    results: "Results", run: Run, wanted: "ItemFilter", ids: Sequence[str], *, yes: bool
) -> list[dict[str, Any]]:
    """The breaks that fit. If there are several, the user sees their sums, and agrees first."""
    if not ids and set(wanted) == {None}:
        raise ConfigError("name breaks by their ids, or choose them with --class, --bank, …")
    items = _find(results, run, wanted, ids)
    _confirm_rows(len(items), "breaks", run.result.business_date, _lines(items, run), yes=yes)
    return items


def _lines(items: list[dict[str, Any]], run: Run) -> Iterator[str]:
    """A line for each break, and the sums of each currency."""
    counts, sums = Counter[str](), Counter[str]()
    for item in items:
        yield f"{item['break_id']} {item['class']} of {shortened(item['key'])}"
        counts[item["currency"]] += 1
        sums[item["currency"]] += item["amount"]
    for currency, sum_ in sorted(sums.items()):
        worth = amount(sum_, run.result.places(currency))
        yield f"{quantity(counts[currency], 'break')}: {worth} {currency} at risk"


def _with_notes(items: list[dict[str, Any]], rules: Rules) -> list[dict[str, Any]]:
    """Breaks with their owners, tickets, due dates and comments."""
    from txmq.reconcile.explanations import BreakNotes, Explanations

    day, notes = rules.day, Explanations(rules.directory).notes()
    today, found = day.of(SystemClock().wall_ms()).isoformat(), []
    for item in items:
        owner, ticket, due, comments = notes.get(item["break_id"], BreakNotes())
        lines = (f"{moment(one.at_ms, day.zone)} {one.by}: {one.comment}" for one in comments)
        more = {"owner": owner, "ticket": ticket, "due": due, "comments": "\n".join(lines)}
        found.append(item | more | {"overdue": "overdue" if due and due < today else ""})
    return found


def _export(items: Sequence[Mapping[str, Any]], run: Run, path: Path) -> None:
    if path.suffix != ".csv":
        raise ConfigError(f"the file {path} is not .csv: name one that is")
    rows = [
        [
            Decimal(item[name]).scaleb(-run.result.places(item["currency"]))
            if name in _AMOUNTS
            else item[name]
            for name in _EXPORTED
        ]
        for item in items
    ]
    try:
        path.write_bytes(as_csv(_EXPORTED, rows))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error
    say(f"{quantity(len(items), 'break')} in {path}")


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> bytes:
    """Rows under headings, as CSV in UTF-8 with a mark of the encoding.

    No text of a ledger becomes a formula: one that would begin a formula gets an apostrophe.
    """
    out = io.StringIO()
    csv.writer(out).writerows([columns, *(map(_csv_cell, row) for row in rows)])
    return out.getvalue().encode("utf-8-sig")


def _csv_cell(value: Cell) -> Cell:
    text = printable(value) if isinstance(value, str) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(_FORMULA) else text


@proofs_app.callback()
def proofs(
    ctx: typer.Context,
    *,
    day_run: DayRun,
    proof: ProofName = None,
    bank: Bank = None,
    account: Account = None,
    file: IdFile = None,
    everything: bool = flag("Also explained ones.", "--all"),
    unmasked: Unmasked = False,
    json: AsJson = False,
) -> None:
    """List the differences of a date's proofs that nothing explains.

    A hint names a break with the same account and amount, or entries of earlier dates that the
    book may have lost; a person decides if they are the reason.
    """
    if ctx.invoked_subcommand is not None:
        return
    with report_failures():
        from txmq.reconcile.differences import (
            ABOUT_PROOFS,
            OF_ACCOUNTS,
            differences_in,
            old_entries_like,
        )

        _check_name("proof", proof, ABOUT_PROOFS)
        wanted = proof, bank, account, _ids_of(None, file)
        rules, results, run = day_run.read()
        rows = differences_in(rules.directory, run, *wanted, is_complete=everything)
        hints = old_entries_like(results, run, rows, rules.day.history)
        for row in rows:
            row["hint"] = hints.get(row["id"], row["hint"])
        for row in () if unmasked else rows:
            if row["proof"] in OF_ACCOUNTS:
                row["account"] = mask(row["account"])
        shown = (
            (
                *(shortened(row[name] or "") for name in ("id", "proof", "bank", "account")),
                row["first_seen"],
                _amounts(row, run.result),
                *(row[name] or "" for name in ("currency", "explained_by", "until", "hint")),
            )
            for row in rows
        )
        empty = f"no such differences on {run.result.business_date}"
        Answer(rows, lambda: table(_DIFFERENCES, shown, empty=empty)).show(json=json)


@proofs_app.command("explain")
def explain_proofs(
    ids: Ids = None,
    *,
    by: By,
    reason: Reason,
    until: date | None = option(
        "The last business date on which it counts.", "--until", parser=date_of, metavar="DATE"
    ),
    day_run: DayRun,
    proof: ProofName = None,
    bank: Bank = None,
    account: Account = None,
    file: IdFile = None,
    yes: Yes = False,
) -> None:
    """Explain differences of proofs, from the next run until their amounts change.

    With --until they count again after that date, if they are not corrected.
    """
    with report_failures():
        from txmq.reconcile.differences import ABOUT_PROOFS, differences_in
        from txmq.reconcile.explanations import Difference, Explanations, ProofExplanation

        _check_name("proof", proof, ABOUT_PROOFS)
        wanted = proof, bank, account, _ids_of(ids, file)
        if not any(wanted):
            raise ConfigError("name differences by their ids, or choose them with --proof, …")
        rules, _, run = day_run.read()
        rows = differences_in(rules.directory, run, *wanted)
        first, now_ms = run.result.business_date, SystemClock().wall_ms()
        lines = (f"{row['id']} {row['proof']}: {_amounts(row, run.result)}" for row in rows)
        _confirm_rows(len(rows), "differences", first, lines, yes=yes)
        last = until.isoformat() if until else None
        chosen = msgspec.convert(rows, list[Difference])
        said = by, reason, now_ms, first, last
        made = [ProofExplanation.of(difference, *said) for difference in chosen]
        Explanations(rules.directory).add(made)
        dates = f"for the dates {first} to {last}" if last else f"for all dates from {first} on"
        for done in made:
            say(
                f"{done.difference.id} counts as explained from the next run on, "
                f"{dates}, as long as its amount does not change"
            )


def _amounts(row: Mapping[str, Any], result: Result) -> str:
    places = result.places(row["currency"])
    return ", ".join(signed(amount, places) for amount in row["amounts"])


def signoff(
    *,
    day_run: DayRun,
    role: str | None = option("The role of the signer.", "--as", metavar="preparer|reviewer"),
    by: str = option("The name of the signer.", "--by", default=""),
    text: str = option("A note to keep with the signature.", "--note", default=""),
    despite: str = option(
        "Why you sign although there are breaks or failed proofs; needed if there are.",
        "--despite",
        default="",
        metavar="REASON",
    ),
    show: bool = flag("Show who has signed.", "--show"),
    json: AsJson = False,
) -> None:
    """Sign a day's result: one person prepares it, another one reviews it."""
    with report_failures():
        rules, results, run = day_run.read()
        if not show:
            if role not in _ROLES:
                raise ConfigError("choose a role: --as preparer or --as reviewer, or only --show")
            results.verify(run)
            signed = results.sign(_ROLES[role], run, by, SystemClock().wall_ms(), text, despite)
            _publish(rules, results, msgspec.structs.replace(run, sign_off=signed))
        _show_signatures(run, results, json=json)


def _publish(rules: Rules, results: "Results", run: Run) -> None:
    """Add the names wherever the result is kept."""
    from txmq.reconcile.report.page import page

    results.write_files(run, {"report.html": page(run), "summary.json": run.as_json()})
    if rules.recon is not None:
        from txmq.reconcile.schema import ReconSchema

        with closing(ReconSchema(rules.recon)) as schema:
            schema.sign(run)


def _show_signatures(run: Run, results: "Results", *, json: bool) -> None:
    state, given = results.signature_state(run), results.signatures(run.result.business_date)
    outdated = results.why_outdated(run)
    if json:
        about = {"state": state, "outdated": outdated, "result_digest": run.result_digest}
        as_json({**about, "signatures": given})
        return
    say(f"{run.result.business_date}: {state}, {run.result.verdict}, {run.result_digest}")
    if outdated is not None:
        say(outdated)
    rows = []
    for one in given:
        which = "this one" if one.result_digest == run.result_digest else "another one"
        at = moment(one.at_ms, run.result.zone)
        rows.append([one.role, one.by, at, which, one.note, one.despite])
    if rows:
        table(("as", "by", "at", "result", "note", "despite"), rows)


def _ids_of(named: Collection[str] | None, file: typer.FileText | None) -> tuple[str, ...]:
    """The ids that a user names, as arguments and in a file."""
    listed = file.read().split() if file is not None else []
    if file is not None and not listed:
        raise ConfigError(f"the file {file.name} has no ids; write one in each line")
    return (*(named or ()), *listed)


def _check_name(noun: str, name: str | None, known: Iterable[str]) -> None:
    if name is not None and name not in known:
        raise ConfigError(f"{noun} {name!r} does not exist; use one of {', '.join(known)}")


def _confirm_rows(count: int, nouns: str, day: str, lines: Iterable[str], *, yes: bool) -> None:
    """Before something is written for several rows, show the user ``lines`` about them, and ask."""
    if not count:
        raise ConfigError(f"no such {nouns} on {day}; nothing was written")
    if count > 1:
        for line in lines:
            note(line)
        confirm(f"Write this for all {count} {nouns}?", yes=yes, code=NOT_RUN)
