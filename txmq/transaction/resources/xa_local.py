"""One transaction over several databases: its first phase, up to the decision.

Every branch prepares, and only when all of them have is the decision claimed, by a row of the fence
in the first database. Until that row is committed, no branch commits; once it is, none rolls back.
A check claims the contrary by the same key, so one of them wins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from txmq.databases.door import Borrowed, Door, Kept, Standing, drive
from txmq.databases.guarded_transaction import DualContext
from txmq.errors import DatabaseFailed, OutcomeUnknown, TransactionBroken, UsageError
from txmq.transaction.resources import two_phase
from txmq.transaction.resources.local import FencedTransaction
from txmq.transaction.state import LocalTransactionState
from txmq.transaction.story import note

__all__ = ["Branch", "XALocal"]

S = TypeVar("S")

log = logging.getLogger(__name__)


class Branch(Generic[S]):
    """One database's part of one transaction.

    Its connection is kept from the beginning to the end. Sessions that wait for the locks of the
    prepared branch may hold all other connections of the pool, and would wait for ever.
    """

    def __init__(self, name: str, door: Door[S], gid: str) -> None:
        self.name = name
        self.door = door
        self.gid = gid
        self.borrowed: Borrowed[S] | None = None
        self.may_be_prepared = False

    async def open(self) -> S:
        """Begin; the session."""
        self.borrowed = await self.door.open()
        # Drivers begin with the first statement; what has not begun would look as if it had ended.
        await self.borrowed.ask("SHOW transaction_isolation")
        return self.borrowed.session

    async def vote(self) -> None:
        """Prepare it."""
        assert self.borrowed is not None, "begun"
        self.may_be_prepared = True
        try:
            await two_phase.vote(self.borrowed, self.gid)
        except OutcomeUnknown:
            self.may_be_prepared = False  # Not by us.
            raise

    @property
    def kept(self) -> Door[S]:
        """Leads to the same database, over its own connection."""
        assert self.borrowed is not None, "begun"
        return Kept(self.door, self.borrowed)

    async def finish(self, *, commits: bool) -> bool:
        """End what is prepared over its own connection, and give that back; false where there was
        nothing to end any more.

        Raises:
            Exception: Whatever the door's library raises; it may still wait.
        """
        try:
            return await two_phase.finish(self.kept, self.gid, commits=commits)
        finally:
            await self.close()

    async def undo(self) -> Exception | None:
        """Roll back what may be prepared; what stands in the way of another attempt."""
        if not self.may_be_prepared:
            await self.close()
            return None
        problems = two_phase.problems_of(self.door)
        try:
            await self._look_and_undo(self.kept)
        except problems as error:
            lost = error
            log.debug("%s is undone over another connection: %s", self.gid, error)
        else:
            return None
        finally:
            await self.close()
        try:
            await self._look_and_undo(self.door)
        except problems as error:
            log.warning("%s is left prepared for now: %s", self.gid, error)
            return error
        # A statement on the first connection may still arrive, and would hit the next attempt.
        return lost

    async def _look_and_undo(self, door: Door[S]) -> None:
        # A server's log need not tell of what was never prepared.
        if await two_phase.is_prepared(door, self.gid):
            await two_phase.finish(door, self.gid, commits=False)

    async def close(self) -> None:
        """Give the session back; what is not prepared is rolled back."""
        borrowed, self.borrowed = self.borrowed, None
        if borrowed is None:
            return
        try:
            await borrowed.close()
        except two_phase.problems_of(self.door) as error:
            # A connection that cannot even roll back is dead, and its transaction with it.
            log.warning("could not give a session of %s back: %s", self.name, error)


class XALocal(DualContext[Mapping[str, S]], Generic[S]):
    """``with`` or ``async with``: a session of each database, by its name.

    What :attr:`state` says is as for one database: ``ROLLBACK`` until the decision is claimed,
    ``UNKNOWN`` while it is, ``COMMIT`` once it is. What is prepared then waits for the second
    phase.

    Args:
        xid: The transaction's id.
        branches: Its parts, in their order.
        claim: The row that decides.
        keep: Is given the branches of what is decided, to end them over their own connections;
            says whether it takes them.
    """

    def __init__(
        self,
        xid: str,
        branches: Mapping[str, Branch[S]],
        claim: FencedTransaction[Any],
        keep: Callable[[str, Mapping[str, Branch[S]]], bool],
    ) -> None:
        self._xid = xid
        self._branches = branches
        self._claim = claim
        self._keep = keep
        self._is_begun = False
        self.state = LocalTransactionState.ROLLBACK

    @property
    def is_blocking(self) -> bool:
        """See :attr:`DualContext.is_blocking`."""
        return all(branch.door.is_blocking for branch in self._branches.values())

    def flush(self) -> None:
        """Write what the sessions have kept back so far; for ``with``.

        Raises:
            Exception: What a database says to it.
        """
        drive(self.aflush())

    async def aflush(self) -> None:
        """See :meth:`flush`; for ``async with``."""
        for branch in self._branches.values():
            assert branch.borrowed is not None, "begun"
            await branch.borrowed.flush()

    async def begin(self) -> Mapping[str, S]:
        """Begin in every database.

        Raises:
            Exception: Whatever their libraries raise; nothing was done.
        """
        if self._is_begun:
            raise UsageError("one object is one local transaction; ask the resource for another")
        self._is_begun = True
        try:
            # Nothing may be prepared under a name for which a commit is decided already.
            await self._claim.check_undecided()
            sessions = {name: await branch.open() for name, branch in self._branches.items()}
        except BaseException:
            self.state = self._claim.state
            await self._close()
            raise
        return MappingProxyType(sessions)

    async def end(self, problem: BaseException | None) -> None:
        """Prepare everywhere and claim the decision, or roll back if an exception came.

        Raises:
            RolledBackByCheck: A check was faster; everything is rolled back.
            OutcomeUnknown: The first database did not say whether it has taken the decision; or
                another process runs this transaction at the same time.
            TransactionBroken: A database had given its part up; nothing remains of any.
            TwoPhaseUnavailable: A database could not prepare one more; likewise.
            Exception: Why a database refused; likewise.
        """
        try:
            self._check_none_ended(problem)
            if problem is None:
                await self._prepare()
                await self._decide()
                if self._keep(self._xid, self._branches):
                    self._branches = {}
        except BaseException as why:
            if not self._claim.may_be_committed:
                await self._undo(why)
            raise
        finally:
            await self._close()

    async def _undo(self, why: BaseException) -> None:
        """Undo this attempt."""
        branches = self._branches.values()
        left = [branch.name for branch in branches if await branch.undo() is not None]
        if left and isinstance(why, Exception):
            # Another attempt could wait for the locks of this one, or meet its late rollback.
            raise DatabaseFailed(
                f"{self._xid} is rolled back, and may be left prepared for now in "
                f"{', '.join(left)}: {why}"
            ) from why

    def _check_none_ended(self, problem: BaseException | None) -> None:
        for branch in self._branches.values():
            if branch.borrowed is not None and branch.borrowed.standing() is Standing.ENDED:
                # What was committed there stays, and a person must look.
                text = (
                    f"the function has ended its transaction in {branch.name} itself, and all "
                    f"others of {self._xid} are rolled back; leave commit and rollback to txmq"
                )
                log.error("%s", text)
                if problem is None:
                    raise UsageError(text)

    async def _prepare(self) -> None:
        await self.aflush()
        for branch in self._branches.values():
            if branch.borrowed is None or branch.borrowed.standing() is not Standing.OPEN:
                raise TransactionBroken(
                    f"{branch.name} gave its part of {self._xid} up after an error that was not "
                    "passed on"
                )
        for branch in self._branches.values():
            await self._vote(branch)
            note(self._xid, "branch %s is prepared", branch.name)

    async def _vote(self, branch: Branch[S]) -> None:
        try:
            await branch.vote()
        except OutcomeUnknown:
            self.state = LocalTransactionState.UNKNOWN
            raise
        except DatabaseFailed:
            # A check may have been faster, and have rolled it back already.
            await self._claim.check_undecided(self._first.kept)
            raise

    @property
    def _first(self) -> Branch[S]:
        return next(iter(self._branches.values()))

    async def _decide(self) -> None:
        note(self._xid, "all branches are prepared, and the decision is claimed")
        try:
            await self._claim.claim(self._first.kept)
        finally:
            self.state = self._claim.state
        note(self._xid, "the decision is claimed: commit")

    async def _close(self) -> None:
        # All of them, also where this is cancelled at one.
        async with AsyncExitStack() as stack:
            for branch in self._branches.values():
                stack.push_async_callback(branch.close)
