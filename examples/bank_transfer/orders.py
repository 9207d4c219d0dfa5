"""What a customer asks for, what banks tell each other, and what is refused; pure.

An order is refused before anything is booked where it makes no sense by itself, and while it is
booked where the books stand against it. Both are a :class:`Refused`, which undoes a transaction on
both sides.
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
"""The topic of what ICBC tells CCB."""
ADVICES: Final = "advices"
"""The topic of what CCB answers."""

AMOUNT_MAX: Final = 5_000_000_00
"""One transfer moves no more, in minor units."""
DAY_MAX: Final = 20_000_000_00
"""The transfers of an account move no more on one day."""

NUMBERS: Final = "it has up to 34 capital letters, digits and -, and does not begin with -"
"""What accounts are called."""

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
    """A transfer that is not made; nothing of it stays in any book but that it was refused."""

    def __init__(self, reason: Reason, about: str = "") -> None:
        super().__init__(f"{reason.value}: {about}" if about else reason.value)
        self.reason = reason


class Drill(StrEnum):
    """What is to happen to a transfer on purpose; the tags are those of RocketMQ's tutorial."""

    NONE = ""
    TAGA = "TAGA"
    """The debit is made: it commits, as without a drill."""
    TAGB = "TAGB"
    """The debit fails after it was written: all of it is rolled back."""
    TAGC = "TAGC"
    """The debit is made, and nobody is told: the broker has to ask."""
    SLOW = "SLOW"
    """The debit takes some seconds, for whoever wants to look on."""


@dataclass(frozen=True, slots=True)
class Order:
    """A transfer as it is asked for; also what the message to the other bank says."""

    id: str
    """Made up by who asks, and the same each time they ask for this transfer."""
    payer: str
    payee: str
    amount: int
    """In minor units."""
    currency: str = "CNY"

    @property
    def money(self) -> Money:
        """The amount, to be shown."""
        return Money(self.amount, self.currency)


class Outcome(StrEnum):
    """What became of a transfer at the bank that is paid."""

    CREDITED = "credited"
    RETURNED = "returned"


@dataclass(frozen=True, slots=True)
class Advice:
    """What the bank that is paid tells the one that pays."""

    id: str
    """The transfer's."""
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
        Refused: There is none in it.
    """
    try:
        return _ORDERS.decode(body)
    except _UNREADABLE as error:
        raise Refused(Reason.BAD_ORDER, str(error)) from error


def read_advice(body: bytes) -> Advice:
    """The advice in a message.

    Raises:
        Refused: There is none in it.
    """
    try:
        advice = _ADVICES.decode(body)
    except _UNREADABLE as error:
        raise Refused(Reason.BAD_ADVICE, str(error)) from error
    if not is_id(advice.id):
        raise Refused(Reason.BAD_ADVICE, f"{advice.id!r} is no id")
    return advice


def is_id(text: str) -> bool:
    """Whether a transfer may be called so."""
    return _ID.fullmatch(text) is not None


def is_number(text: str) -> bool:
    """Whether an account may have this number."""
    return _NUMBER.fullmatch(text) is not None


def see_order(order: Order) -> None:
    """See what can be seen without any book.

    Raises:
        Refused: It is not to be carried out, by anybody.
    """
    if not is_id(order.id):
        raise Refused(
            Reason.BAD_ORDER,
            f"{order.id!r} is no id: it has up to 64 letters, digits and - _ . and begins with a "
            "letter or a digit",
        )
    for number in (order.payer, order.payee):
        if not is_number(number):
            raise Refused(Reason.BAD_ORDER, f"{number!r} is no account's number: {NUMBERS}")
    if order.currency not in DIGITS:
        raise Refused(Reason.BAD_AMOUNT, f"{order.currency!r} is no currency of these banks")
    if order.amount <= 0:
        raise Refused(Reason.BAD_AMOUNT, f"{order.amount} is not more than nothing")
    if order.amount > AMOUNT_MAX:
        most = Money(AMOUNT_MAX, order.currency)
        raise Refused(Reason.OVER_LIMIT, f"one transfer moves {most} at most")
