"""``txmq tx decided``: the latest decisions of transactions, as the brokers' logs keep them."""

from __future__ import annotations

from typing import Annotated

import typer

from txmq.cli.common import NAMES_DEFAULT, AsJson, Names, ask
from txmq.cli.output import print_rows
from txmq.client import Admin
from txmq.ops.decided import DecidedTransaction, find_decided
from txmq.ops.moments import time_text

__all__ = ["decided"]


def decided(
    *,
    group: Annotated[str, typer.Option(help="Only those of this producer group.")] = "",
    count: Annotated[int, typer.Option(min=1, help="The most transactions.")] = 32,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """List transactions that were decided, the newest first: by whom, and why.

    The brokers keep decisions as long as their logs. `txmq tx history` shows one with its steps.
    """

    async def find(admin: Admin) -> list[DecidedTransaction]:
        found, cursor = await find_decided(admin, count, "", group)
        while cursor and len(found) < count:
            more, cursor = await find_decided(admin, count, cursor, group)
            found += more
        return found[:count]

    found = ask(names, find)
    print_rows(
        [row._asdict() for row in found],
        ("time", "decision", "by", "reason", "transaction", "group", "topic", "keys", "broker"),
        (
            (
                time_text(row.at_ms), row.decision, row.source, row.reason, row.id or row.place,
                row.group, row.topic, " ".join(row.keys), row.broker,
            )
            for row in found
        ),
        json=json,
        empty="no decided transactions",
    )  # fmt: skip
