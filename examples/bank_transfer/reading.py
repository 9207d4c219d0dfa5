"""What a bank's books say to whoever asks, read without keeping anybody from writing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from examples.bank_transfer.books import Account, Entry, State, Transfer

__all__ = ["Reading"]

ROWS_MAX: Final = 500
"""Nobody is shown more at once."""


class Reading:
    """The books of one bank.

    Args:
        engine: Its database, over connections that nobody else waits for.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def account(self, number: str) -> Account | None:
        """One account."""
        async with AsyncSession(self._engine) as session:
            return await session.get(Account, number)

    async def accounts(self, after: str = "", limit: int = ROWS_MAX) -> Sequence[Account]:
        """Accounts in the order of their numbers, from behind one."""
        wanted = select(Account).where(Account.number > after).order_by(Account.number)
        async with AsyncSession(self._engine) as session:
            return (await session.scalars(wanted.limit(min(limit, ROWS_MAX)))).all()

    async def transfer(self, of: str) -> Transfer | None:
        """One transfer."""
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
        """What the journal says of a transfer."""
        wanted = select(Entry).where(Entry.transfer == of).order_by(Entry.id)
        async with AsyncSession(self._engine) as session:
            return (await session.scalars(wanted)).all()

    async def states(self) -> dict[State, tuple[int, int]]:
        """How many transfers there are of each state, and what they move."""
        wanted = select(Transfer.state, func.count(), func.sum(Transfer.amount)).group_by(
            Transfer.state
        )
        async with AsyncSession(self._engine) as session:
            rows = (await session.execute(wanted)).all()
        return {State(state): (count, int(amount)) for state, count, amount in rows}

    async def well(self) -> None:
        """See that the database answers.

        Raises:
            DBAPIError: It does not.
        """
        async with AsyncSession(self._engine) as session:
            await session.execute(select(1))
