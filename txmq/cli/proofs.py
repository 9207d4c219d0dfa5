"""``txmq reconcile proofs``: the differences of a day's balance proofs, and their explanations."""

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from txmq.cli.breaks import Reason, withdraw
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
    report_failures,
    requested_days,
    run_of,
)
from txmq.errors import ConfigError, UsageError
from txmq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from txmq.reconcile.explanations import Difference
    from txmq.reconcile.summary import Result

__all__ = ["app"]

app = typer.Typer(cls=ReconcileGroup, invoke_without_command=True)
app.command()(withdraw)

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
    """List the differences of a date's proofs that nothing explains.

    A hint names a break with the same account and amount; a person decides if it is the reason.
    """
    if ctx.invoked_subcommand is not None:
        return
    with report_failures():
        from txmq.reconcile.differences import differences_of
        from txmq.reconcile.item_list import items_of, proof_day
        from txmq.reconcile.report.account_mask import mask

        wanted = requested_days(config, day)
        run, directory = run_of(wanted), wanted.rules.directory
        items = items_of(directory, run, is_complete=True, is_masked=False)
        rows = []
        for found, cover in differences_of(proof_day(directory, run)):
            if (cover and not everything) or not _fits(found, proof, bank, account):
                continue
            row = msgspec.to_builtins(found)
            person = cover.person if cover else None
            row["explained_by"] = person.by if person else "items" if cover else ""
            row["explanation"] = person and person.reason
            row["until"] = person and person.last
            row["hint"] = "" if cover else _hint(found, items)
            if found.proof == "account-table" and not unmasked:
                row["account"] = mask(row["account"])
            rows.append(row)
        print_rows(
            rows,
            ("id", "proof", "bank", "account", "difference", "", "explained by", "until", "hint"),
            (
                (
                    *(row[name] or "" for name in ("id", "proof", "bank", "account")),
                    _amounts(row["amounts"], row["currency"], run.result),
                    *(row[name] or "" for name in ("currency", "explained_by", "until", "hint")),
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
    reason: Reason,
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
    """Explain differences of proofs, from the next run until their amounts change.

    Those of account-table, clearing and double-entry last: --until says for how long they are
    explained. All others are in the bookings of one date, and are only explained on that date.
    """
    with report_failures():
        from txmq.reconcile.differences import differences_of
        from txmq.reconcile.explanations import Explanations
        from txmq.reconcile.item_list import proof_day

        wanted = requested_days(config, day)
        run, directory = run_of(wanted), wanted.rules.directory
        if not (ids or proof or bank or account):
            raise ConfigError("name differences by their ids, or choose them with --proof, …")
        fitting = [
            found
            for found, cover in differences_of(proof_day(directory, run))
            if _fits(found, proof, bank, account) and (ids or cover is None)
        ]
        chosen = [_find(fitting, id_) for id_ in ids] if ids else fitting
        if not chosen:
            raise ConfigError("no difference fits; see txmq reconcile proofs")
        if len(chosen) > 1:
            for one in chosen:
                note(f"{one.id} {one.proof}: {_amounts(one.amounts, one.currency, run.result)}")
            confirm(f"Explain these {len(chosen)} differences?", yes=yes, code=NOT_RUN)
        first, now_ms = run.result.business_date, SystemClock().wall_ms()
        last = until.isoformat() if until else first
        people = Explanations(directory)
        for done in people.explain_proofs(chosen, by, reason, now_ms, first, last):
            say(
                f"{done.difference.id} counts as explained on the dates from {done.first} to "
                f"{done.last} from the next run on, as long as its amount does not change"
            )


def _fits(one: "Difference", proof: str | None, bank: str | None, account: str | None) -> bool:
    pairs = (proof, one.proof), (bank, one.bank), (account, one.account)
    return all(wanted in {None, found} for wanted, found in pairs)


def _find(found: Sequence["Difference"], id_: str) -> "Difference":
    named = [one for one in found if one.id.startswith(id_)]
    if len(named) != 1:
        many = "matches several differences" if named else "matches no difference"
        raise UsageError(f"{id_!r} {many} of this day; see txmq reconcile proofs --all")
    return named[0]


def _hint(one: "Difference", items: Sequence[dict[str, Any]]) -> str:
    size = abs(one.amounts[0]), one.currency
    for item in items if one.proof == "account-table" else ():
        is_account = one.account in {item["payer"], item["payee"]}
        if is_account and size == (item["amount"], item["currency"]):
            return f"like {item['break_id']}"
    return ""


def _amounts(amounts: Sequence[int], currency: str | None, result: "Result") -> str:
    from txmq.reconcile.report.facts import digits
    from txmq.reconcile.report.words import signed

    return ", ".join(signed(amount, digits(result, currency)) for amount in amounts)
