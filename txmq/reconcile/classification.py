"""The truth table: the class of a transfer, from its facts; pure.

The conditions are in the order of :class:`~txmq.reconcile.classes.Class`, and the first that
holds counts. They cover every case; a transfer without a class stops the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from txmq.errors import ReconcileRefused
from txmq.reconcile.classes import Class
from txmq.reconcile.rules import Rules
from txmq.reconcile.transfer import TransferFacts

__all__ = ["classify", "facts_of_item"]

_OWN: Final = (
    *("key", "debits", "debited", "returns", "returned", "credits", "credited", "messages"),
    *("ordered", "currency", "delivery", "reason", "is_late", "first_ms", "last_ms"),
)
"""The facts that become columns of an item unchanged."""


def classify(
    facts: TransferFacts, rules: Rules, as_of_ms: int, *, is_unseen: bool = False
) -> Class:
    """The class of a transfer at the end of the day, or of the reading if that was earlier.

    ``is_unseen`` is true if it was backdated on an earlier day and nobody has explained it yet.

    Raises:
        ReconcileRefused: No class fits, which is an error in txmq.
    """
    for class_, holds in _table(facts, rules, as_of_ms, is_unseen=is_unseen):
        if holds:
            return class_
    raise ReconcileRefused(f"no class fits transfer {facts.key}; please report this error in txmq")


def facts_of_item(facts: TransferFacts, class_: Class) -> dict[str, Any]:
    """The columns of an item that the facts of this day determine."""
    message = facts.message
    return {name: getattr(facts, name) for name in _OWN} | {
        "class": class_.value,
        "amount": _at_risk(facts, class_),
        "holder": _holder(facts),
        "debit_bank": _joined(facts.debit_banks),
        "credit_bank": _joined(facts.credit_banks),
        "payer": _joined(facts.payers),
        "payee": _joined(facts.payees),
        "message_id": message and message.id,
        "message_state": message and message.state,
        "decided_by": message and message.decided_by,
    }


def _table(
    facts: TransferFacts, rules: Rules, as_of_ms: int, *, is_unseen: bool
) -> Iterator[tuple[Class, bool]]:
    debited, returned, credited = facts.debits > 0, facts.returns > 0, facts.credits > 0
    was_taken = facts.debits > facts.returns
    is_visible = facts.messages > 0
    was_rolled_back = not is_visible and not facts.is_undecided and facts.is_rolled_back
    is_paid = not debited and (credited or returned)
    is_late = (facts.is_late and not facts.was_open) or is_unseen
    earliest = as_of_ms - rules.day.grace_ms

    yield Class.DUPLICATE_ID, facts.is_used_again
    yield from _of_the_rules(facts, rules, earliest, is_late=is_late)
    yield Class.DUPLICATE_DEBIT, facts.debits > 1 or facts.returns > 1
    yield Class.DUPLICATE_CREDIT, facts.has_copies
    yield Class.DUPLICATE_MESSAGE, facts.messages > 1
    yield Class.DOUBLE_CREDIT, facts.credits > 1 or (credited and returned)
    yield Class.CURRENCY_MISMATCH, len(facts.currencies) > 1
    is_off = facts.spread > rules.money_of(facts.currency).tolerance or facts.fees != 0
    yield Class.AMOUNT_MISMATCH, is_off or facts.is_unread or facts.is_odd
    is_elsewhere = len(facts.payers) > 1 or len(facts.payees) > 1 or facts.is_overdrawn
    yield Class.ACCOUNT_MISMATCH, is_elsewhere
    is_unordered = not is_visible and (credited or is_paid)
    yield Class.CREDIT_WITHOUT_MESSAGE, is_unordered and not (was_taken and was_rolled_back)
    yield Class.ROLLED_BACK_BUT_DEBITED, was_taken and was_rolled_back
    yield Class.WRONG_BANK, _is_at_wrong_bank(facts, rules)

    is_given_up = facts.delivery == "dead" or facts.is_parked
    is_owed = was_taken and is_visible and not facts.credits
    is_unknown = not is_visible and not facts.is_undecided and not facts.is_rolled_back
    is_waiting = facts.delivery in {"undelivered", "unacknowledged"}
    incomplete = [
        (Class.COMMITTED_BUT_NOT_DEBITED, not debited and is_visible and facts.has_commit),
        (Class.MESSAGE_WITHOUT_DEBIT, not debited and is_visible),
        (Class.DEBIT_WITHOUT_MESSAGE, was_taken and is_unknown),
        (Class.PARKED, not is_visible and facts.is_undecided),
        (Class.DEAD_LETTER, is_owed and facts.delivery == "dead"),
        (Class.COMMITTED_UNDELIVERED, is_owed and is_waiting),
        (Class.DELIVERED_UNCREDITED, is_owed),
        # Anything else that was taken back from the payee is still owed to the payer.
        (Class.RECALLED_UNRETURNED, facts.recalled != 0),
    ]
    # Time may still complete these transfers, so this class comes before every incomplete class and
    # after all breaks that time cannot mend. Money that was paid out is not in flight.
    can_wait = facts.first_ms > earliest and not credited and not is_paid and not is_given_up
    yield Class.IN_FLIGHT, can_wait and any(holds for _, holds in incomplete)
    yield from incomplete

    once = facts.debits == 1 and facts.credits + facts.returns == 1 and not facts.recalled
    is_matched, is_returned = once and credited and is_visible, once and returned
    yield Class.PRIOR_PERIOD, (is_matched or is_returned) and is_late
    yield Class.RETURNED, is_returned
    yield Class.ROLLED_BACK, was_rolled_back
    yield Class.MATCHED, is_matched


def _is_at_wrong_bank(facts: TransferFacts, rules: Rules) -> bool:
    """True if a bank booked an entry that belongs to another bank."""
    banks = rules.banks_of_transfer(facts.key.partition("/")[0], facts.topics)
    return banks is not None and any(
        bank not in banks.for_kind(kind) for kind, bank in facts.booked
    )


def _of_the_rules(
    facts: TransferFacts, rules: Rules, earliest: int, *, is_late: bool
) -> Iterator[tuple[Class, bool]]:
    """Outcomes that only some rules allow: money that goes back after the credit, parts, fees."""
    is_odd = facts.is_unread or facts.is_odd or facts.has_copies or facts.has_changed_copy
    if is_odd or not facts.messages or len(facts.currencies) > 1:
        return
    outcomes, tolerance = rules.outcomes, rules.money_of(facts.currency).tolerance
    charge = facts.fees if outcomes.charges == "payer" else 0
    sent = facts.debited - charge
    # A part that the payee's bank refuses is paid back without a credit, and so without a recall.
    refused = max(facts.returned - facts.recalled, 0) if outcomes.parts else 0
    done = facts.given + refused + (facts.fees if outcomes.charges == "payee" else 0)
    ordered = facts.ordered_in_all if outcomes.parts else facts.ordered
    may_be_many = outcomes.parts and 1 in {facts.debits, facts.credits}
    is_single = (facts.debits, facts.credits, facts.messages) == (1, 1, 1)
    is_charged = not facts.fees or outcomes.charges != "none"
    if not (is_charged and (is_single or may_be_many) and abs(sent - ordered) <= tolerance):
        return
    # Suspense accounts and fees may take a part of the money, but no account may move more than
    # was ordered for it, or give back more than it had.
    moved, payer_open, payee_open = facts.moved, facts.ordered_from[None], facts.ordered_to[None]
    has_accounts = (
        _fits(moved["debit"], facts.ordered_from, payer_open + charge + tolerance)
        and _fits(moved["credit"], facts.ordered_to, payee_open + tolerance)
        and _fits(moved["return"], moved["debit"], tolerance)
        and not facts.is_overdrawn
    )
    adds_up = max(sent, ordered, done) - min(sent, ordered, done) <= tolerance
    yield Class.ACCOUNT_MISMATCH, outcomes.parts and adds_up and not has_accounts
    if not has_accounts:
        return
    fees_max = min(outcomes.charges_max.get(facts.currency, 0), ordered)
    yield Class.FEE_TOO_HIGH, facts.fees > fees_max and done <= sent

    is_settled = adds_up and facts.credits + facts.returns > 0
    back = facts.recalled + refused
    goes_back = is_settled and back > 0
    is_back = goes_back and facts.returns > 0 and abs(back - facts.returned) <= tolerance
    is_on_its_way_back = goes_back and facts.recalled > facts.returned
    is_matched = is_settled and not facts.recalled and not facts.returns
    is_in_parts = outcomes.parts and 0 < done < sent
    known = [
        (Class.PRIOR_PERIOD, is_back and is_late),
        (Class.RETURNED, is_back),
        # The debit may be old, so the grace counts from the last record.
        (Class.IN_FLIGHT, is_on_its_way_back and facts.last_ms > earliest),
        (Class.RECALLED_UNRETURNED, is_on_its_way_back),
        (Class.PRIOR_PERIOD, is_matched and is_late),
        (Class.MATCHED, is_matched),
        (Class.IN_FLIGHT, is_in_parts and facts.first_ms > earliest),
        (Class.DELIVERED_UNCREDITED, is_in_parts),
    ]
    is_known = any(holds for _, holds in known)
    yield Class.WRONG_BANK, is_known and _is_at_wrong_bank(facts, rules)
    yield from known


def _fits(amounts: Counter[Any], most: Counter[Any], open_: int = 0) -> bool:
    """True if the accounts together exceed their limits by no more than ``open_``, which covers
    orders that name no account, fees, and the tolerance.
    """
    return sum(max(amount - most[name], 0) for name, amount in amounts.items()) <= open_


def _at_risk(facts: TransferFacts, class_: Class) -> int:
    """The amount that the banks or their customers may lose."""
    whole = max(facts.ordered, *facts.amounts, 0)
    if class_ is Class.FEE_TOO_HIGH:
        return facts.fees
    if facts.missing and class_ is not Class.CURRENCY_MISMATCH:
        return abs(facts.missing)
    return (class_ is Class.AMOUNT_MISMATCH and facts.spread) or whole


def _holder(facts: TransferFacts) -> str:
    if facts.missing > 0:
        return "transit"
    if facts.credits:
        return "both" if facts.returns else "payee"
    return "payer" if facts.returns or facts.debits else "nobody"


def _joined(names: set[str]) -> str | None:
    """The names in a set, usually one, joined by `` / ``."""
    return " / ".join(sorted(names)) or None
