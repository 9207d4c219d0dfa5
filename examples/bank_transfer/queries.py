"""Queries of a bank's books that block no writer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Executable, func, literal, select, union_all
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from examples.bank_transfer.books import (
    CAPITAL,
    CLEARING,
    UNCLAIMED,
    Account,
    Entry,
    State,
    Transfer,
)
from examples.bank_transfer.orders import is_id, is_number

__all__ = ["CUSTOMERS", "Part", "Queries"]

CUSTOMERS: Final = "customers"
"""All their accounts together."""

ROWS_MAX: Final = 500
"""The most rows of one answer."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the books, in one currency."""

    name: str
    """A state of transfers, or the owner of the money."""
    currency: str
    count: int
    amount: int


class Queries:
    """The books of one bank.

    Args:
        engine: Its database, over connections of its own, so that no transfer waits for them.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def account(self, number: str) -> Account | None:
        """One account."""
        if not is_number(number):
            return None
        async with AsyncSession(self._engine) as session:
            return await session.get(Account, number)

    async def accounts(self, after: str = "", limit: int = ROWS_MAX) -> Sequence[Account]:
        """Accounts in the order of their numbers, from behind one."""
        wanted = select(Account).where(Account.number > after).order_by(Account.number)
        async with AsyncSession(self._engine) as session:
            return (await session.scalars(wanted.limit(min(limit, ROWS_MAX)))).all()

    async def transfer(self, of: str) -> Transfer | None:
        """One transfer."""
        if not is_id(of):
            return None
        async with AsyncSession(self._engine) as session:
            return await session.get(Transfer, of)

    async def transfers(
        self, state: State | None = None, limit: int = ROWS_MAX
    ) -> Sequence[Transfer]:
        """The latest transfers, perhaps of one state alone."""
        wanted = select(Transfer).order_by(Transfer.made_ms.desc(), Transfer.id)
        if state is not None:
            wanted = wanted.where(Transfer.state == state)
        async with AsyncSession(self._engine) as session:
            return (await session.scalars(wanted.limit(min(limit, ROWS_MAX)))).all()

    async def entries(self, of: str) -> Sequence[Entry]:
        """The journal's entries of a transfer."""
        wanted = select(Entry).where(Entry.transfer == of).order_by(Entry.id)
        async with AsyncSession(self._engine) as session:
            return (await session.scalars(wanted)).all()

    async def movements(self) -> Sequence[Part]:
        """The number and sum of transfers by state and currency.

        It reads all transfers: some 30 ms of SQLite for 50,000.
        """
        wanted = (
            select(Transfer.state, Transfer.currency, func.count(), func.sum(Transfer.amount))
            .group_by(Transfer.state, Transfer.currency)
            .order_by(Transfer.state, Transfer.currency)
        )
        return await self._parts(wanted)

    async def totals(self) -> Sequence[Part]:
        """The money by owner and currency.

        Each currency must add up to zero; otherwise the accounts' balances contradict the journal.

        It is one statement, so that all sums are of the same moment. It reads every account and the
        bank's own sides of the journal, which is every second row: some 30 ms of SQLite for 100,000
        rows.
        """
        theirs = select(
            literal(CUSTOMERS), Account.currency, func.count(), func.sum(Account.balance)
        ).group_by(Account.currency)
        own = (
            select(Entry.account, Entry.currency, func.count(), func.sum(Entry.amount))
            .where(Entry.account.in_((CAPITAL, CLEARING, UNCLAIMED)))
            .group_by(Entry.account, Entry.currency)
        )
        return await self._parts(union_all(theirs, own))

    async def _parts(self, wanted: Executable) -> Sequence[Part]:
        async with AsyncSession(self._engine) as session:
            rows = (await session.execute(wanted)).all()
        return [Part(name, currency, count, int(amount)) for name, currency, count, amount in rows]

    async def well(self) -> None:
        """Check that the database answers.

        Raises:
            DBAPIError: It does not.
        """
        async with AsyncSession(self._engine) as session:
            await session.execute(select(1))
