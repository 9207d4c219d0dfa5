"""What taking a way means, and what is known of a transfer once one was taken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from examples.bank_transfer.books import State
from examples.bank_transfer.orders import Drill, Order
from txmq import TransactionOutcome, TransactionState

__all__ = ["Send", "Sent", "sent_by"]


class Sent(NamedTuple):
    """What is known now."""

    state: State | None
    """None where nobody knows yet; then a broker asks, until somebody does."""
    xid: str = ""


Send: TypeAlias = Callable[[Order, Drill], Awaitable[Sent]]
"""Makes a transfer. It raises :class:`Refused` or why else it is not made, and ``IntegrityError``
where there is one with this id."""


def sent_by(outcome: TransactionOutcome, state: State) -> Sent:
    """What a transaction has come to, and the state of its transfer if it was committed.

    Raises:
        Exception: It was rolled back, and that is why.
    """
    if outcome.state is TransactionState.ROLLED_BACK:
        assert outcome.problem is not None, "nothing is rolled back without a reason"
        raise outcome.problem
    is_known = outcome.state is TransactionState.COMMITTED
    return Sent(state if is_known else None, outcome.xid)
