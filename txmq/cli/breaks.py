"""``txmq reconcile breaks``: the breaks of a day, their explanations and their owners."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from txmq.cli.common import AsJson, Yes
from txmq.cli.output import print_rows, say, shortened
from txmq.cli.reconcile_options import (
    Account,
    Bank,
    By,
    Config,
    Day,
    IdFile,
    Ids,
    Reason,
    ReconcileGroup,
    Unmasked,
    check_name,
    confirm_rows,
    date_of,
    ids_of,
    report_failures,
    rules_of,
    run_of,
)
from txmq.cli.spreadsheet import as_csv
from txmq.errors import ConfigError
from txmq.quantity import quantity
from txmq.reconcile import Class, Rules, Run
from txmq.reconcile.report.words import amount, mask_sides, moment
from txmq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from txmq.reconcile.archive import ItemFilter
    from txmq.reconcile.results import Results

__all__ = ["app", "withdraw"]

app = typer.Typer(cls=ReconcileGroup, invoke_without_command=True)

ClassName = Annotated[
    str | None, typer.Option("--class", help="Only this class, such as double-credit.")
]
OlderThan = Annotated[
    int | None, typer.Option("--older-than", metavar="DAYS", help="Only older; business days.")
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


@app.callback()
def breaks(
    ctx: typer.Context,
    *,
    day: Day = None,
    config: Config = None,
    class_: ClassName = None,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="new|open|changed|reopened|explained", help="Only these."),
    ] = None,
    bank: Bank = None,
    account: Account = None,
    older_than: OlderThan = None,
    file: IdFile = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also items in flight, and explained ones.")
    ] = False,
    unmasked: Unmasked = False,
    export: Annotated[
        Path | None, typer.Option("--export", help="Write them to this .csv file.")
    ] = None,
    json: AsJson = False,
) -> None:
    """List the breaks of a business date, oldest first; explain, withdraw or assign them."""
    if ctx.invoked_subcommand is not None:
        return
    with report_failures():
        wanted, named = _filter(class_, status, bank, account, older_than), ids_of(None, file)
        rules, results, run = run_of(config, day)
        items = _find(results, run, wanted, named, is_complete=everything)
        found = _with_notes(items if unmasked else list(map(mask_sides, items)), rules)
        if export is not None:
            _export(found, run, export)
            return
        words = [name for name in _TEXTS if _TEXTS[name][1] or any(one[name] for one in found)]
        print_rows(
            found,
            (
                *("break", "class", "status", "days", "amount", ""),
                *(_TEXTS[name][0] for name in words),
            ),
            (
                (
                    *(item[name] for name in ("break_id", "class", "status", "age_days")),
                    amount(item["amount"], run.result.places(item["currency"])),
                    item["currency"],
                    *(shortened(item[name] or "") for name in words),
                )
                for item in found
            ),
            json=json,
            empty=f"no such breaks on {run.result.business_date}",
        )


@app.command()
def explain(
    ids: Ids = None,
    *,
    by: By,
    reason: Reason,
    day: Day = None,
    config: Config = None,
    class_: ClassName = None,
    bank: Bank = None,
    account: Account = None,
    older_than: OlderThan = None,
    file: IdFile = None,
    yes: Yes = False,
) -> None:
    """Explain breaks. They stop counting as such from the next run until their facts change.

    The proofs clearing and double-entry of their transfers are explained with them.
    """
    with report_failures():
        from txmq.reconcile.differences import differences_in
        from txmq.reconcile.explanations import Difference, Explanation, Explanations

        wanted, named = _filter(class_, None, bank, account, older_than), ids_of(ids, file)
        rules, results, run = run_of(config, day)
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


@app.command()
def withdraw(
    id_: Annotated[str, typer.Argument(metavar="ID", help="The whole id.")],
    *,
    by: By,
    reason: Annotated[str, typer.Option("--reason", help="Why the explanation is wrong.")],
    config: Config = None,
) -> None:
    """Withdraw an explanation."""
    with report_failures():
        from txmq.reconcile.explanations import Explanations

        directory = rules_of(config).directory
        Explanations(directory).withdraw(id_, by, reason, SystemClock().wall_ms())
        say(f"{id_} is not explained any more from the next run on")


@app.command()
def assign(
    ids: Ids = None,
    *,
    by: By,
    owner: Annotated[str, typer.Option("--owner", help="Who works on it.")] = "",
    ticket: Annotated[str, typer.Option("--ticket", help="The link to a ticket.")] = "",
    due: Annotated[
        date | None,
        typer.Option("--due", parser=date_of, metavar="DATE", help="When it should be done."),
    ] = None,
    comment: Annotated[str, typer.Option("--comment", help="A comment; all are kept.")] = "",
    day: Day = None,
    config: Config = None,
    class_: ClassName = None,
    bank: Bank = None,
    account: Account = None,
    older_than: OlderThan = None,
    file: IdFile = None,
    yes: Yes = False,
) -> None:
    """Give breaks an owner, a ticket or a due date, or comment on them. No result depends on it."""
    with report_failures():
        from txmq.reconcile.explanations import BreakNote, Explanations

        news = owner, ticket, due.isoformat() if due else "", comment
        if not any(news) or not by.strip():
            raise ConfigError("give your name, and --owner, --ticket, --due or --comment")
        wanted, named = _filter(class_, None, bank, account, older_than), ids_of(ids, file)
        rules, results, run = run_of(config, day)
        items = _choose(results, run, wanted, named, yes=yes)
        now_ms = SystemClock().wall_ms()
        Explanations(rules.directory).add(
            [BreakNote(item["break_id"], by.strip(), now_ms, *news) for item in items]
        )
        say(f"noted for {quantity(len(items), 'break')}")


def _filter(
    class_: str | None,
    status: str | None,
    bank: str | None,
    account: str | None,
    older_than: int | None,
) -> "ItemFilter":
    from txmq.reconcile.archive import ItemFilter

    check_name("class", class_, list(Class))
    return ItemFilter(class_, status, bank, account, older_than)


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
    confirm_rows(len(items), "breaks", run.result.business_date, _lines(items, run), yes=yes)
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
