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
from txmq.cli.lists import Every, Listing, listed, watched
from txmq.cli.output import (
    as_json,
    listing,
    message_fields,
    note,
    print_result,
    print_rows,
    progress_bar,
    say,
)
from txmq.client import Admin, TransactionReport
from txmq.client.values import OpenTransaction
from txmq.ops.decided import DecidedTransaction, find_decided, find_report
from txmq.ops.known_names import check_producer_group
from txmq.ops.moments import age_of, time_text
from txmq.ops.rows import ListColumn
from txmq.ops.traces import traces_of
from txmq.ops.transactions import TransactionStep, steps_of
from txmq.runtime.clock import SystemClock
from txmq.text import printable, quantity

__all__ = ["app", "changes_between"]

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

Seen = dict[tuple[str, int], OpenTransaction]
"""By broker and offset of the half message: ids may repeat."""

_TIME_CHARS = len(time_text(0))
_STATUS = {"implied": " (follows from the decision)", "unknown": " (not known)"}


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


@app.command()
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
        say(_step_line(step))


def _step_line(step: TransactionStep) -> str:
    time = time_text(step.at_ms) if step.at_ms else ""
    number = str(step.number) if step.number else " "
    more = f" ({step.more})" if step.more else ""
    mark = "next: " if step.status == "next" else ""
    return printable(
        f"{number} {time:{_TIME_CHARS}} {mark}{step.text}{_STATUS.get(step.status, '')}{more}"
    )


@app.command()
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


@app.command()
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
                say(_change_line(change, transaction, now_ms))
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


def _change_line(change: str, found: OpenTransaction, now_ms: int) -> str:
    more: list[Any] = [f"group {found.group}", f"topic {found.queue.topic}"]
    more += [f"keys {' '.join(found.keys)}"] if found.keys else []
    more += [f"after {age_of(now_ms - found.stored_ms)}"] if change != "opened" else []
    return f"{time_text(now_ms)} {change} {found.id} at {found.queue.broker}: {', '.join(more)}"


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
