"""Open transactions: listed, shown as a timeline, rechecked, and decided by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, Literal, NamedTuple

from txmq.cli.message import find_traces
from txmq.cli.moments import age_of
from txmq.cli.traces import trace_row
from txmq.client.values import OpenTransaction
from txmq.console.body_view import body_view
from txmq.console.forms import required
from txmq.console.markup import link, url_of
from txmq.console.visits import ChangeDone, ChangeForm, ChangeRoute, PageContent, PageRoute, Visit
from txmq.errors import RequestNotSupported, TxmqError, UsageError
from txmq.limits import REASON_CHARS_MAX
from txmq.message import ReceivedMessage
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


class TimelineStep(NamedTuple):
    """One line of a transaction's history."""

    at_ms: int | None
    text: str
    mood: str = ""


async def show_list(visit: Visit) -> PageContent:
    """Show open transactions, the oldest first."""
    state, group = visit.text("state"), visit.text("group")
    if state not in {"", "prepared", "parked"}:
        raise UsageError(f"the state is prepared or parked, not {state!r}")
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


async def show_one(visit: Visit) -> PageContent:
    """Show one open transaction, its history and its message."""
    transaction, message = await _find(visit)
    values = {
        "title": "Transaction",
        "transaction": transaction,
        "message": message,
        "timeline": await _timeline(visit, transaction, message),
        "body": body_view(message.body, visit.text("as")),
        "body_link": {
            form: link(
                "/transaction",
                id=transaction.id,
                broker=transaction.queue.broker,
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
        "now_ms": visit.clock.wall_ms(),
    }
    return PageContent("decision.html", values)


async def decide(form: ChangeForm) -> ChangeDone:
    """Commit a transaction or roll it back."""
    visit = form.visit
    decision = _decision_of(visit)
    transaction, _ = await _find(visit)
    reason = required(form.fields, "reason", "the reason")
    if len(reason) > REASON_CHARS_MAX:
        raise UsageError(f"the reason has at most {REASON_CHARS_MAX} characters")
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
    await visit.admin.recheck_transaction(name, broker=broker)
    notice = f"{broker} asks the producers of {name} now, or as soon as one of them connects"
    return ChangeDone(url_of("/transaction", id=name, broker=broker), notice)


async def recheck_all(form: ChangeForm) -> ChangeDone:
    """Have the brokers ask the producers of all open transactions, or of those of a group."""
    visit = form.visit
    state, group = visit.text("state"), visit.text("group")
    counts = await visit.admin.recheck_transactions(
        state=state, group=group, cluster=visit.settings.cluster
    )
    notice = f"brokers ask the producers of {quantity(sum(counts.values()), 'transaction')}"
    return ChangeDone(url_of("/transactions", state=state, group=group), notice)


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


async def _timeline(
    visit: Visit, transaction: OpenTransaction, message: ReceivedMessage
) -> list[TimelineStep]:
    """What is known of the nine steps, in order of time."""
    origin = transaction.origin or "an unknown client"
    steps = [
        TimelineStep(
            message.born_ms or None, f"{origin} of group {transaction.group} sent the half message"
        ),
        TimelineStep(
            transaction.stored_ms,
            f"{transaction.queue.broker} stored it at {transaction.offset_id}, invisible to "
            "consumers",
        ),
    ]
    try:
        traces = await find_traces(visit.admin, transaction.queue.topic, message.id)
    except TxmqError:
        traces = []  # Most clients leave no traces, and then their topic does not exist.
    for record in traces:
        event, _, group, *_, more = trace_row(record)
        steps.append(TimelineStep(record.at_ms, f"trace of group {group}: {event}, {more}"))
    steps.sort(key=lambda step: step.at_ms or 0)
    age = age_of(visit.clock.wall_ms() - transaction.stored_ms)
    if transaction.checks:
        asked = "once" if transaction.checks == 1 else f"{transaction.checks} times"
        steps.append(
            TimelineStep(None, f"the broker asked the producers {asked}; none had a decision")
        )
    if transaction.is_being_decided:
        steps.append(TimelineStep(None, "a decision is being written now"))
    elif transaction.state == "parked":
        text = f"parked, open for {age}: the broker asks no more, and a person must decide"
        steps.append(TimelineStep(None, text, "bad"))
    else:
        text = f"open for {age}: the broker waits for the producer, or asks it"
        steps.append(TimelineStep(None, text, "wait"))
    return steps


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
