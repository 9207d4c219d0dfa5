"""Transactions: listed while they are open, shown as nine steps, rechecked, and decided by hand.

Several can be decided together, after a page that lists them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from txmq.client.values import OpenTransaction, WholeTransaction
from txmq.console.body_view import body_view
from txmq.console.markup import link, url_of
from txmq.console.pages.parts import ChangePreview, ListOrder, body_values, order_of, sorted_rows
from txmq.console.visits import ChangeDone, PageContent, Routes, Visit, check_bytes, render
from txmq.errors import (
    Effect,
    LimitExceeded,
    NotFound,
    RequestNotSupported,
    TopicNotFound,
    TxmqError,
    UsageError,
)
from txmq.limits import CONSOLE_ROWS
from txmq.message import ReceivedMessage
from txmq.ops.moments import age_of
from txmq.ops.queries import for_each
from txmq.ops.traces import traces_of
from txmq.ops.transactions import (
    IMPLIED,
    NEXT,
    OPEN,
    UNKNOWN,
    DecidedTransaction,
    find_decided,
    find_report,
    steps_of,
)
from txmq.protocol.operations import RECHECK_REASON_BYTES_MAX
from txmq.protocol.span import REASON_BYTES_MAX
from txmq.text import quantity

__all__ = ["routes"]

routes = Routes()

SHOWN: Final = 100
SHOWN_MORE: Final = 500
_REPEATABLE_CHARS: Final = 100
"""The longest key that a person is asked to type again."""

_CHOSEN_MAX: Final = 100
"""Transactions that a visitor decides together; each takes a few requests to every broker."""
CHOSEN_S: Final = 60.0

_AGES: Final = (
    ("under a minute", 60),
    ("1 to 10 minutes", 600),
    ("10 to 60 minutes", 3600),
    ("1 to 24 hours", 86_400),
)
_OLDEST: Final = "over a day"
_MOODS: Final = {"parked": "bad", "committed": "good", "rolled back": "good"}
_STATUS_WORDS: Final = {
    IMPLIED: "follows from the decision",
    UNKNOWN: "not known",
    NEXT: "next",
    OPEN: "not yet",
}


@routes.page("/transactions")
async def show_list(visit: Visit) -> PageContent:
    """Show open transactions, the oldest first."""
    state, group = visit.text("state"), visit.text("group")
    if state == "decided":
        return await _show_decided(visit, group)
    if state not in {"", "prepared", "parked"}:
        raise UsageError(f"the state is prepared, parked or decided, not {state!r}")
    most = SHOWN_MORE if visit.text("more") else SHOWN
    is_supported = True
    found: list[OpenTransaction] = []
    try:
        found = await visit.admin.transactions(
            state=state, group=group, limit=most + 1, cluster=visit.cluster
        )
    except RequestNotSupported:
        is_supported = False
    found.sort(key=lambda transaction: transaction.stored_ms)
    sort = order_of(visit, tuple(_COLUMNS), "-age")
    address = {"state": state, "group": group, "more": visit.text("more")}
    return render(
        "transactions.html",
        title="Transactions",
        state=state,
        group=group,
        is_supported=is_supported,
        rows=sorted_rows(found[:most], sort, lambda row, column: _COLUMNS[column](row)),
        order=ListOrder("/transactions", address, sort),
        has_more=len(found) > most,
        is_all=most == SHOWN_MORE,
        most=most,
        ages=_by_age(found[:most], visit.now_ms),
        groups=Counter(transaction.group for transaction in found[:most]).most_common(10),
    )


async def _show_decided(visit: Visit, group: str) -> PageContent:
    is_supported, cursor = True, ""
    rows: list[DecidedTransaction] = []
    try:
        rows, cursor = await find_decided(visit.admin, CONSOLE_ROWS, visit.text("cursor"), group)
    except (RequestNotSupported, TopicNotFound):
        is_supported = False
    return render(
        "decided.html",
        title="Transactions",
        state="decided",
        group=group,
        is_supported=is_supported,
        decided=rows,
        is_first=not visit.text("cursor"),
        older=link("/transactions", state="decided", group=group, cursor=cursor) if cursor else "",
    )


@routes.page("/transaction")
async def show_one(visit: Visit) -> PageContent:
    """Show one transaction, open or decided: its nine steps and its message."""
    try:
        report, message = await find_report(
            visit.admin,
            visit.required("id"),
            visit.text("topic"),
            visit.text("broker") or None,
            visit.cluster,
        )
    except RequestNotSupported:
        return render("transaction_missing.html", title="Transaction")
    transaction = report.transaction
    traces = await traces_of(visit.admin, transaction.queue.topic, transaction.id)
    return render(
        "transaction.html",
        title=_title_of(transaction),
        transaction=transaction,
        report=report,
        whole=await visit.admin.transaction_messages(transaction),
        is_open=report.final is None,
        mood=_MOODS.get(transaction.state, "calm"),
        message=message,
        steps=steps_of(report, message, traces),
        has_traces=bool(traces),
        statuses=_STATUS_WORDS,
        reason_max=_recheck_bytes(visit),
        **body_values(
            visit,
            message.body,
            "/transaction",
            id=visit.text("id"),
            broker=transaction.queue.broker,
            topic=visit.text("topic"),
        ),
    )


@routes.page("/transaction/decision")
async def show_decision(visit: Visit) -> PageContent:
    """Ask for the reason of a decision, and ask the visitor to type the key."""
    decision = _decision_of(visit)
    transaction, message = await _find(visit)
    return render(
        "decision.html",
        title="Commit by hand" if decision == "commit" else "Roll back by hand",
        decision=decision,
        transaction=transaction,
        whole=await visit.admin.transaction_messages(transaction),
        repeated=_repeated(transaction),
        body=body_view(message.body),
        reason_bytes=_decision_bytes(visit),
    )


@routes.change("/transaction/decision", show_decision)
async def decide(visit: Visit) -> ChangeDone:
    """Commit a transaction or roll it back."""
    decision = _decision_of(visit)
    transaction, _ = await _find(visit)
    reason = visit.reason()
    check_bytes(reason, _decision_bytes(visit))
    what, repeated = _repeated(transaction)
    if visit.typed("repeated").strip() != repeated.strip():
        raise UsageError(f"the {what} is not the same; type it as it is shown, to decide this one")
    broker = await visit.admin.decide_transaction(
        transaction.id,
        decision,
        operator=visit.person,
        reason=reason,
        broker=transaction.queue.broker,
    )
    done = "committed" if decision == "commit" else "rolled back"
    notice = f"transaction {transaction.id} is {done} at {broker} by {visit.person}"
    return ChangeDone("/transactions", notice)


@routes.change("/transaction/recheck", show_one)
async def recheck(visit: Visit) -> ChangeDone:
    """Make the broker check a transaction with its producers again."""
    name, broker = visit.required("id"), visit.required("broker")
    reason = visit.typed("reason").strip()
    check_bytes(reason, _recheck_bytes(visit))
    await visit.admin.recheck_transaction(name, operator=visit.person, reason=reason, broker=broker)
    notice = f"{broker} asks the producers of {name} now, or as soon as one of them connects"
    return ChangeDone(url_of("/transaction", id=name, broker=broker), notice)


@routes.page("/transactions/recheck")
async def show_recheck_all(visit: Visit) -> PageContent:
    """Show which producers are asked, and how many transactions are open."""
    state, group = visit.text("state"), visit.text("group")
    found = await visit.admin.transactions(
        state=state, group=group, limit=SHOWN_MORE + 1, cluster=visit.cluster
    )
    count = f"more than {SHOWN_MORE}" if len(found) > SHOWN_MORE else str(len(found))
    facts = {"group": group or "all", "state": state or "prepared and parked", "open now": count}
    return ChangePreview(
        title="Ask all producers again",
        eyebrow="Transactions",
        sentences=(
            "Brokers ask the producers of each of these transactions, each a full number of times.",
            "A transaction that is open when you press the button is asked about as well.",
        ),
        facts=facts,
        action=link("/transactions/recheck", state=state, group=group),
        button="Ask all again",
        back=link("/transactions", state=state, group=group),
    ).content()


@routes.page("/transactions/chosen")
async def show_chosen(visit: Visit) -> PageContent:
    """List the transactions that a visitor chose, before they are decided or asked about."""
    act = _act_of(visit)
    chosen = await _chosen(visit)
    open_now = [name for name, choice in chosen.items() if choice is not None]
    if act.decision is not None:
        covered = _covered(chosen)
        open_now = [name for name in open_now if name not in covered]
    count = quantity(len(open_now), "transaction")
    silent = {
        f"Without the messages of transactions that {broker} may have: {why}": None
        for choice in chosen.values()
        if choice is not None
        for broker, why in choice.whole.silent.items()
    }
    return ChangePreview(
        title=f"{act.title} {count}",
        eyebrow="Transactions",
        sentences=(*act.sentences, *silent),
        facts=_facts_of(chosen, visit.now_ms),
        action=link("/transactions/chosen", do=act.name, chosen=open_now),
        button=f"{act.title} {count}",
        back="/transactions",
        wants_reason=act.decision is not None,
        reason_bytes=_decision_bytes(visit),
        repeated=str(len(open_now)) if act.decision else "",
        repeated_name="number of transactions",
        refusal="" if open_now else "None of these transactions is open now.",
        is_bad=act.decision == "rollback",
    ).content()


@routes.change("/transactions/chosen", show_chosen, CHOSEN_S)
async def change_chosen(visit: Visit) -> ChangeDone:
    """Decide or recheck each chosen transaction, even after one of them failed."""
    act = _act_of(visit)
    names = _chosen_names(visit)
    reason = ""
    if act.decision is not None:
        reason = visit.reason()
        check_bytes(reason, _decision_bytes(visit))
        visit.check_repeated("number of transactions", str(len(names)))

    async def change(name: str) -> TxmqError | None:
        broker, _, transaction_id = name.partition(":")
        by: dict[str, Any] = {
            "operator": visit.person,
            "reason": reason,
            "broker": broker,
            "cluster": visit.cluster,
        }
        try:
            if act.decision is None:
                await visit.admin.recheck_transaction(transaction_id, **by)
            else:
                await visit.admin.decide_transaction(transaction_id, act.decision, **by)
        except TxmqError as error:
            return error
        return None

    errors = [error for error in await for_each(names, change) if error is not None]
    failed = [error for error in errors if error.effect is not Effect.APPLIED]
    if len(failed) == len(names):
        raise failed[0]
    notice = f"{quantity(len(names) - len(failed), 'transaction')} {act.done}"
    if failed:
        notice += f"; {len(failed)} of {len(names)} failed, the first of them: {failed[0]}".rstrip()
    elif errors:
        notice += f"; {errors[0]}".rstrip()
    return ChangeDone("/transactions", notice)


@routes.change("/transactions/recheck", show_recheck_all)
async def recheck_all(visit: Visit) -> ChangeDone:
    """Make the brokers ask the producers of all open transactions, or of one group."""
    state, group = visit.text("state"), visit.text("group")
    counts = await visit.admin.recheck_transactions(
        state=state, group=group, operator=visit.person, cluster=visit.cluster
    )
    notice = f"brokers ask the producers of {quantity(sum(counts.values()), 'transaction')}"
    return ChangeDone(url_of("/transactions", state=state, group=group), notice)


def _decision_bytes(visit: Visit) -> int:
    """The maximum bytes of a decision's reason, which the log stores after the person's name."""
    return REASON_BYTES_MAX - len(f"{visit.person}: ".encode())


def _recheck_bytes(visit: Visit) -> int:
    """The maximum bytes of a recheck's reason, which the broker stores with the person's name."""
    return RECHECK_REASON_BYTES_MAX - len(visit.person.encode())


class _Act(NamedTuple):
    """What a visitor does to the chosen transactions."""

    name: str
    title: str
    sentences: tuple[str, ...]
    done: str
    decision: Literal["commit", "rollback"] | None = None


_FINAL: Final = "Decide only what you know from the database. A decision cannot be undone."
_ACTS: Final = (
    _Act(
        "recheck",
        "Ask the producers of",
        ("The brokers ask the producers of these transactions, each a full number of times.",),
        "will be checked again, now or as soon as a producer connects",
    ),
    _Act(
        "commit",
        "Commit",
        ("Consumers receive the message of each of these transactions.", _FINAL),
        "committed",
        "commit",
    ),
    _Act(
        "rollback",
        "Roll back",
        ("No consumer ever receives the message of any of these transactions.", _FINAL),
        "rolled back",
        "rollback",
    ),
)


def _act_of(visit: Visit) -> _Act:
    name = visit.required("do")
    for act in _ACTS:
        if act.name == name:
            return act
    raise UsageError(f"transactions are committed, rolled back or rechecked, not {name!r}")


def _chosen_names(visit: Visit) -> list[str]:
    """The chosen transactions, each as its broker and its id."""
    names = list(dict.fromkeys(visit.texts("chosen")))
    if not names:
        raise UsageError("no transaction is chosen; go back and tick some in the list")
    if len(names) > _CHOSEN_MAX:
        raise LimitExceeded("the transactions that are chosen together", _CHOSEN_MAX, len(names))
    return names


class _Choice(NamedTuple):
    """A chosen message, and its whole transaction."""

    message: OpenTransaction
    whole: WholeTransaction


async def _chosen(visit: Visit) -> dict[str, _Choice | None]:
    """The chosen transactions by name; ``None`` for one that is not open."""
    names = _chosen_names(visit)

    async def find(name: str) -> _Choice | None:
        broker, _, transaction_id = name.partition(":")
        try:
            found, _ = await visit.admin.transaction(
                transaction_id, broker=broker or None, cluster=visit.cluster
            )
        except NotFound:
            return None
        return _Choice(found, await visit.admin.transaction_messages(found))

    return dict(zip(names, await for_each(names, find), strict=True))


def _covered(chosen: Mapping[str, _Choice | None]) -> set[str]:
    """The chosen messages that the decision on one before them decides, too."""
    covered: set[str] = set()
    decided: set[tuple[str, int]] = set()
    for name, choice in chosen.items():
        if choice is not None:
            if (choice.message.queue.broker, choice.message.half_offset) in decided:
                covered.add(name)
            decided |= {(item.queue.broker, item.half_offset) for item in choice.whole.messages}
    return covered


def _facts_of(chosen: Mapping[str, _Choice | None], now_ms: int) -> dict[str, str]:
    """The facts to confirm about each transaction, by its business key."""
    facts: dict[str, str] = {}
    for name, choice in chosen.items():
        if choice is None:
            facts[name] = "not open any more; it is left out"
            continue
        found, count = choice.message, len(choice.whole.open)
        title = _title_of(found)
        age = age_of(now_ms - found.stored_ms)
        facts[f"{title} ({found.id})" if title in facts else title] = (
            f"{found.state} for {age}, group {found.group}, topic {found.queue.topic}, "
            f"id {found.id} at {found.queue.broker}"
            + (f", one of {count} messages that are decided together" if count > 1 else "")
        )
    return facts


def _decision_of(visit: Visit) -> Literal["commit", "rollback"]:
    decision = visit.required("decision")
    if decision == "commit":
        return "commit"
    if decision == "rollback":
        return "rollback"
    raise UsageError(f"the decision is commit or rollback, not {decision!r}")


async def _find(visit: Visit) -> tuple[OpenTransaction, ReceivedMessage]:
    return await visit.admin.transaction(
        visit.required("id"),
        broker=visit.text("broker") or None,
        cluster=visit.cluster,
    )


def _title_of(transaction: OpenTransaction) -> str:
    """What people call a transaction: its business key, or its id if it has none."""
    return transaction.keys[0] if transaction.keys else transaction.id


def _repeated(transaction: OpenTransaction) -> tuple[str, str]:
    """What a person types again before a decision: the key, or the id if no key can be typed."""
    key = transaction.keys[0] if transaction.keys else ""
    if key.isprintable() and 0 < len(key) <= _REPEATABLE_CHARS:
        return "key", key
    return "id", transaction.id


def _by_age(found: list[OpenTransaction], now_ms: int) -> dict[str, int]:
    counts: dict[str, Any] = dict.fromkeys([name for name, _ in _AGES] + [_OLDEST], 0)
    for transaction in found:
        age_s = (now_ms - transaction.stored_ms) / 1000
        counts[next((name for name, below_s in _AGES if age_s < below_s), _OLDEST)] += 1
    return counts


_COLUMNS: Final[Mapping[str, Callable[[OpenTransaction], Any]]] = {
    "transaction": _title_of,
    "state": lambda row: row.state,
    "age": lambda row: -row.stored_ms,
    "checks": lambda row: row.checks,
    "group": lambda row: row.group,
    "topic": lambda row: row.queue.topic,
    "broker": lambda row: row.queue.broker,
}
"""What each column of the list is sorted by."""
