"""The common type of all ways, and the result of a transfer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from examples.bank_transfer.books import State
from examples.bank_transfer.orders import Drill, Order
from txmq import TransactionOutcome, TransactionState

__all__ = ["Send", "SendResult", "result_of"]


class SendResult(NamedTuple):
    """The result of a transfer as far as it is known."""

    state: State | None
    """None if it is unknown; then a broker asks until it is known."""
    xid: str = ""


Send: TypeAlias = Callable[[Order, Drill], Awaitable[SendResult]]
"""Makes a transfer. It raises :class:`Refused` or another error if it is not made, and
``IntegrityError`` if a transfer with this id exists."""


def result_of(outcome: TransactionOutcome, state: State) -> SendResult:
    """The result of a transaction, with the state of its transfer if it was committed.

    Raises:
        Exception: The transaction was rolled back because of this error.
    """
    if outcome.state is TransactionState.ROLLED_BACK:
        assert outcome.problem is not None, "nothing is rolled back without a reason"
        raise outcome.problem
    is_known = outcome.state is TransactionState.COMMITTED
    return SendResult(state if is_known else None, outcome.xid)
