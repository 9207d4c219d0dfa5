"""One local transaction: fenced first, committed last, and what may be told of it at any moment."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Generic, NoReturn, TypeVar

from txmq.errors import (
    CommittedBefore,
    OutcomeUnknown,
    RolledBackByCheck,
    TransactionBroken,
    TransactionExpired,
    UsageError,
)
from txmq.transaction.resources.door import Borrowed, Door, Standing, drive
from txmq.transaction.resources.failures import is_settled
from txmq.transaction.resources.fence import COMMITTED, Fence
from txmq.transaction.resources.steps import Claim, claim
from txmq.transaction.state import LocalTransactionState

__all__ = ["Local"]

S = TypeVar("S")

log = logging.getLogger(__name__)


class Local(Generic[S]):
    """``with`` or ``async with``: a session in a database transaction that begins with the fence.

    An exception inside rolls it back and comes out again. The transaction must be ended by nobody
    else. Whatever happens, :attr:`state` says what may be told of it:

    - ``ROLLBACK`` until the commit is asked for, and where it surely failed;
    - ``UNKNOWN`` while the commit is under way, and for ever if its answer never came;
    - ``COMMIT`` once the database has said so.
    """

    def __init__(self, fence: Fence, door: Door[S], ours: Claim) -> None:
        self._fence = fence
        self._door = door
        self._ours = ours
        self._borrowed: Borrowed[S] | None = None
        self.state = LocalTransactionState.ROLLBACK

    def __enter__(self) -> S:
        """Begin, and claim the transaction for its commit.

        Raises:
            RolledBackByCheck: It came too late.
            CommittedBefore: An earlier attempt has committed; ``state`` says so.
            TransactionExpired: It is older than what the fence remembers.
            FenceElsewhere: The session belongs to another database.
            UsageError: The source is not a blocking one.
            Exception: Whatever the source's library raises; nothing was done.
        """
        if not self._door.is_blocking:
            raise UsageError("this source's sessions are for `async with`")
        return drive(self._begin())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or roll back if an exception came.

        Raises:
            OutcomeUnknown: The database did not say what became of the commit, or the transaction
                had been ended inside.
            TransactionBroken: The database had given it up; nothing of it remains.
            Exception: Why the database refused the commit; nothing of it remains.
        """
        drive(self._end(problem))

    async def __aenter__(self) -> S:
        """See :meth:`__enter__`."""
        if self._door.is_blocking:
            raise UsageError("this source blocks: its sessions are for `with`, in a thread")
        return await self._begin()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """See :meth:`__exit__`."""
        await self._end(problem)

    async def _begin(self) -> S:
        if self._borrowed is not None:
            raise UsageError("one object is one local transaction; ask the resource for another")
        self._borrowed = await self._door.open()
        try:
            await self._claim(self._borrowed)
        except BaseException:
            await self._close(self._borrowed)
            raise
        return self._borrowed.session

    async def _claim(self, borrowed: Borrowed[S]) -> None:
        try:
            found = await claim(self._fence, self._door, borrowed, self._ours)
        except TransactionExpired:
            # Whether an earlier attempt committed is what has been forgotten.
            self.state = LocalTransactionState.UNKNOWN
            raise
        if found is None:
            return
        if found.owner != self._ours.owner:
            self.state = LocalTransactionState.UNKNOWN
            raise UsageError(f"transaction {self._ours.xid} belongs to group {found.owner!r}")
        if found.outcome == COMMITTED:
            self.state = LocalTransactionState.COMMIT
            raise CommittedBefore(f"transaction {self._ours.xid} has committed before")
        raise RolledBackByCheck(
            f"transaction {self._ours.xid} was rolled back by a check; it came too late"
        )

    async def _end(self, problem: BaseException | None) -> None:
        assert self._borrowed is not None, "begun"
        borrowed = self._borrowed
        try:
            if problem is None:
                await borrowed.flush()
                await self._see_that_it_stands(borrowed)
                await self._commit(borrowed)
            elif borrowed.standing() is Standing.ENDED:
                # What was ended inside may have been committed there.
                self.state = LocalTransactionState.UNKNOWN
        finally:
            await self._close(borrowed)

    async def _see_that_it_stands(self, borrowed: Borrowed[S]) -> None:
        standing = borrowed.standing()
        if standing is Standing.UNSURE:
            standing = await self._asked(borrowed)
        if standing is Standing.ENDED:
            self.state = LocalTransactionState.UNKNOWN
            raise OutcomeUnknown(
                f"local transaction {self._ours.xid} was ended inside; leave commit and rollback "
                "to txmq"
            )
        if standing is Standing.ABORTED:
            self._give_up(None)

    async def _asked(self, borrowed: Borrowed[S]) -> Standing:
        """MySQL gives a transaction up without a word, and begins another."""
        try:
            found = await borrowed.ask(self._fence.outcome, of_xid=self._ours.xid)
        except self._door.problems as problem:
            self._give_up(problem)
        return Standing.OPEN if found.rows else Standing.ABORTED

    def _give_up(self, problem: Exception | None) -> NoReturn:
        raise TransactionBroken(
            f"the database gave local transaction {self._ours.xid} up after an error that was not "
            "passed on"
        ) from problem

    async def _commit(self, borrowed: Borrowed[S]) -> None:
        # Also true if we are cancelled or killed in the middle.
        self.state = LocalTransactionState.UNKNOWN
        try:
            await borrowed.commit()
        except self._door.problems as problem:
            if is_settled(problem):
                self.state = LocalTransactionState.ROLLBACK
                raise
            raise OutcomeUnknown(
                f"the database did not say whether {self._ours.xid} is committed: {problem}"
            ) from problem
        self.state = LocalTransactionState.COMMIT

    async def _close(self, borrowed: Borrowed[S]) -> None:
        try:
            await borrowed.close()
        except self._door.problems as problem:
            # A connection that cannot even roll back is dead, and its transaction with it.
            log.warning("could not give a session back: %s", problem)
