"""``txmq reconcile proofs``: the differences of a day's balance proofs, and their explanations."""

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any

import msgspec
import typer

from txmq.cli.breaks import withdraw
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
    run_of,
)
from txmq.errors import ConfigError
from txmq.reconcile import Result
from txmq.reconcile.report.words import mask, signed
from txmq.runtime.clock import SystemClock

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
    file: IdFile = None,
    everything: Annotated[bool, typer.Option("--all", help="Also explained ones.")] = False,
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

        check_name("proof", proof, ABOUT_PROOFS)
        wanted = proof, bank, account, ids_of(None, file)
        rules, results, run = run_of(config, day)
        rows = differences_in(rules.directory, run, *wanted, is_complete=everything)
        hints = old_entries_like(results, run, rows, rules.day.history)
        for row in rows:
            row["hint"] = hints.get(row["id"], row["hint"])
        for row in () if unmasked else rows:
            if row["proof"] in OF_ACCOUNTS:
                row["account"] = mask(row["account"])
        names = ("currency", "explained_by", "until", "hint")
        print_rows(
            rows,
            (
                *("id", "proof", "bank", "account", "since", "difference", ""),
                *("explained by", "until", "hint"),
            ),
            (
                (
                    *(shortened(row[name] or "") for name in ("id", "proof", "bank", "account")),
                    row["first_seen"],
                    _amounts(row, run.result),
                    *(row[name] or "" for name in names),
                )
                for row in rows
            ),
            json=json,
            empty=f"no such differences on {run.result.business_date}",
        )


@app.command()
def explain(
    ids: Ids = None,
    *,
    by: By,
    reason: Reason,
    until: Annotated[
        date | None,
        typer.Option(
            "--until",
            parser=date_of,
            metavar="DATE",
            help="The last business date on which it counts.",
        ),
    ] = None,
    day: Day = None,
    config: Config = None,
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

        check_name("proof", proof, ABOUT_PROOFS)
        wanted = proof, bank, account, ids_of(ids, file)
        if not any(wanted):
            raise ConfigError("name differences by their ids, or choose them with --proof, …")
        rules, _, run = run_of(config, day)
        rows = differences_in(rules.directory, run, *wanted)
        first, now_ms = run.result.business_date, SystemClock().wall_ms()
        lines = (f"{row['id']} {row['proof']}: {_amounts(row, run.result)}" for row in rows)
        confirm_rows(len(rows), "differences", first, lines, yes=yes)
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
