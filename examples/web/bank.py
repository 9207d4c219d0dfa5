"""Shared code of the three programs: a transfer and the answer to a caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from txmq import TransactionOutcome, TransactionState
from txmq.errors import (
    BrokerRefused,
    DatabaseFailed,
    RollBack,
    RolledBackByCheck,
    TransactionOverdue,
    TransportError,
)

__all__ = [
    "GROUP",
    "TABLES",
    "UNAVAILABLE",
    "Answer",
    "Transfer",
    "answer_of",
    "booked",
    "later",
    "see_balance",
]

GROUP: Final = "icbc-web"

TABLES: Final = (
    "CREATE TABLE account (name VARCHAR(32) PRIMARY KEY, balance BIGINT NOT NULL)",
    """
    CREATE TABLE transfer (
        id VARCHAR(64) PRIMARY KEY,
        xid VARCHAR(64) NOT NULL,
        payer VARCHAR(32) NOT NULL,
        amount BIGINT NOT NULL
    )
    """,
)

UNAVAILABLE: Final = (
    BrokerRefused,
    DatabaseFailed,
    RolledBackByCheck,
    TransactionOverdue,
    TransportError,
)
"""After these nothing is booked, and the same request may work a little later."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """The requested transfer; also the body of the message."""

    id: str
    """Made up by the caller, and the same each time it asks for this transfer."""
    payer: str
    amount: int


class Answer(NamedTuple):
    """The answer to a caller."""

    status: int
    body: dict[str, str]


def see_balance(order: Transfer, left: int | None) -> None:
    """Check the balance after the amount was taken.

    Raises:
        RollBack: The account does not allow it.
    """
    if left is None:
        raise RollBack(f"account {order.payer} does not exist")
    if order.amount <= 0:
        raise RollBack("the amount is not more than 0")
    if left < 0:
        raise RollBack("too little money")


def answer_of(outcome: TransactionOutcome) -> Answer:
    """The answer to an outcome."""
    match outcome.state:
        case TransactionState.COMMITTED:
            return Answer(200, {"state": "booked", "xid": outcome.xid})
        case TransactionState.ROLLED_BACK:
            return Answer(409, {"state": "refused", "reason": str(outcome.problem)})
        case TransactionState.UNKNOWN:
            # Not an error: it may be booked. A repeated request with the same id finds out.
            return Answer(202, {"state": "not known yet", "xid": outcome.xid})


def booked(order: Transfer, xid: str, payer: str, amount: int) -> Answer:
    """The answer to a transfer that is in the books already."""
    if (payer, amount) != (order.payer, order.amount):
        return Answer(422, {"state": "refused", "reason": "another transfer has this id"})
    return Answer(200, {"state": "booked", "xid": xid})


def later(error: Exception) -> Answer:
    """The answer if nothing is booked, and a repeated request makes sense."""
    return Answer(503, {"state": "not booked", "reason": str(error)})
