"""``txmq reconcile breaks``: the breaks of a day, their explanations and their owners."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from txmq.cli.common import AsJson, Yes, confirm
from txmq.cli.output import listing, note, print_rows, say
from txmq.cli.reconcile_options import (
    NOT_RUN,
    Account,
    Bank,
    By,
    Config,
    Day,
    ReconcileGroup,
    RequestedDays,
    Unmasked,
    date_of,
    proof_day_of,
    report_failures,
    requested_days,
    rules_of,
    run_of,
)
from txmq.errors import ConfigError
from txmq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from txmq.reconcile.item_list import ItemFilter
    from txmq.reconcile.spreadsheet import Cell
    from txmq.reconcile.summary import Run

__all__ = ["app"]

app = typer.Typer(cls=ReconcileGroup, invoke_without_command=True)

Ids = Annotated[
    list[str] | None, typer.Argument(help="The breaks, or the beginnings of their ids.")
]
ClassName = Annotated[
    str | None, typer.Option("--class", help="Only this class, such as double-credit.")
]
OlderThan = Annotated[
    int | None, typer.Option("--older-than", metavar="DAYS", help="Only older; business days.")
]
IdFile = Annotated[
    Path | None, typer.Option("--file", help="Only the ids in this file, one in each line.")
]
_AMOUNTS: Final = ("amount", "debited", "returned", "credited", "ordered")
_EXPORTED: Final = (
    *("break_id", "class", "was", "status", "first_seen", "age_days", "amount", "currency", "key"),
    *("debit_bank", "credit_bank", "payer", "payee", *_AMOUNTS[1:], "message_id", "message_state"),
    *("delivery", "decided_by", "reason", "explained_by", "explanation"),
    *("owner", "ticket", "due", "is_overdue", "comments"),
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
        Path | None, typer.Option("--export", help="Write them to this .csv or .xlsx file.")
    ] = None,
    json: AsJson = False,
) -> None:
    """List the breaks of a business date, oldest first; explain, withdraw or assign them."""
    if ctx.invoked_subcommand is not None:
        return
    with report_failures():
        from txmq.reconcile.item_list import items_of

        wanted = requested_days(config, day)
        chosen = _filter(class_, bank, account, older_than, file, status=status)
        run = run_of(wanted)
        found = items_of(
            wanted.rules.directory, run, chosen, is_complete=everything, is_masked=not unmasked
        )
        _add_assignments(found, wanted)
        if export is not None:
            _export(found, run, export)
            return
        _print_items(found, run, json=json)


@app.command()
def show(
    break_id: Annotated[str, typer.Argument(help="The break, or the beginning of its id.")],
    *,
    day: Day = None,
    config: Config = None,
    unmasked: Unmasked = False,
    json: AsJson = False,
) -> None:
    """Show all facts of a break, with its owner and the comments about it in their order."""
    with report_failures():
        from txmq.reconcile.item_list import ItemFilter, items_of

        wanted = requested_days(config, day)
        one = ItemFilter(ids=[break_id])
        run = run_of(wanted)
        items = items_of(wanted.rules.directory, run, one, is_masked=not unmasked)
        _add_assignments(items, wanted)
        print_rows(items[0], (), (), json=True) if json else listing(_in_words(items[0], run))


@app.command()
def explain(
    ids: Ids = None,
    *,
    by: By,
    reason: Annotated[str, typer.Option("--reason", help="The explanation.")],
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

    The differences of the proofs clearing and double-entry of their transfers are explained with
    them.
    """
    with report_failures():
        from txmq.reconcile.differences import differences_of
        from txmq.reconcile.explanations import Explanations

        wanted = requested_days(config, day)
        run = run_of(wanted)
        chosen = _filter(class_, bank, account, older_than, file, ids or ())
        items = _choose(wanted, run, chosen, "Explain", yes=yes)
        differences = [found for found, _ in differences_of(proof_day_of(wanted, run))]
        now_ms = SystemClock().wall_ms()
        people = Explanations(wanted.rules.directory)
        done = people.explain(items, by, reason, now_ms, differences)
        if len(done) == 1:
            say(
                f"{done[0].break_id} counts as explained from the next run on, as long as it is "
                f"{done[0].class_} and its facts do not change"
            )
        else:
            say(
                f"{len(done)} breaks count as explained from the next run on, as long as their "
                "classes and facts do not change"
            )


@app.command()
def withdraw(
    break_id: Annotated[str, typer.Argument(help="The break, with its whole id.")],
    *,
    by: By,
    reason: Annotated[str, typer.Option("--reason", help="Why the explanation is wrong.")],
    config: Config = None,
) -> None:
    """Withdraw the explanation of a break."""
    with report_failures():
        from txmq.reconcile.explanations import Explanations

        directory = rules_of(config).directory
        Explanations(directory).withdraw(break_id, by, reason, SystemClock().wall_ms())
        say(f"{break_id} counts as a break again from the next run on")


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
        from txmq.reconcile import assignments

        wanted = requested_days(config, day)
        chosen = _filter(class_, bank, account, older_than, file, ids or ())
        items = _choose(wanted, run_of(wanted), chosen, "Assign", yes=yes)
        now_ms, until = SystemClock().wall_ms(), "" if due is None else due.isoformat()
        notes = [
            assignments.BreakNote(item["break_id"], by, now_ms, owner, ticket, until, comment)
            for item in items
        ]
        assignments.assign(wanted.rules.directory, notes)
        say(f"noted for {len(notes)} {'break' if len(notes) == 1 else 'breaks'}")


