"""``txmq tx``: shows transactions, and decides open ones by hand."""

from collections import Counter
from operator import neg
from typing import Annotated, Any, Literal, NamedTuple, cast

import typer

from txmq.cli.commands import Answer, Commands, Every, Listing, Watching, listed
from txmq.cli.common import (
    WRONGLY_CALLED,
    AsJson,
    Ask,
    AtBroker,
    Cluster,
    Operator,
    Yes,
    argument,
    confirm,
    fail,
    flag,
    operator_name,
    option,
)
from txmq.cli.output import as_json, listing, message_fields, note, progress_bar, say, table
from txmq.client import Admin, TransactionReport
from txmq.client.values import OpenTransaction, WholeTransaction
from txmq.message import ReceivedMessage
from txmq.ops.known_names import check_producer_group
from txmq.ops.moments import age_of, time_text
from txmq.ops.rows import ListColumn
from txmq.ops.traces import traces_of
from txmq.ops.transactions import (
    DecidedTransaction,
    TransactionStep,
    find_decided,
    find_report,
    steps_of,
)
from txmq.runtime.clock import SystemClock
from txmq.text import printable, quantity

__all__ = ["app", "changes_between"]

app = Commands("Show open transactions, and decide them by hand.")

Id = Annotated[
    str, typer.Argument(metavar="ID", help="The id of the transaction, or of its half message.")
]
State = Annotated[str, typer.Option(metavar="prepared|parked", help="Only those in this state.")]
Reason = Annotated[str, typer.Option(help="Why; the broker keeps it in its log.")]
Broker = Annotated[str | None, typer.Option(help="The broker, if several have it open.")]
OfGroup = Annotated[str, typer.Option("--group", help="Only those of this producer group.")]

Seen = dict[tuple[str, int], OpenTransaction]
"""By broker and offset of the half message: ids may repeat."""

_DECIDED = (
    "time", "decision", "by", "reason", "transaction", "group", "topic", "keys", "broker",
)  # fmt: skip
_TIME_CHARS = len(time_text(0))
_STATUS = {"implied": " (follows from the decision)", "unknown": " (not known)"}


class Where(NamedTuple):
    """Where an open transaction is."""

    broker: Broker = None
    cluster: Cluster = None


def _age(stored_ms: int) -> str:
    return age_of(SystemClock().wall_ms() - stored_ms)


