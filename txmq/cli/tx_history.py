"""``txmq tx history``: one transaction, open or decided, as its nine steps."""

from __future__ import annotations

from typing import Annotated

import typer

from txmq.cli.common import NAMES_DEFAULT, AsJson, Cluster, Names, ask
from txmq.cli.message import find_traces
from txmq.cli.output import as_json, say
from txmq.client import Admin, TransactionReport
from txmq.client.observe.trace_records import TraceRecord
from txmq.errors import NotFound, TxmqError
from txmq.message import ReceivedMessage
from txmq.ops.moments import time_text
from txmq.ops.transactions import TransactionStep, steps_of
from txmq.text import printable

__all__ = ["find_report", "history", "traces_of"]

_TIME_CHARS = len(time_text(0))
_STATUS = {"implied": " (follows from the decision)", "unknown": " (not known)"}


async def find_report(
    admin: Admin, name: str, topic: str = "", broker: str | None = None, cluster: str | None = None
) -> tuple[TransactionReport, ReceivedMessage]:
    """The report of a transaction, and its half message.

    Args:
        admin: Asks the brokers.
        name: The id of the transaction, of its half message, or of its visible message.
        topic: Its topic, for a transaction whose id the brokers have forgotten.
        broker: The broker, if several know it.
        cluster: The cluster, if there are several.

    Raises:
        NotFound: No broker knows it.
        TxmqError: As for :meth:`txmq.client.Admin.transaction_report`.
    """
    try:
        return await admin.transaction_report(name, broker=broker, cluster=cluster)
    except NotFound:
        if not topic:
            raise
        visible = await admin.find(topic, name)
        return await admin.transaction_report(
            visible.offset_id, broker=visible.queue.broker, cluster=cluster
        )


async def traces_of(admin: Admin, topic: str, message_id: str) -> list[TraceRecord]:
    """The traces of a message; empty if the cluster has no traces, or none can be read."""
    try:
        return await find_traces(admin, topic, message_id)
    except TxmqError:
        return []  # Most clients leave no traces, and then their topic does not exist.


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
