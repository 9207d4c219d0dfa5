"""An attempt that is a database transaction: its guard row records the key."""

from __future__ import annotations

from typing import Self, TypeVar

from sqlalchemy import text

from txmq.databases.adapter import DatabaseAdapter, DatabaseSession
from txmq.databases.canary import TRANSACTION
from txmq.databases.guarded_transaction import GuardedTransaction
from txmq.errors import UsageError
from txmq.idempotent.guard import Attempt, KeyState, Verdict

__all__ = ["NothingToDo", "TransactionAttempt"]

S = TypeVar("S")

_IS_OURS = text(f"SELECT 1 WHERE {TRANSACTION} = :transaction")
"""Returns a row if the transaction is still the same."""


class NothingToDo(Exception):
    """Raised instead of inserting the row: the work is done, or being done."""

    def __init__(self, found: KeyState) -> None:
        super().__init__(found.verdict.value)
        self.found = found


class TransactionAttempt(GuardedTransaction[S], Attempt[S]):
    """An attempt whose work is done in its own transaction.

    Inserting the guard row raises :class:`NothingToDo` if the key is not free.

    Args:
        adapter: The database.
    """

    def __init__(self, adapter: DatabaseAdapter[S]) -> None:
        GuardedTransaction.__init__(self, adapter)
        Attempt.__init__(self)
        self._transaction: int | None = None
        """PostgreSQL's id of the transaction that inserted the row."""

    @property
    def session(self) -> S:
        """The session for the work.

        Raises:
            UsageError: There is no work to do.
        """
        if self._db is None or self.verdict is not Verdict.FIRST:
            raise UsageError(f"there is nothing to do: this key is {self.verdict.value}")
        return self._db.session

    async def begin(self) -> Self:
        """See :meth:`Attempt.begin`."""
        try:
            await self.start()
        except NothingToDo as answer:
            self.found: KeyState = answer.found
        else:
            self.found = KeyState(Verdict.FIRST)
        return self

    async def end(self, error: BaseException | None) -> None:
        """See :meth:`Attempt.end`."""
        if self.verdict is Verdict.FIRST:
            if self.is_abandoned:
                error = error or _Abandoned()
            await self.finish(error)

    async def _is_row_ours(self, db: DatabaseSession[object]) -> bool:
        # Do not look for the row: after the function's own commit, it would look like ours.
        return bool((await db.execute(_IS_OURS, transaction=self._transaction)).rows)


class _Abandoned(Exception):
    """The process counts as dead, so it does not commit."""
