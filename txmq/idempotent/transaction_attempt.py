"""An attempt inside a database transaction that begins with the row that records it."""

from __future__ import annotations

from typing import Any, Self, TypeVar

from txmq.databases.adapter import DatabaseAdapter, DatabaseSession, SessionStatus
from txmq.databases.guarded_transaction import GuardRow, RowTransaction
from txmq.errors import UsageError
from txmq.idempotent.guard import Attempt, KeyState, Verdict

__all__ = ["NothingToDo", "TransactionAttempt"]

S = TypeVar("S")


class NothingToDo(Exception):
    """Raised by a witness instead of inserting its row: the work is done, or being done."""

    def __init__(self, found: KeyState) -> None:
        super().__init__(found.verdict.value)
        self.found = found


class TransactionAttempt(Attempt[S]):
    """An attempt whose work is done in the transaction of its witness.

    Args:
        adapter: The database.
        witness: Inserts its row first, or raises :class:`NothingToDo`.
    """

    def __init__(self, adapter: DatabaseAdapter[S], witness: GuardRow) -> None:
        super().__init__()
        self.is_blocking: bool = adapter.is_blocking
        self._adapter = adapter
        self._inner = RowTransaction(adapter, witness)

    @property
    def session(self) -> S:
        """The session for the work.

        Raises:
            UsageError: The caller gives no work.
        """
        if self.verdict is not Verdict.FIRST:
            raise UsageError(f"there is nothing to do: this key is {self.verdict.value}")
        return self._inner.db.session

    async def begin(self) -> Self:
        """See :meth:`Attempt.begin`."""
        try:
            await self._inner.begin()
        except NothingToDo as answer:
            self.found: KeyState = answer.found
        else:
            self.found = KeyState(Verdict.FIRST)
        return self

    async def end(self, error: BaseException | None) -> None:
        """See :meth:`Attempt.end`."""
        if self.verdict is not Verdict.FIRST:
            return
        if self.is_abandoned:
            error = error or _Abandoned()
        if error is None and self._is_open():
            try:
                await self.finish(self._inner.db)
            except BaseException as finish_error:
                await self._inner.end(finish_error)
                raise
        await self._inner.end(error)

    async def finish(self, db: DatabaseSession[Any]) -> None:
        """Run statements after the function's work and before the commit."""

    def _is_open(self) -> bool:
        # Otherwise skip them: the end raises a clearer error than these statements would.
        return self._inner.db.status() in {SessionStatus.OPEN, SessionStatus.UNSURE}


class _Abandoned(Exception):
    """The process counts as dead, so it does not commit."""
