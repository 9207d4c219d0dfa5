"""``txmq tx watch``: open transactions as they come, park and go."""

from typing import Annotated, Any

import typer

from txmq.cli.common import NAMES_DEFAULT, AsJson, Cluster, Names, ask
from txmq.cli.lists import Every, watched
from txmq.cli.output import as_json, note, say
from txmq.client.values import OpenTransaction
from txmq.ops.moments import age_of, time_text
from txmq.runtime.clock import SystemClock
from txmq.text import quantity

__all__ = ["changes_between", "watch"]

Seen = dict[tuple[str, int], OpenTransaction]
"""By broker and offset of the half message: ids may repeat."""


def watch(
    *,
    group: Annotated[str, typer.Option(help="Only those of this producer group.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="The most that are followed.")] = 10_000,
    every: Every = "1s",
    cluster: Cluster = None,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Print each change of an open transaction, one on a line, until Ctrl-C.

    A transaction is opened, parked, checked again, or closed: its producer, a check or an operator
    has decided it. One that opens and closes between two looks is not seen.
    """
    before: Seen | None = None

    def show(found: list[OpenTransaction]) -> None:
        nonlocal before
        now_ms = SystemClock().wall_ms()
        current = {(one.queue.broker, one.half_offset): one for one in found}
        if before is None:
            parked = sum(one.state == "parked" for one in found)
            opened = quantity(len(found), "transaction is", "transactions are")
            note(f"{opened} open, {parked} parked")
            if len(found) >= limit:
                note(f"txmq: only the {limit} oldest of a broker are followed; see --limit")
        for change, transaction in changes_between(before, current):
            if json:
                as_json({"at_ms": now_ms, "change": change, "transaction": transaction})
            else:
                say(_line(change, transaction, now_ms))
        before = current

    watched(
        lambda: ask(
            names, lambda admin: admin.transactions(group=group, limit=limit, cluster=cluster)
        ),
        show,
        watch=True,
        every=every,
        clears=False,
    )


def changes_between(before: Seen | None, current: Seen) -> list[tuple[str, OpenTransaction]]:
    """What happened to open transactions between two looks; the first look has no changes."""
    if before is None:
        return []
    changes = [("opened", one) for key, one in current.items() if key not in before]
    for key, one in before.items():
        later = current.get(key)
        if later is None:
            changes.append(("closed", one))
        elif later.state != one.state:
            changes.append(("parked" if later.state == "parked" else "checked again", later))
    return changes


def _line(change: str, found: OpenTransaction, now_ms: int) -> str:
    more: list[Any] = [f"group {found.group}", f"topic {found.queue.topic}"]
    more += [f"keys {' '.join(found.keys)}"] if found.keys else []
    more += [f"after {age_of(now_ms - found.stored_ms)}"] if change != "opened" else []
    return f"{time_text(now_ms)} {change} {found.id} at {found.queue.broker}: {', '.join(more)}"
