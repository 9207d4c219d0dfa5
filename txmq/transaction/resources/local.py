"""One local transaction: fenced first, committed last, and what may be told of it at any moment."""

from __future__ import annotations

import logging
from contextlib import suppress
from types import TracebackType
from typing import Generic, NoReturn, TypeVar

from txmq.databases import dialects
from txmq.databases.door import Borrowed, Door, Standing, drive
from txmq.databases.failures import is_settled, words
from txmq.errors import (
    CommittedBefore,
    OutcomeUnknown,
    ResourceError,
    RolledBackByCheck,
    TransactionBroken,
    TransactionExpired,
    UsageError,
)
from txmq.transaction.resources.fence import COMMITTED, Fence
from txmq.transaction.resources.steps import Claim, Row, claim, outcome
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
        self._hold = dialects.HOLDS.get(door.kind)
        self._is_held = False
        self._borrowed: Borrowed[S] | None = None
        self.state = LocalTransactionState.ROLLBACK
        self.may_be_in = False
        """Whether its row may be committed."""

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

    async def claim(self, door: Door[S]) -> None:
        """Nothing but the row: commit that the transaction is committed.

        Args:
            door: Leads to the same database.

        Raises:
            Exception: As for :meth:`__enter__` and :meth:`__exit__`.
        """
        self._door = door
        await self._begin()
        await self._end(None)

    async def see_undecided(self, door: Door[S] | None = None) -> None:
        """See that nobody has decided it so far.

        Args:
            door: Leads to the same database.

        Raises:
            RolledBackByCheck: A check has.
            CommittedBefore: An earlier attempt has committed; ``state`` says so.
            Exception: Whatever the source's library raises.
        """
        known = await outcome(self._fence, door or self._door, self._ours.xid)
        if known is not None:
            self._refuse(Row(known, self._ours.owner))

    def flush(self) -> None:
        """Write what the session has kept back so far; for ``with``.

        Raises:
            Exception: What the database says to it.
        """
        drive(self.aflush())

    async def aflush(self) -> None:
        """See :meth:`flush`; for ``async with``."""
        assert self._borrowed is not None, "begun"
        await self._borrowed.flush()

    async def _begin(self) -> S:
        if self._borrowed is not None:
            raise UsageError("one object is one local transaction; ask the resource for another")
        self._borrowed = await self._door.open()
        try:
            await self._insert(self._borrowed)
        except BaseException:
            await self._close(self._borrowed)
            raise
        return self._borrowed.session

    async def _insert(self, borrowed: Borrowed[S]) -> None:
        try:
            found = await claim(self._fence, self._door, borrowed, self._ours)
        except TransactionExpired:
            # Whether an earlier attempt committed is what has been forgotten.
            self.state = LocalTransactionState.UNKNOWN
            raise
        if found is not None:
            self._refuse(found)
        if self._hold is not None and borrowed.standing() is Standing.UNSURE:
            await borrowed.ask(self._hold[0])
            self._is_held = True
        borrowed.know()

    def _refuse(self, found: Row) -> NoReturn:
        if found.owner not in ("", self._ours.owner):
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
            try:
                if problem is None:
                    await borrowed.flush()
            finally:
                standing, why = await self._standing(borrowed)
                if standing is Standing.ENDED:
                    # What was ended inside may have been committed there.
                    self.state = LocalTransactionState.UNKNOWN
            if problem is None:
                self._see_that_it_stands(standing, why)
                await self._commit(borrowed)
        finally:
            await self._close(borrowed)
            await self._see_that_it_is_gone()

    async def _see_that_it_is_gone(self) -> None:
        """A driver that knows how its connection stands does not know whether it is still the same
        transaction: one that was committed by its own words, and followed by another, looks alike.
        """
        if self.state is not LocalTransactionState.ROLLBACK or self._is_held:
            return
        with suppress(ResourceError, *self._door.problems):
            if await outcome(self._fence, self._door, self._ours.xid) == COMMITTED:
                self.state = LocalTransactionState.UNKNOWN

    def _see_that_it_stands(self, standing: Standing, why: Exception | None) -> None:
        if standing is Standing.ENDED:
            raise OutcomeUnknown(
                f"local transaction {self._ours.xid} was ended inside; leave commit and rollback "
                "to txmq"
            )
        if standing is Standing.ABORTED:
            raise TransactionBroken(
                f"the database gave local transaction {self._ours.xid} up after an error that was "
                "not passed on"
            ) from why

    async def _standing(self, borrowed: Borrowed[S]) -> tuple[Standing, Exception | None]:
        """How it stands, and what the database said instead if it does not."""
        standing = borrowed.standing()
        if standing is not Standing.UNSURE:
            return standing, None
        why: Exception | None = None
        if self._hold is not None:
            try:
                await borrowed.ask(self._hold[1])
            except self._door.problems as problem:
                why = problem
            else:
                return Standing.OPEN, None
        if self._door.kind == "postgresql":
            return await self._is_ours(borrowed)
        # It is another transaction by now, or a broken one: what has become of ours?
        try:
            found = await borrowed.ask(self._fence.outcome, of_xid=self._ours.xid)
        except self._door.problems as problem:
            return Standing.ABORTED, why or problem
        if [row[0] for row in found.rows] != [COMMITTED]:
            return Standing.ABORTED, why
        return Standing.ENDED, why

    async def _is_ours(self, borrowed: Borrowed[S]) -> tuple[Standing, Exception | None]:
        try:
            found = await borrowed.ask(self._fence.ours, of_xid=self._ours.xid)
        except self._door.problems as problem:
            return Standing.ABORTED, problem
        return (Standing.OPEN if found.rows else Standing.ENDED), None

    async def _commit(self, borrowed: Borrowed[S]) -> None:
        # Also true if we are cancelled or killed in the middle.
        self.state, self.may_be_in = LocalTransactionState.UNKNOWN, True
        try:
            await borrowed.commit(is_last=True)
        except self._door.problems as problem:
            if is_settled(problem):
                self.state, self.may_be_in = LocalTransactionState.ROLLBACK, False
                raise
            raise OutcomeUnknown(
                f"the database did not say whether {self._ours.xid} is committed: {words(problem)}"
            ) from problem
        self.state = LocalTransactionState.COMMIT

    async def _close(self, borrowed: Borrowed[S]) -> None:
        try:
            await borrowed.close()
        except self._door.problems as problem:
            # A connection that cannot even roll back is dead, and its transaction with it.
            log.warning("could not give a session back: %s", problem)
