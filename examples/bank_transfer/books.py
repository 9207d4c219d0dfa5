"""A bank's books: accounts, a journal with two sides, and transfers with their state.

What is in the journal is never changed and never removed, and the entries of one booking add up to
nothing. A customer's balance stands on the account as well, where it can be locked. The bank's own
accounts have no such row, which every transfer would wait for; their balance is their journal.
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
"""What is on its way to the other bank, or has come from it."""
UNCLAIMED: Final = "unclaimed"
"""What came back, and whose account takes it no more: it is closed, or full."""

BALANCE_MAX: Final = 10**15
"""No account holds more, so that also the sum over thousands of them fits into a BIGINT."""


class State(StrEnum):
    """Where a transfer stands in one bank's books."""

    REFUSED = "refused"
    SENT = "sent"
    SETTLED = "settled"
    RETURNED = "returned"
    CREDITED = "credited"

    @property
    def is_final(self) -> bool:
        """Whether nothing more becomes of it in this bank."""
        return not MOVES[self]


MOVES: Final[dict[State, frozenset[State]]] = {
    State.REFUSED: frozenset(),
    State.SENT: frozenset({State.SETTLED, State.RETURNED}),
    State.SETTLED: frozenset(),
    State.RETURNED: frozenset(),
    State.CREDITED: frozenset(),
}
"""What may become of a transfer. The bank that pays begins with REFUSED or SENT, or with SETTLED
where both sides are one transaction; the bank that is paid with CREDITED or RETURNED."""


class Kind(StrEnum):
    """Why something was booked."""

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
    """What was sent on that day."""

    __table_args__ = (CheckConstraint("balance >= 0", name="accounts_balance"),)


class Transfer(Base):
    """What became of an order in this bank."""

    __tablename__ = "transfers"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    payer: Mapped[str] = mapped_column(String(34))
    payee: Mapped[str] = mapped_column(String(34))
    amount: Mapped[int] = mapped_column(BigInteger)
    currency: Mapped[str] = mapped_column(String(3))
    state: Mapped[State] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(String(200), default="")
    way: Mapped[str] = mapped_column(String(16), default="")
    """How the other bank heard of it."""
    xid: Mapped[str] = mapped_column(String(64), default="")
    """The transaction that it was made in, where it has one."""
    made_ms: Mapped[int] = mapped_column(BigInteger)
    ended_ms: Mapped[int | None] = mapped_column(BigInteger, default=None)

    __table_args__ = (Index("transfers_made", "made_ms"),)


class Entry(Base):
    """One side of a booking: what an account has more, or less."""

    __tablename__ = "journal"

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    transfer: Mapped[str | None] = mapped_column(ForeignKey(Transfer.id))
    """None for what an account was opened with."""
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
