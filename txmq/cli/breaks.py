"""``txmq reconcile breaks``: the breaks of a day, and their explanations."""

from typing import Annotated

import typer

from txmq.cli.common import AsJson
from txmq.cli.output import print_rows, say
from txmq.cli.reconcile_options import (
    By,
    Config,
    Day,
    ReconcileGroup,
    report_failures,
    requested_days,
    rules_of,
    run_of,
)
from txmq.errors import ConfigError
from txmq.runtime.clock import SystemClock

__all__ = ["app"]

app = typer.Typer(cls=ReconcileGroup, invoke_without_command=True)


@app.callback()
def breaks(
    ctx: typer.Context,
    *,
    day: Day = None,
    config: Config = None,
    class_: Annotated[
        str | None, typer.Option("--class", help="Only this class, such as double-credit.")
    ] = None,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="new|open|changed|reopened|explained", help="Only these."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also items in flight, and explained ones.")
    ] = False,
    unmasked: Annotated[
        bool, typer.Option("--unmasked", help="Show account numbers as they are.")
    ] = False,
    json: AsJson = False,
) -> None:
    """List the breaks of a business date, oldest first; explain them, or withdraw explanations."""
    if ctx.invoked_subcommand is not None:
        return
    with report_failures():
        from txmq.reconcile.classes import Class
        from txmq.reconcile.item_list import items_of
        from txmq.reconcile.report.words import amount

        wanted = requested_days(config, day)
        if class_ is not None and class_ not in {known.value for known in Class}:
            raise ConfigError(f"class {class_!r} does not exist; use one of {', '.join(Class)}")
        run = run_of(wanted)
        found = items_of(
            wanted.rules.directory,
            run,
            class_=None if class_ is None else Class(class_),
            status=status,
            is_complete=everything,
            is_masked=not unmasked,
        )
        print_rows(
            found,
            ("break", "class", "status", "days", "amount", "", "transfer", "payer", "payee"),
            (
                (
                    item["break_id"],
                    item["class"],
                    item["status"],
                    item["age_days"],
                    amount(item["amount"], run.result.digits.get(item["currency"], 2)),
                    item["currency"],
                    *(item[name] or "" for name in ("key", "payer", "payee")),
                )
                for item in found
            ),
            json=json,
            empty=f"no such breaks on {run.result.business_date}",
        )


@app.command()
def explain(
    break_id: Annotated[str, typer.Argument(help="The break, or the beginning of its id.")],
    *,
    by: By,
    reason: Annotated[str, typer.Option("--reason", help="The explanation.")],
    day: Day = None,
    config: Config = None,
) -> None:
    """Explain a break. It stops counting as one from the next run until its facts change."""
    with report_failures():
        from txmq.reconcile.explanations import Explanations
        from txmq.reconcile.item_list import find_item, items_of

        wanted = requested_days(config, day)
        directory = wanted.rules.directory
        items = items_of(directory, run_of(wanted), is_complete=True, is_masked=False)
        now_ms = SystemClock().wall_ms()
        done = Explanations(directory).explain(find_item(items, break_id), by, reason, now_ms)
        say(
            f"{done.break_id} counts as explained from the next run on, as long as it is "
            f"{done.class_} and its facts do not change"
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
        done = Explanations(directory).withdraw(break_id, by, reason, SystemClock().wall_ms())
        say(f"{done.break_id} counts as a break again from the next run on")
