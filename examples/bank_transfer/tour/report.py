"""The results of the tour: the nine steps, the balance sheet, and whether money was conserved."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table

from examples.bank_transfer.steps import NINE, Step
from examples.bank_transfer.tour.record import Record
from examples.bank_transfer.tour.view import balances, transfers

__all__ = ["report", "verdict"]

MISTAKES_SHOWN = 20


def report(record: Record, console: Console) -> None:
    """Print it."""
    for name, steps in record.stories.items():
        console.print(story(name, steps))
    if record.sheet is not None:
        console.print(balances(record.sheet))
        console.print(transfers(record))
    console.print(figures(record))
    for mistake in record.mistakes[:MISTAKES_SHOWN]:
        console.print(mistake, style="bold red", highlight=False, markup=False, soft_wrap=True)
    if len(record.mistakes) > MISTAKES_SHOWN:
        console.print(f"[bold red]and {len(record.mistakes) - MISTAKES_SHOWN} more[/bold red]")
    if not record.mistakes:
        console.print(
            f"[bold green]money was conserved at {record.looks} looks while it moved, and transfer "
            "by transfer in the end[/bold green]",
            highlight=False,
            soft_wrap=True,
        )


def verdict(record: Record, console: Console, *, ledgers_agree: bool | None) -> None:
    """Print the last line, which says what the exit code says.

    Args:
        record: What has happened.
        console: Where it is printed.
        ledgers_agree: Whether the reconciliation found that they do; None where it was left out.
    """
    failures = []
    if count := len(record.mistakes):
        failures.append(f"{count} {'mistake' if count == 1 else 'mistakes'}, printed above")
    if ledgers_agree is False:
        failures.append("the ledgers do not agree, or could not be reconciled")
    if failures:
        text, style = f"verdict: failed: {'; '.join(failures)}", "bold red"
    else:
        text, style = "verdict: passed: not a cent is lost, every transfer has ended", "bold green"
        text += ", the ledgers agree" if ledgers_agree else "; the ledgers were not reconciled"
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def story(name: str, steps: list[Step]) -> Table:
    """The steps of one transfer, in the words of the story and in those of txmq's log."""
    table = Table(title=f"{name}: customer A sends 10,000 to customer B", title_justify="left")
    for column in ("", "step", "txmq says", "ms"):
        # A long id continues on the next line, because users search for the whole of it.
        is_right = column == "ms"
        table.add_column(column, justify="right" if is_right else "left", overflow="fold")
    for step in steps:
        action = NINE[step.number - 1] if step.number else ""
        after_ms = (step.at_s - steps[0].at_s) * 1000
        table.add_row(str(step.number or ""), action, step.text, f"{after_ms:.1f}")
    return table


def figures(record: Record) -> Table:
    """Amounts, speed and failures of the run."""
    table = Table(title="in figures", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("how much", justify="right")
    kills = sum(record.kills.values())
    rows = [
        ("transfers asked for", f"{record.asked}"),
        *((f"  and answered with {answer!r}", f"{count}") for answer, count in
          sorted(Counter(record.heard.values()).items())),
        ("asked for again, for want of an answer", f"{record.retries}"),
        ("programs killed, and started again", f"{kills}"),
        ("messages delivered once more than they were sent", f"{record.copies}"),
        ("looks of the auditor", f"{record.looks}"),
        ("seconds until the last answer", f"{record.asked_s:.1f}"),
        ("seconds until every transfer was at its end", f"{record.ended_s:.1f}"),
    ]  # fmt: skip
    for row in rows:
        table.add_row(*row)
    return table
