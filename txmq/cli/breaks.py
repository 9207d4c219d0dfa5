"""``txmq reconcile breaks``: what is not agreed, and what people say about it."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from txmq.cli.asking import AsJson
from txmq.cli.output import as_json, say, table
from txmq.cli.reconciling import By, Config, Day, Group, asked, rules_of, run_of, told
from txmq.errors import ConfigError
from txmq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from txmq.reconcile.summary import Run

__all__ = ["app"]

app = typer.Typer(cls=Group, invoke_without_command=True)


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
        bool, typer.Option("--all", help="Also what is in flight, or explained.")
    ] = False,
    unmasked: Annotated[
        bool, typer.Option("--unmasked", help="Show account numbers as they are.")
    ] = False,
    json: AsJson = False,
) -> None:
    """The breaks of a business date, oldest first; explain them, or take that back."""
    if ctx.invoked_subcommand is not None:
        return
    with told():
        from txmq.reconcile.classes import Class
        from txmq.reconcile.listing import items_of

        wanted = asked(config, day)
        if class_ is not None and class_ not in {known.value for known in Class}:
            raise ConfigError(f"there is no class {class_!r}; they are {', '.join(Class)}")
        run = run_of(wanted)
        found = items_of(
            wanted.rules.directory,
            run,
            class_=None if class_ is None else Class(class_),
            status=status,
            is_complete=everything,
            is_masked=not unmasked,
        )
        if json:
            as_json(found)
            return
        if not found:
            say(f"no such breaks on {run.result.business_date}")
            return
        _list(found, run)


def _list(items: list[dict[str, Any]], run: "Run") -> None:
    from txmq.reconcile.report.words import amount

    table(
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
            for item in items
        ),
    )


@app.command()
def explain(
    break_id: Annotated[str, typer.Argument(help="The break, or the beginning of its id.")],
    *,
    by: By,
    reason: Annotated[str, typer.Option("--reason", help="What it is, in words.")],
    day: Day = None,
    config: Config = None,
) -> None:
    """Say what a break is; from the next run on it is none, as long as nothing about it changes."""
    with told():
        from txmq.reconcile.explaining import Explanations
        from txmq.reconcile.listing import items_of, one_of

        wanted = asked(config, day)
        directory = wanted.rules.directory
        items = items_of(directory, run_of(wanted), is_complete=True, is_masked=False)
        now_ms = SystemClock().wall_ms()
        done = Explanations(directory).explain(one_of(items, break_id), by, reason, now_ms)
        say(
            f"{done.break_id} is explained from the next run on, as long as it is {done.class_} "
            "and nothing about it changes"
        )


@app.command()
def withdraw(
    break_id: Annotated[str, typer.Argument(help="The break, with its whole id.")],
    *,
    by: By,
    reason: Annotated[str, typer.Option("--reason", help="Why it does not hold.")],
    config: Config = None,
) -> None:
    """Take back what was said about a break."""
    with told():
        from txmq.reconcile.explaining import Explanations

        directory = rules_of(config).directory
        done = Explanations(directory).withdraw(break_id, by, reason, SystemClock().wall_ms())
        say(f"{done.break_id} is not explained any more, from the next run on")
