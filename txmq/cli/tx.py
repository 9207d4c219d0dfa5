"""``txmq tx``: open transactions, shown and decided by hand."""

import getpass
from collections import Counter
from operator import neg
from typing import Annotated, Any, Literal

import typer

from txmq.cli.common import (
    NAMES_DEFAULT,
    WRONGLY_CALLED,
    AsJson,
    Cluster,
    Names,
    Yes,
    ask,
    confirm,
    fail,
)
from txmq.cli.lists import Listing, listed
from txmq.cli.output import as_json, listing, message_fields, print_result, progress_bar
from txmq.cli.tx_decided import decided
from txmq.cli.tx_history import history
from txmq.cli.tx_watch import watch
from txmq.client import Admin
from txmq.client.values import OpenTransaction
from txmq.ops.known_names import check_producer_group
from txmq.ops.moments import age_of
from txmq.ops.rows import ListColumn
from txmq.runtime.clock import SystemClock
from txmq.text import quantity

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Show open transactions, and decide them by hand.")

Id = Annotated[
    str, typer.Argument(metavar="ID", help="The id of the transaction, or of its half message.")
]
State = Annotated[str, typer.Option(metavar="prepared|parked", help="Only those in this state.")]
Reason = Annotated[str, typer.Option(help="Why; the broker keeps it in its log.")]
Operator = Annotated[
    str, typer.Option(show_default="who runs this", help="Who decides; kept with the reason.")
]
Broker = Annotated[str | None, typer.Option(help="The broker, if several have it open.")]


def _age(stored_ms: int) -> str:
    return age_of(SystemClock().wall_ms() - stored_ms)


