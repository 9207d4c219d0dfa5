"""``txmq reconcile proofs``: the differences of a day's balance proofs, and their explanations."""

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from txmq.cli.common import AsJson, Yes, confirm
from txmq.cli.output import note, print_rows, say
from txmq.cli.reconcile_options import (
    NOT_RUN,
    Account,
    Bank,
    By,
    Config,
    Day,
    ReconcileGroup,
    Unmasked,
    date_of,
    proof_day_of,
    report_failures,
    requested_days,
    rules_of,
    run_of,
)
from txmq.errors import ConfigError, UsageError
from txmq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from txmq.reconcile.differences import Cover, Difference
    from txmq.reconcile.summary import Run

__all__ = ["app"]

app = typer.Typer(cls=ReconcileGroup, invoke_without_command=True)

ProofName = Annotated[
    str | None, typer.Option("--proof", help="Only this proof, such as account-table.")
]


@app.callback()
def proofs(
    ctx: typer.Context,
    *,
    day: Day = None,
    config: Config = None,
    proof: ProofName = None,
    bank: Bank = None,
    account: Account = None,
    everything: Annotated[bool, typer.Option("--all", help="Also explained ones.")] = False,
    unmasked: Unmasked = False,
    json: AsJson = False,
) -> None:
    """List the differences of a date's proofs that nothing explains; explain them, or withdraw.

    A break with the same account and amount is shown as a hint; only a person knows if it is the
    reason.
    """
    if ctx.invoked_subcommand is not None:
        return
    with report_failures():
        from txmq.reconcile.differences import differences_of
        from txmq.reconcile.item_list import items_of

        wanted = requested_days(config, day)
        run = run_of(wanted)
        found = [
            (difference, cover)
            for difference, cover in differences_of(proof_day_of(wanted, run))
            if (everything or cover is None) and _fits(difference, proof, bank, account)
        ]
        items = items_of(wanted.rules.directory, run, is_complete=True, is_masked=False)
        rows = [
            _row(difference, cover, items, is_masked=not unmasked) for difference, cover in found
        ]
        print_rows(
            rows,
            ("difference", "proof", "bank", "account", "amounts", "", "explained by", "hint"),
            (
                (
                    *(row[name] or "" for name in ("id", "proof", "bank", "account")),
                    ", ".join(_amount(amount, row["currency"], run) for amount in row["amounts"]),
                    *(row[name] or "" for name in ("currency", "explained_by", "hint")),
                )
                for row in rows
            ),
            json=json,
            empty=f"no such differences on {run.result.business_date}",
        )


@app.command()
def explain(
    ids: Annotated[
        list[str] | None, typer.Argument(help="The differences, or the beginnings of their ids.")
    ] = None,
    *,
    by: By,
    reason: Annotated[str, typer.Option("--reason", help="The explanation.")],
    until: Annotated[
        date | None,
        typer.Option(
            "--until",
            parser=date_of,
            metavar="DATE",
            help="The last business date on which it counts; the date itself if left out.",
        ),
    ] = None,
    day: Day = None,
    config: Config = None,
    proof: ProofName = None,
    bank: Bank = None,
    account: Account = None,
    yes: Yes = False,
) -> None:
    """Explain differences of proofs. Each counts from the next run on until its amount changes.

    The differences of account-table, clearing and double-entry last, and --until says how long the
    explanation counts. All others are of the bookings of one date, and are explained on that date.
    """
    with report_failures():
        from txmq.reconcile.differences import differences_of
        from txmq.reconcile.explanations import Explanations

        wanted = requested_days(config, day)
        run = run_of(wanted)
        if not (ids or proof or bank or account):
            raise ConfigError("name differences by their ids, or choose them with --proof, …")
        found = [
            difference
            for difference, _ in differences_of(proof_day_of(wanted, run))
            if _fits(difference, proof, bank, account)
        ]
        chosen = _choose(found, ids or [])
        if len(chosen) > 1:
            for one in chosen:
                amounts = ", ".join(_amount(amount, one.currency, run) for amount in one.amounts)
                note(f"{one.id} {one.proof}: {amounts} {one.currency or ''}".rstrip())
            confirm(f"Explain these {len(chosen)} differences?", yes=yes, code=NOT_RUN)
        now_ms, today = SystemClock().wall_ms(), run.result.business_date
        people = Explanations(wanted.rules.directory)
        last = today if until is None else until.isoformat()
        for done in people.explain_proofs(chosen, today, last, by, reason, now_ms):
            when = f"from {done.day} to {done.until}" if done.until > done.day else f"on {done.day}"
            say(f"{done.id} counts as explained {when}, as long as its amount does not change")


@app.command()
def withdraw(
    id_: Annotated[str, typer.Argument(metavar="ID", help="The difference, with its whole id.")],
    *,
    by: By,
    reason: Annotated[str, typer.Option("--reason", help="Why the explanation is wrong.")],
    config: Config = None,
) -> None:
    """Withdraw the explanations of a difference, of all dates."""
    with report_failures():
        from txmq.reconcile.explanations import Explanations

        directory = rules_of(config).directory
        Explanations(directory).withdraw(id_, by, reason, SystemClock().wall_ms())
        say(f"{id_} counts as a difference again from the next run on")


def _fits(
    difference: "Difference", proof: str | None, bank: str | None, account: str | None
) -> bool:
    return (
        proof in {None, difference.proof}
        and bank in {None, difference.bank}
        and account in {None, difference.account}
    )


def _choose(found: Sequence["Difference"], ids: Sequence[str]) -> list["Difference"]:
    chosen: list[Difference] = [] if ids else list(found)
    for id_ in ids:
        named = [difference for difference in found if difference.id.startswith(id_)]
        if len(named) != 1:
            many = "matches several differences" if named else "matches no difference"
            raise UsageError(f"{id_!r} {many} of this day; see txmq reconcile proofs --all")
        chosen += named
    if not chosen:
        raise ConfigError("no difference fits; see txmq reconcile proofs")
    return chosen


def _row(
    difference: "Difference",
    cover: "Cover | None",
    items: Sequence[dict[str, Any]],
    *,
    is_masked: bool,
) -> dict[str, Any]:
    from txmq.reconcile.report.account_mask import mask

    row: dict[str, Any] = msgspec.to_builtins(difference)
    person = None if cover is None else cover.person
    row["explained_by"] = "" if cover is None else "items" if person is None else person.by
    row["explanation"] = None if person is None else person.reason
    row["until"] = None if person is None else person.until
    similar = (
        item["break_id"]
        for item in items
        if cover is None
        and difference.proof == "account-table"
        and difference.account in {item["payer"], item["payee"]}
        and abs(difference.amounts[0]) == item["amount"]
    )
    row["hint"] = next((f"like break {break_id}" for break_id in similar), None)
    if is_masked and difference.account and "/" not in difference.account:
        row["account"] = mask(difference.account)
    return row


def _amount(minor: int, currency: str | None, run: "Run") -> str:
    from txmq.reconcile.report import facts
    from txmq.reconcile.report.words import signed

    return signed(minor, facts.digits(run.result, currency))
