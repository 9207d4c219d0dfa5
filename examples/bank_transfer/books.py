"""A bank's books: accounts, a journal with two sides, and transfers with their state.

Entries of the journal are never changed or removed, and the entries of one booking add up to zero.
A customer's balance is in the account's row as well, where it can be locked. The bank's own
accounts have no such row, because every transfer would wait for it; their balance is the sum of the
journal.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, Integer, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

__all__ = [
    "BALANCE_MAX",
    "CAPITAL",
    "CLEARING",
    "MOVES",
    "UNCLAIMED",
    "Account",
    "Base",
    "Entry",
    "Kind",
    "State",
    "Transfer",
]

CAPITAL: Final = "capital"
"""Where the money of new accounts comes from."""
CLEARING: Final = "clearing"
"""Money that goes to the other bank, or came from it."""
UNCLAIMED: Final = "unclaimed"
"""Money that came back, but its account is closed or full."""

BALANCE_MAX: Final = 10**15
"""The most an account holds, so that the sum over thousands of accounts fits into a BIGINT."""


class State(StrEnum):
    """The state of a transfer in one bank's books."""

    REFUSED = "refused"
    SENT = "sent"
    SETTLED = "settled"
    RETURNED = "returned"
    CREDITED = "credited"

    @property
    def is_final(self) -> bool:
        """True if the transfer has ended in this bank."""
        return not MOVES[self]


MOVES: Final[dict[State, frozenset[State]]] = {
    State.REFUSED: frozenset(),
    State.SENT: frozenset({State.SETTLED, State.RETURNED}),
    State.SETTLED: frozenset(),
    State.RETURNED: frozenset(),
    State.CREDITED: frozenset(),
}
"""The allowed moves. The payer's bank begins with REFUSED or SENT, or with SETTLED if both sides
are one transaction; the payee's bank begins with CREDITED or RETURNED."""


class Kind(StrEnum):
    """The kind of a booking."""

    OPENING = "opening"
    DEBIT = "debit"
    CREDIT = "credit"
    RETURN = "return"


class Base(DeclarativeBase):
    """All tables of a bank's books."""


class Account(Base):
    """A customer's account."""

    __tablename__ = "accounts"

    number: Mapped[str] = mapped_column(String(34), primary_key=True)
    holder: Mapped[str] = mapped_column(String(80))
    currency: Mapped[str] = mapped_column(String(3))
    balance: Mapped[int] = mapped_column(BigInteger)
    is_open: Mapped[bool] = mapped_column(default=True)
    sent_on: Mapped[int] = mapped_column(default=0)
    """The day of the last transfer, counted from 1970."""
    sent_today: Mapped[int] = mapped_column(BigInteger, default=0)
    """The amount sent on that day."""

    __table_args__ = (CheckConstraint("balance >= 0", name="accounts_balance"),)


class Transfer(Base):
    """An order, and its state in this bank."""

    __tablename__ = "transfers"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    payer: Mapped[str] = mapped_column(String(34))
    payee: Mapped[str] = mapped_column(String(34))
    amount: Mapped[int] = mapped_column(BigInteger)
    currency: Mapped[str] = mapped_column(String(3))
    state: Mapped[State] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(String(200), default="")
    way: Mapped[str] = mapped_column(String(16), default="")
    """How the other bank was notified."""
    xid: Mapped[str] = mapped_column(String(64), default="")
    """The id of its transaction, if it has one."""
    made_ms: Mapped[int] = mapped_column(BigInteger)
    ended_ms: Mapped[int | None] = mapped_column(BigInteger, default=None)

    __table_args__ = (Index("transfers_made", "made_ms"),)


class Entry(Base):
    """One side of a booking: a credit or debit of one account."""

    __tablename__ = "journal"

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    transfer: Mapped[str | None] = mapped_column(ForeignKey(Transfer.id))
    """None for the first balance of an account."""
    kind: Mapped[Kind] = mapped_column(String(8))
    account: Mapped[str] = mapped_column(String(34))
    amount: Mapped[int] = mapped_column(BigInteger)
    currency: Mapped[str] = mapped_column(String(3))
    booked_ms: Mapped[int] = mapped_column(BigInteger)

    __table_args__ = (
        CheckConstraint("amount <> 0", name="journal_amount"),
        Index("journal_account", "account"),
        Index("journal_transfer", "transfer"),
    )
