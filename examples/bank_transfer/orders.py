"""Orders of customers, advices between banks, and the reasons to refuse them. Pure.

An order that makes no sense is refused before any booking; an order that the books do not allow is
refused while it is booked. Both raise :class:`Refused`, which rolls back the transaction on both
sides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from examples.bank_transfer.money import DIGITS, Money
from txmq.errors import RollBack

__all__ = [
    "ADVICES",
    "AMOUNT_MAX",
    "DAY_MAX",
    "NUMBERS",
    "TRANSFERS",
    "Advice",
    "Drill",
    "Order",
    "Outcome",
    "Reason",
    "Refused",
    "is_id",
    "is_number",
    "read_advice",
    "read_order",
    "see_order",
]

TRANSFERS: Final = "transfers"
"""The topic of orders from ICBC to CCB."""
ADVICES: Final = "advices"
"""The topic of CCB's advices to ICBC."""

AMOUNT_MAX: Final = 5_000_000_00
"""The most one transfer moves, in minor units."""
DAY_MAX: Final = 20_000_000_00
"""The most an account sends on one day."""

NUMBERS: Final = "it has up to 34 capital letters, digits and -, and does not begin with -"
"""The form of account numbers."""

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_NUMBER: Final = re.compile(r"[A-Z0-9][A-Z0-9-]{0,33}", re.ASCII)


class Reason(StrEnum):
    """Why a transfer is refused, or sent back."""

    BAD_ORDER = "the order makes no sense"
    BAD_ADVICE = "the advice makes no sense"
    BAD_AMOUNT = "no such amount can be sent"
    OVER_LIMIT = "over the limit"
    UNKNOWN_ACCOUNT = "there is no such account"
    CLOSED_ACCOUNT = "the account is closed"
    WRONG_CURRENCY = "the account has another currency"
    TOO_LITTLE_MONEY = "too little money"
    TOO_MUCH_MONEY = "the account holds no more money"
    SAME_ID = "another transfer has this id"
    DRILL = "the drill says so"


class Refused(RollBack):
    """A transfer is refused; the books keep only the refusal."""

    def __init__(self, reason: Reason, about: str = "") -> None:
        super().__init__(f"{reason.value}: {about}" if about else reason.value)
        self.reason = reason


class Drill(StrEnum):
    """A deliberate failure of a transfer; the tags are those of RocketMQ's tutorial."""

    NONE = ""
    TAGA = "TAGA"
    """The debit is made: it commits, as without a drill."""
    TAGB = "TAGB"
    """The debit fails after it was written: the transaction is rolled back."""
    TAGC = "TAGC"
    """The debit commits, but the producer reports no result: the broker has to ask."""
    SLOW = "SLOW"
    """The debit takes some seconds, so that the steps can be watched."""


@dataclass(frozen=True, slots=True)
class Order:
    """An order for a transfer; also the body of the message to the other bank."""

    id: str
    """Chosen by the caller, and the same for each attempt at this transfer."""
    payer: str
    payee: str
    amount: int
    """In minor units."""
    currency: str = "CNY"

    @property
    def money(self) -> Money:
        """The amount, for people."""
        return Money(self.amount, self.currency)


class Outcome(StrEnum):
    """The outcome of a transfer at the payee's bank."""

    CREDITED = "credited"
    RETURNED = "returned"


@dataclass(frozen=True, slots=True)
class Advice:
    """The message from the payee's bank to the payer's."""

    id: str
    """The id of the transfer."""
    outcome: Outcome
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.outcome}: {self.reason}" if self.reason else str(self.outcome)


_ORDERS: Final = msgspec.json.Decoder(Order)
_ADVICES: Final = msgspec.json.Decoder(Advice)
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_order(body: bytes) -> Order:
    """The order in a message or a request.

    Raises:
        Refused: The body is not an order.
    """
    try:
        return _ORDERS.decode(body)
    except _UNREADABLE as error:
        raise Refused(Reason.BAD_ORDER, str(error)) from error


def read_advice(body: bytes) -> Advice:
    """The advice in a message.

    Raises:
        Refused: The body is not an advice.
    """
    try:
        advice = _ADVICES.decode(body)
    except _UNREADABLE as error:
        raise Refused(Reason.BAD_ADVICE, str(error)) from error
    if not is_id(advice.id):
        raise Refused(Reason.BAD_ADVICE, f"{advice.id!r} is not an id")
    return advice


def is_id(text: str) -> bool:
    """True if a transfer may have this id."""
    return _ID.fullmatch(text) is not None


def is_number(text: str) -> bool:
    """True if an account may have this number."""
    return _NUMBER.fullmatch(text) is not None


def see_order(order: Order) -> None:
    """Check an order without the books.

    Raises:
        Refused: The order makes no sense, or is over the limit.
    """
    if not is_id(order.id):
        raise Refused(
            Reason.BAD_ORDER,
            f"{order.id!r} is not an id: it has up to 64 letters, digits and - _ . and begins with "
            "a letter or a digit",
        )
    for number in (order.payer, order.payee):
        if not is_number(number):
            raise Refused(Reason.BAD_ORDER, f"{number!r} is not an account number: {NUMBERS}")
    if order.currency not in DIGITS:
        raise Refused(Reason.BAD_AMOUNT, f"{order.currency!r} is not a currency of these banks")
    if order.amount <= 0:
        raise Refused(Reason.BAD_AMOUNT, f"{order.amount} is not more than 0")
    if order.amount > AMOUNT_MAX:
        most = Money(AMOUNT_MAX, order.currency)
        raise Refused(Reason.OVER_LIMIT, f"one transfer moves {most} at most")
