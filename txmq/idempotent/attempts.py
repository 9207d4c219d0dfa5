"""An attempt in a database transaction that begins with a witness of what is done in it."""

from __future__ import annotations

from typing import Any, Self, TypeVar

from txmq.databases.door import Borrowed, Door, Standing
from txmq.databases.guarded_transaction import GuardRow, RowTransaction
from txmq.errors import UsageError
from txmq.idempotent.guard import Attempt
from txmq.idempotent.verdict import Found, Verdict

__all__ = ["Refused", "Within"]

S = TypeVar("S")


class Refused(Exception):
    """Raised by a witness that has no need to be there: there is nothing to do."""

    def __init__(self, found: Found) -> None:
        super().__init__(found.verdict.value)
        self.found = found


class Within(Attempt[S]):
    """One whose work is done in the transaction of its witness.

    Args:
        door: Leads to the database.
        witness: What is put in first; it raises :class:`Refused` where there is nothing to do.
    """

    def __init__(self, door: Door[S], witness: GuardRow) -> None:
        super().__init__()
        self._door = door
        self._witness = witness
        self._inner = RowTransaction(door, witness)

    @property
    def is_blocking(self) -> bool:
        """See :class:`txmq.databases.guarded_transaction.DualContext`."""
        return self._door.is_blocking

    @property
    def session(self) -> S:
        """Where the work is done.

        Raises:
            UsageError: There is nothing to do.
        """
        if self.verdict is not Verdict.FIRST:
            raise UsageError(f"there is nothing to do: this key is {self.verdict.value}")
        return self._inner.borrowed.session

    async def begin(self) -> Self:
        """See :meth:`Attempt.begin`."""
        try:
            await self._inner.begin()
        except Refused as refused:
            self.found = refused.found
        else:
            self.found = Found(Verdict.FIRST)
        return self

    async def end(self, problem: BaseException | None) -> None:
        """See :meth:`Attempt.end`."""
        if self.verdict is not Verdict.FIRST:
            return
        if self.is_abandoned:
            problem = problem or _Abandoned()
        if problem is None and self._stands():
            try:
                await self.finish(self._inner.borrowed)
            except BaseException as why:
                await self._inner.end(why)
                raise
        await self._inner.end(problem)

    async def finish(self, borrowed: Borrowed[Any]) -> None:
        """What is done after the function's work, before the commit."""

    def _stands(self) -> bool:
        # Otherwise the end has more to say than the next statement would.
        return self._inner.borrowed.standing() in {Standing.OPEN, Standing.UNSURE}


class _Abandoned(Exception):
    """Nobody is there to commit."""
