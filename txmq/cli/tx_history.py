"""``txmq tx history``: one transaction, open or decided, as its nine steps."""

from __future__ import annotations

from typing import Annotated

import typer

from txmq.cli.common import NAMES_DEFAULT, AsJson, Cluster, Names, ask
from txmq.cli.output import as_json, say
from txmq.client import Admin, TransactionReport
from txmq.ops.decided import find_report
from txmq.ops.moments import time_text
from txmq.ops.traces import traces_of
from txmq.ops.transactions import TransactionStep, steps_of
from txmq.text import printable

__all__ = ["history"]

_TIME_CHARS = len(time_text(0))
_STATUS = {"implied": " (follows from the decision)", "unknown": " (not known)"}


def history(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="The id of the transaction, its half or its visible message."
        ),
    ],
    *,
    topic: Annotated[
        str, typer.Option(help="Its topic; finds a transaction that was decided long ago.")
    ] = "",
    broker: Annotated[str | None, typer.Option(help="The broker, if several know it.")] = None,
    cluster: Cluster = None,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Show the nine steps of a transaction, open or decided, and what comes next.

    Consumers and the local transaction appear if clients leave traces.
    """

    async def find(admin: Admin) -> tuple[TransactionReport, list[TransactionStep]]:
        report, message = await find_report(admin, name, topic, broker, cluster)
        transaction = report.transaction
        traces = await traces_of(admin, transaction.queue.topic, transaction.id)
        return report, steps_of(report, message, traces)

    report, steps = ask(names, find)
    if json:
        as_json({"report": report, "steps": [step._asdict() for step in steps]})
        return
    transaction = report.transaction
    say(f"{printable(transaction.id)} of {transaction.group}: {transaction.state}")
    for step in steps:
        say(_line(step))


def _line(step: TransactionStep) -> str:
    time = time_text(step.at_ms) if step.at_ms else ""
    number = str(step.number) if step.number else " "
    more = f" ({step.more})" if step.more else ""
    mark = "next: " if step.status == "next" else ""
    return printable(
        f"{number} {time:{_TIME_CHARS}} {mark}{step.text}{_STATUS.get(step.status, '')}{more}"
    )