def _filter(
    class_: str | None,
    bank: str | None,
    account: str | None,
    older_than: int | None,
    file: Path | None,
    ids: Sequence[str] = (),
    status: str | None = None,
) -> "ItemFilter":
    from txmq.reconcile.classes import Class
    from txmq.reconcile.item_list import ItemFilter

    if class_ is not None and class_ not in {known.value for known in Class}:
        raise ConfigError(f"class {class_!r} does not exist; use one of {', '.join(Class)}")
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text().splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the file of ids {file} cannot be read: {error}") from error
        listed = [line for line in lines if line and not line.startswith("#")]
        if not listed:
            raise ConfigError(f"the file {file} has no ids; write one in each line")
        ids = [*ids, *listed]
    known = None if class_ is None else Class(class_)
    return ItemFilter(known, status, bank, account, older_than, ids)


def _choose(
    wanted: RequestedDays, run: "Run", chosen: "ItemFilter", verb: str, *, yes: bool
) -> list[dict[str, Any]]:
    """The breaks that fit; the user agrees first if there are several."""
    from txmq.reconcile.item_list import ItemFilter, items_of

    if chosen == ItemFilter():
        raise ConfigError("name breaks by their ids, or choose them with --class, --bank, …")
    items = items_of(wanted.rules.directory, run, chosen, is_masked=False)
    if not items:
        raise ConfigError(f"no such breaks on {run.result.business_date}; nothing was written")
    if len(items) > 1:
        note(f"{len(items)} breaks: {_sums(items, run)}")
        confirm(f"{verb} these {len(items)} breaks?", yes=yes, code=NOT_RUN)
    return items


def _sums(items: Sequence[Mapping[str, Any]], run: "Run") -> str:
    counts, sums = Counter[str](), Counter[str]()
    for item in items:
        counts[item["currency"]] += 1
        sums[item["currency"]] += item["amount"]
    return "; ".join(
        f"{counts[currency]} with {_amount(sums[currency], currency, run)} {currency} at risk"
        for currency in sorted(counts)
    )


def _amount(minor: int, currency: str, run: "Run") -> str:
    from txmq.reconcile.report.words import amount

    return amount(minor, run.result.digits.get(currency, 2))


def _add_assignments(items: Sequence[dict[str, Any]], wanted: RequestedDays) -> None:
    from txmq.reconcile.assignments import Assignment, assignments_of
    from txmq.reconcile.report.words import moment

    rules = wanted.rules
    today = rules.day.of(SystemClock().wall_ms()).isoformat()
    known: Mapping[str, Assignment] = assignments_of(rules.directory)
    for item in items:
        found = known.get(item["break_id"], Assignment())
        item |= {"owner": found.owner, "ticket": found.ticket, "due": found.due}
        item["is_overdue"] = found.is_overdue(today)
        item["comments"] = "\n".join(
            f"{moment(comment.at_ms, rules.day.zone)} {comment.by}: {comment.comment}"
            for comment in found.comments
        )


def _print_items(items: list[dict[str, Any]], run: "Run", *, json: bool) -> None:
    print_rows(
        items,
        (
            *("break", "class", "status", "days", "amount", "", "transfer", "payer", "payee"),
            *("owner", "due"),
        ),
        (
            (
                item["break_id"],
                item["class"],
                item["status"],
                item["age_days"],
                _amount(item["amount"], item["currency"], run),
                item["currency"],
                *(item[name] or "" for name in ("key", "payer", "payee", "owner")),
                f"{item['due']} overdue" if item["is_overdue"] else item["due"],
            )
            for item in items
        ),
        json=json,
        empty=f"no such breaks on {run.result.business_date}",
    )


def _in_words(item: Mapping[str, Any], run: "Run") -> dict[str, object]:
    """A break for people: amounts in major units, and nothing that is unknown."""
    return {
        name: _amount(value, item["currency"], run) if name in _AMOUNTS else value
        for name, value in item.items()
        if value not in {None, ""}
    }


def _export(items: Sequence[Mapping[str, Any]], run: "Run", path: Path) -> None:
    from txmq.reconcile.spreadsheet import as_csv, as_xlsx

    formats: dict[str, Callable[..., bytes]] = {".csv": as_csv, ".xlsx": as_xlsx}
    if path.suffix not in formats:
        raise ConfigError(f"the file {path} is neither .csv nor .xlsx: name one that is")
    rows = ([_exported(item, name, run) for name in _EXPORTED] for item in items)
    try:
        path.write_bytes(formats[path.suffix](_EXPORTED, rows))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error
    say(f"{len(items)} {'break is' if len(items) == 1 else 'breaks are'} in {path}")


def _exported(item: Mapping[str, Any], name: str, run: "Run") -> "Cell":
    from decimal import Decimal

    value: Cell = item[name]
    if name in _AMOUNTS and isinstance(value, int):
        return Decimal(value).scaleb(-run.result.digits.get(item["currency"], 2))
    if isinstance(value, bool):
        return "yes" if value else ""
    return value
