"""The auditor: reads both banks' books at any moment, and detects money that was created or lost.

The two databases have no common snapshot, so the auditor reads CCB's books first, in one snapshot,
and then ICBC's, in another. A transfer that CCB has credited was debited at ICBC before, so ICBC's
books show it. Transfers that only ICBC's books show are in flight.

Balances, journal and transfers are written at different places, and must agree::

    customers' money at both banks + money in flight + unclaimed money = money at the beginning

The transfers tell the money in flight, and so do the clearing accounts of both journals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from sqlalchemy import Connection, Engine, case, func, select

from examples.bank_transfer.books import (
    CAPITAL,
    CLEARING,
    MOVES,
    UNCLAIMED,
    Account,
    Entry,
    Kind,
    State,
    Transfer,
)
from examples.bank_transfer.databases import engine
from examples.bank_transfer.money import Money
from examples.bank_transfer.ways import Way

__all__ = [
    "Auditor",
    "Books",
    "Line",
    "Sheet",
    "TransferTotal",
    "combine",
    "find_broken_answers",
    "find_mismatches",
]

INNER: Final = (CAPITAL, CLEARING, UNCLAIMED)
SHOWN_MAX: Final = 10
"""The most mistakes of one kind that are read."""
LEFT: Final = (State.SENT, State.SETTLED)
"""A transfer in these states has left its payer."""


class TransferTotal(NamedTuple):
    """Transfers of one state."""

    number: int
    amount: int


@dataclass(frozen=True, slots=True)
class Books:
    """One bank's books at one moment; money by currency."""

    name: str
    balances: Mapping[str, int]
    """The sums of the customers' accounts."""
    journal: Mapping[tuple[str, str], int]
    """The sums of the journal, by currency and the bank's own account; "" is all customers."""
    moved: Mapping[tuple[str, State, bool], TransferTotal]
    """The transfers, by currency, state, and whether XA made them."""
    mistakes: tuple[str, ...] = ()
    """The contradictions inside this bank."""

    def amount(self, currency: str, *states: State, by_xa: bool) -> int:
        """The amount of the transfers in some states."""
        found = (self.moved.get((currency, state, by_xa)) for state in states)
        return sum(total.amount for total in found if total is not None)

    def count(self, *states: State) -> int:
        """The number of transfers in some states."""
        return sum(total.number for (_, state, _), total in self.moved.items() if state in states)


@dataclass(frozen=True, slots=True)
class Sheet:
    """Both banks at one moment."""

    icbc: Books
    ccb: Books
    opening: Mapping[str, int]
    in_flight: Mapping[str, int]
    """The money between them, by currency."""
    mistakes: tuple[str, ...]


class Line(NamedTuple):
    """A transfer in one bank's books, with its journal entries."""

    payer: str
    payee: str
    amount: int
    currency: str
    state: State
    booked: tuple[tuple[Kind, str, int], ...]
    """All but clearing."""


class Auditor:
    """Reads both banks.

    Args:
        icbc: The database of the bank that pays.
        ccb: The database of the bank that is paid.
    """

    def __init__(self, icbc: str, ccb: str) -> None:
        self._icbc = engine(icbc)
        self._ccb = engine(ccb)
        self._opening: Mapping[str, int] = {}

    def look(self) -> Sheet:
        """Both books now; CCB's first."""
        if not self._opening:
            self._opening = self._opened()
        with snapshot(self._ccb) as connection:
            ccb = read(connection, "CCB")
        with snapshot(self._icbc) as connection:
            icbc = read(connection, "ICBC")
        return combine(icbc, ccb, self._opening)

    def match(self, answers: Mapping[str, str]) -> list[str]:
        """Compare every transfer at both banks, when no transfer is in flight; returns the
        mistakes.

        Args:
            answers: The answers that customers received.
        """
        with snapshot(self._ccb) as connection:
            ccb = lines(connection)
        with snapshot(self._icbc) as connection:
            icbc = lines(connection)
        return [*find_mismatches(icbc, ccb), *find_broken_answers(icbc, answers)]

    def close(self) -> None:
        """Close both databases."""
        self._icbc.dispose()
        self._ccb.dispose()

    def _opened(self) -> Mapping[str, int]:
        """The money that the accounts were opened with."""
        total: Counter[str] = Counter()
        wanted = select(Entry.currency, func.sum(Entry.amount)).group_by(Entry.currency)
        wanted = wanted.where(Entry.kind == Kind.OPENING, Entry.account != CAPITAL)
        for bank in (self._icbc, self._ccb):
            with snapshot(bank) as connection:
                for currency, amount in connection.execute(wanted):
                    total[currency] += int(amount)
        return dict(total)