@app.command("list")
@listed(
    [
        *("id", "state"),
        ListColumn("age", "stored_ms", _age, neg),
        *("checks", "group"),
        ListColumn("topic", "queue", lambda queue: queue.topic),
        ListColumn("keys", "keys", " ".join),
        ListColumn("broker", "queue", lambda queue: queue.broker),
    ],
    empty="no open transactions",
)
def list_(
    *,
    state: State = "",
    group: OfGroup = "",
    limit: int = option("The most of each broker.", default=100, min=1),
    broker: AtBroker = None,
    cluster: Cluster = None,
    ask: Ask,
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

    found = ask(read)
    counts = Counter(transaction.queue.broker for transaction in found).values()
    shown = quantity(limit, "of a broker is", "of a broker are")
    remark = f"{shown} shown; there may be more, which --limit shows"
    return Listing(found, [remark] if max(counts, default=0) >= limit else [])


@app.command()
def show(name: Id, *, where: Where, ask: Ask) -> Answer:
    """Show an open transaction and its message.

    If the transaction has several messages, it also lists them all, at every broker.
    """

    async def read(admin: Admin) -> tuple[OpenTransaction, ReceivedMessage, WholeTransaction]:
        found, message = await admin.transaction(name, **where._asdict())
        return found, message, await admin.transaction_messages(found)

    found, message, whole = ask(read)
    body = message_fields(message)
    _note_silent(whole)

    def show_fields() -> None:
        fields: dict[str, object] = {
            "id": found.id,
            "state": found.state + (", being decided" if found.is_being_decided else ""),
            "age": _age(found.stored_ms),
            "checks": f"{found.checks} without a decision",
            "group": found.group,
            "origin": found.origin
            or "unknown: it had sent no heartbeat, or the broker was restarted",
            "topic": found.queue.topic,
            "queue": f"{found.queue.broker}:{found.queue.number}",
            "half": f"{found.half_offset}, place {found.offset_id}",
            "keys": " ".join(found.keys),
        }
        listing(fields | {name: body[name] for name in ("body", "body_base64") if name in body})
        if len(whole.messages) > 1:
            rows = [
                (row.id, row.queue.topic, row.state, row.queue.broker) for row in whole.messages
            ]
            say(f"one decision is about these {len(rows)} messages:")
            table(("id", "topic", "state", "broker"), rows)

    shown = {"transaction": found, "message": body, "messages": whole.messages}
    return Answer(shown, show_fields)


@app.command("rollback", help="Roll an open transaction back: its message will never be visible.")
@app.command("commit", help="Commit an open transaction: its message becomes visible.")
def decide(
    ctx: typer.Context,
    name: Id,
    *,
    reason: Reason,
    operator: Operator = "",
    yes: Yes = False,
    where: Where,
    ask: Ask,
) -> Answer:
    """Commit an open transaction, or roll it back."""
    decision = cast("Literal['commit', 'rollback']", ctx.info_name)
    who = operator_name(operator)
    confirm(f"{decision} {name}? It cannot be undone.", yes=yes)
    broker = ask(
        lambda admin: admin.decide_transaction(
            name, decision, operator=who, reason=reason, **where._asdict()
        ),
        changes=True,
    )
    made = {"decision": decision, "operator": who, "reason": reason}
    done = "committed" if decision == "commit" else "rolled back"
    text = f"transaction {name} is {done} at {broker} by {who}"
    return Answer({"transaction": name, "broker": broker, **made}, text)


@app.command()
def recheck(
    name: str | None = argument(
        "The id of the transaction, or of its half message.", default=None, metavar="ID"
    ),
    *,
    reason: str = option("Why; the transaction's history shows it.", default=""),
    operator: str = option(
        "Who asks; kept with the reason.", default="", show_default="who runs this"
    ),
    everything: bool = flag("All open transactions, or all of --group.", "--all"),
    group: str = option("With --all: of this producer group.", default=""),
    state: State = "",
    where: Where,
    ask: Ask,
) -> Answer:
    """Have the broker ask the producers of a transaction again, even if it is parked.

    With --all it asks about every open transaction, for example after a long outage of producers.
    """
    if (name is None) is not everything or ((group or state) and not everything):
        fail("name one transaction, or write --all with or without --group", WRONGLY_CALLED)
    wanted = {"operator": operator_name(operator), "reason": reason, **where._asdict()}
    if name is not None:
        ask(lambda admin: admin.recheck_transaction(name, **wanted), changes=True)
        text = f"the broker asks the producers of {name} now, or as soon as one of them connects"
        return Answer({"transaction": name, "recheck_requested": True}, text)
    _check_state(state)

    async def recheck_each(admin: Admin) -> dict[str, int]:
        with progress_bar("transactions", None) as advance:
            found = await admin.recheck_transactions(
                state=state, group=group, on_progress=advance, **wanted
            )
        if group and not any(found.values()):
            await check_producer_group(admin, group)
        return found

    counts = ask(recheck_each, changes=True)
    count = sum(counts.values())
    return Answer(
        {"group": group, "rechecks_requested": count, "brokers": counts},
        f"brokers ask the producers of {quantity(count, 'transaction')}",
    )


@app.command()
def history(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="The id of the transaction, its half or its visible message."
        ),
    ],
    *,
    topic: str = option("Its topic; finds a transaction that was decided long ago.", default=""),
    broker: str | None = option("The broker, if several know it."),
    cluster: Cluster = None,
    ask: Ask,
) -> Answer:
    """Show the nine steps of a transaction, open or decided, and what comes next.

    Consumers and the local transaction appear if clients leave traces.
    """

    async def find(
        admin: Admin,
    ) -> tuple[TransactionReport, list[TransactionStep], WholeTransaction]:
        report, message = await find_report(admin, name, topic, broker, cluster)
        transaction = report.transaction
        traces = await traces_of(admin, transaction.queue.topic, transaction.id)
        whole = await admin.transaction_messages(transaction)
        return report, steps_of(report, message, traces), whole

    report, steps, whole = ask(find)
    _note_silent(whole)

    def show_steps() -> None:
        transaction = report.transaction
        say(f"{printable(transaction.id)} of {transaction.group}: {transaction.state}")
        others = [item for item in whole.messages if item.id != transaction.id]
        if others:
            listed = ", ".join(f"{item.id} ({item.state})" for item in others)
            say(f"together with {quantity(len(others), 'message')}: {listed}")
        for step in steps:
            say(_step_line(step))

    shown = {
        "report": report,
        "steps": [step._asdict() for step in steps],
        "messages": whole.messages,
    }
    return Answer(shown, show_steps)


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
    group: OfGroup = "",
    count: int = option("The most transactions.", default=32, min=1),
    ask: Ask,
) -> Answer:
    """List decided transactions, the newest first: who decided them, and why.

    Brokers keep decisions as long as their logs. `txmq tx history` shows one with its steps.
    """

    async def find(admin: Admin) -> list[DecidedTransaction]:
        found, cursor = await find_decided(admin, count, "", group)
        while cursor and len(found) < count:
            more, cursor = await find_decided(admin, count, cursor, group)
            found += more
        return found[:count]

    found = ask(find)
    rows = [
        (
            time_text(row.at_ms), row.decision, row.source, row.reason, row.id or row.place,
            row.group, row.topic, " ".join(row.keys), row.broker,
        )
        for row in found
    ]  # fmt: skip
    return Answer(
        [row._asdict() for row in found],
        lambda: table(_DECIDED, rows, empty="no decided transactions"),
    )


@app.command()
def watch(
    *,
    group: OfGroup = "",
    limit: int = option("The most that are followed.", default=10_000, min=1),
    every: Every = "1s",
    cluster: Cluster = None,
    ask: Ask,
    json: AsJson = False,
) -> None:
    """Print each change of an open transaction, one per line, until Ctrl-C.

    The changes are "opened", "parked", "checked again" and "closed", when the producer, a check or
    an operator has decided it. A transaction that opens and closes between two polls does not
    appear.
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

    def read() -> list[OpenTransaction]:
        return ask(lambda admin: admin.transactions(group=group, limit=limit, cluster=cluster))

    Watching(True, every).show(read, show, clears=False)


def changes_between(before: Seen | None, current: Seen) -> list[tuple[str, OpenTransaction]]:
    """The changes of open transactions between two polls; the first poll has none."""
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


def _note_silent(whole: WholeTransaction) -> None:
    for broker, why in whole.silent.items():
        note(f"txmq: without the messages that broker {broker} may have: {why}")


def _check_state(state: str) -> None:
    if state not in ("", "prepared", "parked"):
        fail(f"--state is prepared or parked, not {state}", WRONGLY_CALLED)
