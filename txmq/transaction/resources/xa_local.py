"""The first phase of a transaction over several databases, up to the decision.

Every branch prepares. Then a row of the fence in the first database claims the decision. Before
that row is committed, no branch commits; afterwards, no branch rolls back. A check claims the
rollback under the same key, so exactly one of them wins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from txmq.databases.adapter import (
    DatabaseAdapter,
    DatabaseSession,
    OneConnectionAdapter,
    SessionStatus,
)
from txmq.databases.guarded_transaction import DualContext, drive
from txmq.errors import DatabaseFailed, OutcomeUnknown, TransactionBroken, UsageError
from txmq.transaction.resources import two_phase
from txmq.transaction.resources.local import SQLLocalTransaction
from txmq.transaction.state import LocalTransactionState
from txmq.transaction.story import note

__all__ = ["Branch", "XALocalTransaction"]

S = TypeVar("S")

log = logging.getLogger(__name__)


class Branch(Generic[S]):
    """One database's part of a transaction.

    It keeps its connection to the end. Otherwise, sessions that wait for the branch's locks could
    take all connections of the pool, and wait forever.
    """

    def __init__(self, name: str, adapter: DatabaseAdapter[S], gid: str) -> None:
        self.name = name
        self.adapter = adapter
        self.gid = gid
        self.db: DatabaseSession[S] | None = None
        self.may_be_prepared: bool = False

    async def open(self) -> S:
        """Begin, and return the session."""
        self.db = await self.adapter.open()
        # Drivers begin with the first statement; a transaction that has not begun looks ended.
        await self.db.execute("SHOW transaction_isolation")
        return self.db.session

    async def vote(self) -> None:
        """Prepare the branch."""
        assert self.db is not None, "begun"
        self.may_be_prepared = True
        try:
            await two_phase.vote(self.db, self.gid)
        except OutcomeUnknown:
            self.may_be_prepared = False  # Another process has prepared it.
            raise

    @property
    def kept(self) -> DatabaseAdapter[S]:
        """An adapter for the same database, over the branch's connection."""
        assert self.db is not None, "begun"
        return OneConnectionAdapter(self.adapter, self.db)

    async def finish(self, *, commits: bool) -> bool:
        """End the prepared branch over its own connection, and give the connection back; returns
        false if the branch has already ended.

        Raises:
            Exception: Any error of the adapter's library; the branch may still be prepared.
        """
        try:
            return await two_phase.finish(self.kept, self.gid, commits=commits)
        finally:
            await self.close()

    async def undo(self) -> Exception | None:
        """Roll back the branch, which may be prepared; returns the error that rules out another
        attempt, if any.
        """
        if not self.may_be_prepared:
            await self.close()
            return None
        problems = two_phase.problems_of(self.adapter)
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
            await self._look_and_undo(self.adapter)
        except problems as error:
            log.warning("%s is left prepared for now: %s", self.gid, error)
            return error
        # A late statement on the first connection could still arrive and affect the next attempt.
        return lost

    async def _look_and_undo(self, adapter: DatabaseAdapter[S]) -> None:
        # Avoid an error in the server's log for a branch that was never prepared.
        if await two_phase.is_prepared(adapter, self.gid):
            await two_phase.finish(adapter, self.gid, commits=False)

    async def close(self) -> None:
        """Return the session; unprepared work is rolled back."""
        db, self.db = self.db, None
        if db is None:
            return
        try:
            await db.close()
        except two_phase.problems_of(self.adapter) as error:
            # A connection that cannot even roll back is dead, and its transaction with it.
            log.warning("could not return a session of %s: %s", self.name, error)


class XALocalTransaction(DualContext[Mapping[str, S]], Generic[S]):
    """A local transaction, for ``with`` or ``async with``: one session of each database, by name.

    As for one database, :attr:`state` is ``ROLLBACK`` before the decision is claimed, ``UNKNOWN``
    during the claim, ``COMMIT`` after it. The prepared branches then wait for the second phase.

    Args:
        xid: The transaction's id.
        branches: Its branches, in order.
        claim: The deciding row of the fence.
        keep: Takes over the branches of a decided transaction, to end them over their own
            connections; returns whether it did.
    """

    def __init__(
        self,
        xid: str,
        branches: Mapping[str, Branch[S]],
        claim: SQLLocalTransaction[Any],
        keep: Callable[[str, Mapping[str, Branch[S]]], bool],
    ) -> None:
        self._xid = xid
        self._branches = branches
        self._claim = claim
        self._keep = keep
        self._is_begun = False
        self.is_blocking: bool = all(branch.adapter.is_blocking for branch in branches.values())
        self.state: LocalTransactionState = LocalTransactionState.ROLLBACK

    def flush(self) -> None:
        """Flush the sessions' pending writes; for ``with``.

        Raises:
            Exception: Any error of a database.
        """
        drive(self.aflush())

    async def aflush(self) -> None:
        """See :meth:`flush`; for ``async with``."""
        for branch in self._branches.values():
            assert branch.db is not None, "begun"
            await branch.db.flush()

    async def begin(self) -> Mapping[str, S]:
        """Begin in every database.

        Raises:
            Exception: Any error of their libraries; no database has begun.
        """
        if self._is_begun:
            raise UsageError("one object is one local transaction; ask the resource for another")
        self._is_begun = True
        try:
            # Do not prepare a branch under a name whose commit is already decided.
            await self._claim.check_undecided()
            sessions = {name: await branch.open() for name, branch in self._branches.items()}
        except BaseException:
            self.state = self._claim.state
            await self._close()
            raise
        return MappingProxyType(sessions)

    async def end(self, problem: BaseException | None) -> None:
        """Prepare everywhere and claim the decision, or roll back after an exception.

        Raises:
            RolledBackByCheck: A check decided first; everything is rolled back.
            OutcomeUnknown: The first database did not confirm the decision, or another process runs
                this transaction concurrently.
            TransactionBroken: A database had rolled back its branch; all branches are rolled back.
            TwoPhaseUnavailable: A database has no free slot to prepare; all branches are rolled
                back.
            Exception: A database refused; all branches are rolled back.
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
        """Roll back all branches of this attempt."""
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
            if branch.db is not None and branch.db.status() is SessionStatus.ENDED:
                # The commit there may be final, so an operator must look at it.
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
            if branch.db is None or branch.db.status() is not SessionStatus.OPEN:
                raise TransactionBroken(
                    f"{branch.name} gave up its part of {self._xid} after an error that the "
                    "function did not raise"
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
            # A check may already have rolled it back.
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
        # Close all branches, even if this task is cancelled while it closes one.
        async with AsyncExitStack() as stack:
            for branch in self._branches.values():
                stack.push_async_callback(branch.close)