def combine(icbc: Books, ccb: Books, opening: Mapping[str, int]) -> Sheet:
    """Combine both books; CCB's were read before ICBC's."""
    mistakes = [*icbc.mistakes, *ccb.mistakes]
    in_flight: dict[str, int] = {}
    for currency in sorted({*icbc.balances, *ccb.balances, *opening}):
        by_message, by_xa = (
            icbc.amount(currency, *LEFT, by_xa=by_xa)
            - ccb.amount(currency, State.CREDITED, by_xa=by_xa)
            for by_xa in (False, True)
        )
        in_flight[currency] = by_message + by_xa
        # XA commits at both banks, and a reader in between may see either commit first.
        if by_message < 0:
            mistakes.append(f"{Money(-by_message, currency)} were credited, and never debited")
        mistakes += _missing(icbc, ccb, currency, opening.get(currency, 0), in_flight[currency])
    return Sheet(icbc, ccb, opening, in_flight, tuple(mistakes))


def _missing(icbc: Books, ccb: Books, currency: str, opening: int, in_flight: int) -> Iterator[str]:
    there = icbc.balances.get(currency, 0) + ccb.balances.get(currency, 0)
    unclaimed = icbc.journal.get((currency, UNCLAIMED), 0)
    missing = opening - there - in_flight - unclaimed
    if missing:
        what = "are missing" if missing > 0 else "are there too many"
        yield f"{Money(abs(missing), currency)} {what}"
    clearing = sum(books.journal.get((currency, CLEARING), 0) for books in (icbc, ccb))
    if clearing != in_flight:
        open_amount, booked = Money(in_flight, currency), Money(clearing, currency)
        yield f"the transfers have {open_amount} in flight, and the journals {booked}"


ENDS: Final = {
    State.SETTLED: State.CREDITED,
    State.RETURNED: State.RETURNED,
    State.REFUSED: None,
}
"""The state at CCB of a transfer that has ended at ICBC."""


def find_mismatches(icbc: Mapping[str, Line], ccb: Mapping[str, Line]) -> Iterator[str]:
    """The mistakes between two banks, transfer by transfer, when no transfer is in flight."""
    for number, ours in icbc.items():
        theirs = ccb.get(number)
        if ours.state not in ENDS:
            yield f"transfer {number} is {ours.state} at ICBC, and at no end"
            continue
        wanted, found = ENDS[ours.state], None if theirs is None else theirs.state
        if wanted is not found:
            yield f"transfer {number} is {ours.state} at ICBC, and {found or 'unknown'} at CCB"
        elif theirs is not None and ours[:4] != theirs[:4]:
            yield f"transfer {number} is {ours[:4]} at ICBC, and {theirs[:4]} at CCB"
        yield from _misbooked(number, ours, "ICBC")
    for number, theirs in ccb.items():
        if number not in icbc:
            yield f"transfer {number} is {theirs.state} at CCB, and unknown at ICBC"
        yield from _misbooked(number, theirs, "CCB")


def find_broken_answers(icbc: Mapping[str, Line], answers: Mapping[str, str]) -> Iterator[str]:
    """Wrong answers to customers; these detect a transfer that both banks have lost."""
    states = {state.value: state for state in State}
    for number, answer in answers.items():
        if (state := states.get(answer)) is None:
            continue  # The customer received no answer.
        found = icbc[number].state if number in icbc else None
        if found is not state and found not in MOVES[state]:
            yield f"transfer {number} is {found or 'unknown'} at ICBC, but its answer was {answer}"


