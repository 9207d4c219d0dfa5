"""Transactions: listed while they are open, shown as nine steps, rechecked, and decided by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, Literal

from txmq.cli.transaction_steps import IMPLIED, NEXT, OPEN, UNKNOWN, steps_of
from txmq.cli.tx_decided import DecidedTransaction, find_decided
from txmq.cli.tx_history import find_report, traces_of
from txmq.client.values import OpenTransaction
from txmq.console.body_view import body_view
from txmq.console.markup import link, url_of
from txmq.console.previews import check_bytes, reason_in
from txmq.console.visits import ChangeDone, ChangeForm, ChangeRoute, PageContent, PageRoute, Visit
from txmq.errors import RequestNotSupported, TopicNotFound, UsageError
from txmq.limits import CONSOLE_ROWS, REASON_CHARS_MAX
from txmq.message import ReceivedMessage
from txmq.protocol.rechecks import RECHECK_REASON_BYTES_MAX
from txmq.protocol.span import REASON_BYTES_MAX
from txmq.quantity import quantity

__all__ = ["CHANGES", "PAGES"]

SHOWN: Final = 100
SHOWN_MORE: Final = 500
_REPEATABLE_CHARS: Final = 100
"""A person can type a key of this length again."""

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
            state=state, group=group, limit=most + 1, cluster=visit.settings.cluster
        )
    except RequestNotSupported:
        is_supported = False
    found.sort(key=lambda transaction: transaction.stored_ms)
    now_ms = visit.clock.wall_ms()
    values = {
        "title": "Transactions",
        "state": state,
        "group": group,
        "is_supported": is_supported,
        "rows": found[:most],
        "now_ms": now_ms,
        "has_more": len(found) > most,
        "is_all": most == SHOWN_MORE,
        "most": most,
        "ages": _by_age(found[:most], now_ms),
        "groups": Counter(transaction.group for transaction in found[:most]).most_common(10),
    }
    return PageContent("transactions.html", values)


async def _show_decided(visit: Visit, group: str) -> PageContent:
    is_supported, cursor = True, ""
    rows: list[DecidedTransaction] = []
    try:
        rows, cursor = await find_decided(visit.admin, CONSOLE_ROWS, visit.text("cursor"), group)
    except (RequestNotSupported, TopicNotFound):
        is_supported = False
    values = {
        "title": "Transactions",
        "state": "decided",
        "group": group,
        "is_supported": is_supported,
        "decided": rows,
        "is_first": not visit.text("cursor"),
        "older": link("/transactions", state="decided", group=group, cursor=cursor)
        if cursor
        else "",
    }
    return PageContent("decided.html", values)


async def show_one(visit: Visit) -> PageContent:
    """Show one transaction, open or decided: its nine steps and its message."""
    try:
        report, message = await find_report(
            visit.admin,
            visit.required("id"),
            visit.text("topic"),
            visit.text("broker") or None,
            visit.settings.cluster,
        )
    except RequestNotSupported:
        return PageContent("transaction_missing.html", {"title": "Transaction"})
    transaction = report.transaction
    traces = await traces_of(visit.admin, transaction.queue.topic, transaction.id)
    values = {
        "title": "Transaction",
        "transaction": transaction,
        "report": report,
        "is_open": report.final is None,
        "mood": _MOODS.get(transaction.state, "calm"),
        "message": message,
        "steps": steps_of(report, message, traces),
        "has_traces": bool(traces),
        "statuses": _STATUS_WORDS,
        "reason_max": _recheck_bytes(visit),
        "body": body_view(message.body, visit.text("as")),
        "body_link": {
            form: link(
                "/transaction",
                id=visit.text("id"),
                broker=transaction.queue.broker,
                topic=visit.text("topic"),
                **{"as": form},
            )
            for form in ("json", "text", "hex")
        },
    }
    return PageContent("transaction.html", values)


async def show_decision(visit: Visit) -> PageContent:
    """Ask for the reason of a decision, and for the key once more."""
    decision = _decision_of(visit)
    transaction, message = await _find(visit)
    values = {
        "title": "Commit by hand" if decision == "commit" else "Roll back by hand",
        "decision": decision,
        "transaction": transaction,
        "repeated": _repeated(transaction),
        "body": body_view(message.body),
        "reason_max": REASON_CHARS_MAX,
        "reason_bytes": _decision_bytes(visit),
        "now_ms": visit.clock.wall_ms(),
    }
    return PageContent("decision.html", values)


async def decide(form: ChangeForm) -> ChangeDone:
    """Commit a transaction or roll it back."""
    visit = form.visit
    decision = _decision_of(visit)
    transaction, _ = await _find(visit)
    reason = reason_in(form.fields)
    check_bytes(reason, _decision_bytes(visit))
    what, repeated = _repeated(transaction)
    if form.fields.get("repeated", "").strip() != repeated.strip():
        raise UsageError(f"the {what} is not the same; type it as it is shown, to decide this one")
    broker = await visit.admin.decide_transaction(
        transaction.id,
        decision,
        operator=visit.session.person,
        reason=reason,
        broker=transaction.queue.broker,
    )
    done = "committed" if decision == "commit" else "rolled back"
    notice = f"transaction {transaction.id} is {done} at {broker} by {visit.session.person}"
    return ChangeDone("/transactions", notice)


async def recheck(form: ChangeForm) -> ChangeDone:
    """Have the broker ask the producers of a transaction again."""
    visit = form.visit
    name, broker = visit.required("id"), visit.required("broker")
    reason = form.fields.get("reason", "").strip()
    check_bytes(reason, _recheck_bytes(visit))
    await visit.admin.recheck_transaction(
        name,
        operator=visit.session.person,
        reason=reason,
        broker=broker,
    )
    notice = f"{broker} asks the producers of {name} now, or as soon as one of them connects"
    return ChangeDone(url_of("/transaction", id=name, broker=broker), notice)


async def recheck_all(form: ChangeForm) -> ChangeDone:
    """Have the brokers ask the producers of all open transactions, or of those of a group."""
    visit = form.visit
    state, group = visit.text("state"), visit.text("group")
    counts = await visit.admin.recheck_transactions(
        state=state,
        group=group,
        operator=visit.session.person,
        cluster=visit.settings.cluster,
    )
    notice = f"brokers ask the producers of {quantity(sum(counts.values()), 'transaction')}"
    return ChangeDone(url_of("/transactions", state=state, group=group), notice)


def _decision_bytes(visit: Visit) -> int:
    """The bytes that the reason of a decision may have: the log keeps it behind the name."""
    return REASON_BYTES_MAX - len(f"{visit.session.person}: ".encode())


def _recheck_bytes(visit: Visit) -> int:
    """The bytes that the reason of a recheck may have, beside the name."""
    return RECHECK_REASON_BYTES_MAX - len(visit.session.person.encode())


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
        cluster=visit.settings.cluster,
    )


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


PAGES: Final = (
    PageRoute("/transactions", show_list),
    PageRoute("/transaction", show_one),
    PageRoute("/transaction/decision", show_decision),
)
CHANGES: Final = (
    ChangeRoute("/transaction/decision", decide, show_decision),
    ChangeRoute("/transaction/recheck", recheck, show_one),
    ChangeRoute("/transactions/recheck", recheck_all, show_list),
)