@app.command("list")
@listed(
    [
        ListColumn("id", "id"),
        ListColumn("state", "state"),
        ListColumn("age", "stored_ms", _age, neg),
        ListColumn("checks", "checks"),
        ListColumn("group", "group"),
        ListColumn("topic", "queue", lambda queue: queue.topic),
        ListColumn("keys", "keys", " ".join),
        ListColumn("broker", "queue", lambda queue: queue.broker),
    ],
    empty="no open transactions",
)
def list_(
    *,
    state: State = "",
    group: Annotated[str, typer.Option(help="Only those of this producer group.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="The most of each broker.")] = 100,
    broker: Annotated[str | None, typer.Option(help="Only at this broker.")] = None,
    cluster: Cluster = None,
    names: Names = NAMES_DEFAULT,
) -> Listing:
    """List open transactions, the oldest first."""
    _check_state(state)

    async def read(admin: Admin) -> list[OpenTransaction]:
        found = await admin.transactions(
            state=state, group=group, limit=limit, broker=broker, cluster=cluster
        )
        if group and not found:
            await check_producer_group(admin, group)
        return found

    found = ask(names, read)
    counts = Counter(transaction.queue.broker for transaction in found).values()
    shown = quantity(limit, "of a broker is", "of a broker are")
    remark = f"{shown} shown; there may be more, which --limit shows"
    return Listing(found, [remark] if max(counts, default=0) >= limit else [])


@app.command()
def show(
    name: Id,
    *,
    broker: Broker = None,
    cluster: Cluster = None,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Show an open transaction and its message."""
    found, message = ask(
        names, lambda admin: admin.transaction(name, broker=broker, cluster=cluster)
    )
    if json:
        as_json({"transaction": found, "message": message_fields(message)})
        return
    age = age_of(SystemClock().wall_ms() - found.stored_ms)
    fields: dict[str, object] = {
        "id": found.id,
        "state": found.state + (", being decided" if found.is_being_decided else ""),
        "age": age,
        "checks": f"{found.checks} without a decision",
        "group": found.group,
        "origin": found.origin or "unknown: it had sent no heartbeat, or the broker was restarted",
        "topic": found.queue.topic,
        "queue": f"{found.queue.broker}:{found.queue.number}",
        "half": f"{found.half_offset}, place {found.offset_id}",
        "keys": " ".join(found.keys),
    }
    shown = message_fields(message)
    fields |= {name: shown[name] for name in ("body", "body_base64") if name in shown}
    listing(fields)


@app.command()
def commit(
    name: Id,
    *,
    reason: Reason,
    operator: Operator = "",
    yes: Yes = False,
    broker: Broker = None,
    cluster: Cluster = None,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Commit an open transaction: its message becomes visible."""
    where = {"broker": broker, "cluster": cluster}
    _decide("commit", name, reason, operator, where, yes=yes, names=names, json=json)


@app.command()
def rollback(
    name: Id,
    *,
    reason: Reason,
    operator: Operator = "",
    yes: Yes = False,
    broker: Broker = None,
    cluster: Cluster = None,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Roll an open transaction back: its message will never be visible."""
    where = {"broker": broker, "cluster": cluster}
    _decide("rollback", name, reason, operator, where, yes=yes, names=names, json=json)


@app.command()
def recheck(
    name: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="The id of the transaction, or of its half message."),
    ] = None,
    *,
    reason: Annotated[str, typer.Option(help="Why; the transaction's history shows it.")] = "",
    operator: Annotated[
        str, typer.Option(show_default="who runs this", help="Who asks; kept with the reason.")
    ] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="All open transactions, or all of --group.")
    ] = False,
    group: Annotated[str, typer.Option(help="With --all: of this producer group.")] = "",
    state: State = "",
    broker: Broker = None,
    cluster: Cluster = None,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Have the broker ask the producers of a transaction again, even if it is parked.

    With --all it does so for every open transaction: after producers were away for long, say.
    """
    if (name is None) is not everything or ((group or state) and not everything):
        fail("name one transaction, or write --all with or without --group", WRONGLY_CALLED)
    where = {"broker": broker, "cluster": cluster}
    wanted: dict[str, Any] = {"operator": operator or getpass.getuser(), "reason": reason, **where}
    if name is None:
        _recheck_all(state, group, wanted, names, json=json)
        return
    ask(
        names,
        lambda admin: admin.recheck_transaction(name, **wanted),
        changes=True,
    )
    text = f"the broker asks the producers of {name} now, or as soon as one of them connects"
    print_result({"transaction": name, "recheck_requested": True}, text, json=json)


def _recheck_all(state: str, group: str, wanted: dict[str, Any], names: str, *, json: bool) -> None:
    _check_state(state)

    async def recheck_each(admin: Admin) -> dict[str, int]:
        with progress_bar("transactions", None) as advance:
            found = await admin.recheck_transactions(
                state=state, group=group, on_progress=advance, **wanted
            )
        if group and not any(found.values()):
            await check_producer_group(admin, group)
        return found

    counts = ask(names, recheck_each, changes=True)
    count = sum(counts.values())
    text = f"brokers ask the producers of {quantity(count, 'transaction')}"
    made = {"group": group, "rechecks_requested": count, "brokers": counts}
    print_result(made, text, json=json)


app.command()(history)
app.command()(decided)
app.command()(watch)


def _check_state(state: str) -> None:
    if state not in ("", "prepared", "parked"):
        fail(f"--state is prepared or parked, not {state}", WRONGLY_CALLED)


def _decide(
    decision: Literal["commit", "rollback"],
    name: str,
    reason: str,
    operator: str,
    where: dict[str, str | None],
    *,
    yes: bool,
    names: str,
    json: bool,
) -> None:
    who = operator or getpass.getuser()
    confirm(f"{decision} {name}? It cannot be undone.", yes=yes)
    broker = ask(
        names,
        lambda admin: admin.decide_transaction(
            name, decision, operator=who, reason=reason, **where
        ),
        changes=True,
    )
    made = {"decision": decision, "operator": who, "reason": reason}
    done = "committed" if decision == "commit" else "rolled back"
    text = f"transaction {name} is {done} at {broker} by {who}"
    print_result({"transaction": name, "broker": broker, **made}, text, json=json)