def _misbooked(number: str, line: Line, bank: str) -> Iterator[str]:
    debit = (Kind.DEBIT, line.payer, -line.amount)
    back = (Kind.RETURN, line.payer, line.amount)
    unclaimed = (Kind.RETURN, UNCLAIMED, line.amount)
    credit = (Kind.CREDIT, line.payee, line.amount)
    allowed: Mapping[State, tuple[tuple[tuple[Kind, str, int], ...], ...]] = {
        State.SENT: ((debit,),),
        State.SETTLED: ((debit,),),
        State.RETURNED: ((debit, back), (debit, unclaimed)) if bank == "ICBC" else ((),),
        State.CREDITED: ((credit,),),
        State.REFUSED: ((),),
    }
    if line.booked not in allowed[line.state]:
        yield f"transfer {number} is {line.state} at {bank}, where these are booked: {line.booked}"


# The books


@contextmanager
def snapshot(of: Engine) -> Iterator[Connection]:
    """Everything read inside this context is from one snapshot."""
    if of.dialect.name == "sqlite":
        with of.connect() as connection:
            # Without it each statement would read at its own moment.
            connection.exec_driver_sql("BEGIN")
            yield connection
        return
    with of.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        yield connection


def read(connection: Connection, name: str) -> Books:
    """A bank's books, and their contradictions."""
    balances = select(Account.currency, func.sum(Account.balance)).group_by(Account.currency)
    owner = case((Entry.account.in_(INNER), Entry.account), else_="").label("owner")
    journal = select(Entry.currency, owner, func.sum(Entry.amount)).group_by(Entry.currency, owner)
    is_xa = (Transfer.way == Way.XA).label("is_xa")
    moved = select(
        Transfer.currency, Transfer.state, is_xa, func.count(), func.sum(Transfer.amount)
    ).group_by(Transfer.currency, Transfer.state, is_xa)
    return Books(
        name,
        {currency: int(amount) for currency, amount in connection.execute(balances)},
        {(currency, of): int(amount) for currency, of, amount in connection.execute(journal)},
        {
            (currency, State(state), bool(by_xa)): TransferTotal(count, int(amount))
            for currency, state, by_xa, count, amount in connection.execute(moved)
        },
        tuple(_contradictions(connection, name)),
    )


def _contradictions(connection: Connection, name: str) -> Iterator[str]:
    booked = (
        select(Entry.account, Entry.currency, func.sum(Entry.amount).label("amount"))
        .where(Entry.account.not_in(INNER))
        .group_by(Entry.account, Entry.currency)
        .subquery()
    )
    same = (booked.c.account == Account.number) & (booked.c.currency == Account.currency)
    known = func.coalesce(booked.c.amount, 0)
    wrong = (
        select(Account.number, Account.balance, known)
        .outerjoin(booked, same)
        .where(Account.balance != known)
    )
    for number, balance, amount in connection.execute(wrong.limit(SHOWN_MAX)):
        yield f"{name}: {number} has {balance}, and {amount} by the journal"
    strange = select(booked.c.account).outerjoin(Account, same).where(Account.number.is_(None))
    for (number,) in connection.execute(strange.limit(SHOWN_MAX)):
        yield f"{name}: the journal has entries of {number}, but this account does not exist"
    one_sided = (
        select(Entry.transfer, Entry.kind, func.sum(Entry.amount))
        .group_by(Entry.transfer, Entry.kind, Entry.currency)
        .having(func.sum(Entry.amount) != 0)
    )
    for number, kind, amount in connection.execute(one_sided.limit(SHOWN_MAX)):
        yield f"{name}: the {kind} of transfer {number} adds up to {amount}, and not to nothing"


def lines(connection: Connection) -> dict[str, Line]:
    """Every transfer, with its journal entries."""
    booked: dict[str, list[tuple[Kind, str, int]]] = {}
    entries = select(Entry.transfer, Entry.kind, Entry.account, Entry.amount).order_by(Entry.id)
    entries = entries.where(Entry.transfer.is_not(None), Entry.account != CLEARING)
    for number, kind, account, amount in connection.execute(entries):
        booked.setdefault(str(number), []).append((Kind(kind), account, amount))
    transfers = select(
        Transfer.id, Transfer.payer, Transfer.payee, Transfer.amount, Transfer.currency,
        Transfer.state,
    )  # fmt: skip
    return {
        number: Line(payer, payee, amount, currency, State(state), tuple(booked.pop(number, ())))
        for number, payer, payee, amount, currency, state in connection.execute(transfers)
    }
