"""One local transaction: it claims its fence row first and commits last."""

from __future__ import annotations

from contextlib import suppress
from types import MappingProxyType
from typing import Final, NoReturn, TypeVar

from txmq.databases.adapter import DatabaseAdapter, DatabaseSession
from txmq.databases.guarded_transaction import CommitState, GuardedTransaction, drive
from txmq.errors import (
    CommittedBefore,
    ResourceError,
    RolledBackByCheck,
    TransactionExpired,
    UsageError,
)
from txmq.transaction.resources.fence import COMMITTED, Fence
from txmq.transaction.resources.steps import Claim, FenceRow, claim, outcome
from txmq.transaction.state import LocalTransactionState

__all__ = ["FencedTransaction"]

S = TypeVar("S")

_STATES: Final = MappingProxyType(
    {
        CommitState.NOTHING: LocalTransactionState.ROLLBACK,
        CommitState.UNKNOWN: LocalTransactionState.UNKNOWN,
        CommitState.COMMITTED: LocalTransactionState.COMMIT,
    }
)


class FencedTransaction(GuardedTransaction[S]):
    """A local transaction, for ``with`` or ``async with``: a session whose first write is the fence
    row.

    An exception inside rolls it back and is raised again. Only this class may end the transaction.
    :attr:`state` is always valid:

    - ``ROLLBACK`` until the commit begins, and if it certainly failed;
    - ``UNKNOWN`` while the commit is in progress, and for ever if its answer was lost;
    - ``COMMIT`` once the database has confirmed it.

    Begin raises:

    - :class:`~txmq.errors.RolledBackByCheck` if a check decided first;
    - :class:`~txmq.errors.CommittedBefore` if an earlier attempt has committed;
    - :class:`~txmq.errors.TransactionExpired` if it is older than the fence's oldest row;
    - :class:`~txmq.errors.FenceElsewhere` if the session belongs to another database.
    """

    def __init__(self, fence: Fence, adapter: DatabaseAdapter[S], ours: Claim) -> None:
        super().__init__(adapter)
        self._fence = fence
        self._ours = ours
        self._final: LocalTransactionState | None = None
        """What the fence says for good, whatever happens to this attempt."""

    @property
    def state(self) -> LocalTransactionState:
        """The current state."""
        return self._final or _STATES[self.commit_state]

    @property
    def may_be_committed(self) -> bool:
        """Whether its row may already be committed."""
        return self.commit_state is not CommitState.NOTHING

    async def claim(self, adapter: DatabaseAdapter[S]) -> None:
        """Commit only the fence row, which decides that the transaction commits.

        Args:
            adapter: Opens sessions of the same database.

        Raises:
            Exception: As for :meth:`begin` and :meth:`end`.
        """
        self._adapter = adapter
        await self.begin()
        await self.end(None)

    async def check_undecided(self, adapter: DatabaseAdapter[S] | None = None) -> None:
        """Raise if the transaction is already decided.

        Args:
            adapter: Opens sessions of the same database.

        Raises:
            RolledBackByCheck: A check has rolled it back.
            CommittedBefore: An earlier attempt has committed; ``state`` is then ``COMMIT``.
            Exception: Any exception of the source's library.
        """
        known = await outcome(self._fence, adapter or self._adapter, self._ours.xid)
        if known is not None:
            self._refuse(FenceRow(known, self._ours.owner))

    def flush(self) -> None:
        """Flush the session's pending writes; for ``with``.

        Raises:
            Exception: Any error of the database.
        """
        drive(self.aflush())

    async def aflush(self) -> None:
        """See :meth:`flush`; for ``async with``."""
        await self.db.flush()

    # The guard row is the fence row

    @property
    def _name(self) -> str:
        return f"local transaction {self._ours.xid}"

    async def _insert_row(self, db: DatabaseSession[object]) -> None:
        try:
            found = await claim(self._fence, self._adapter, db, self._ours)
        except TransactionExpired:
            # The fence no longer has the row of an earlier attempt.
            self._final = LocalTransactionState.UNKNOWN
            raise
        if found is not None:
            self._refuse(found)

    async def _is_row_ours(self, db: DatabaseSession[object]) -> bool:
        return bool((await db.ask(self._fence.ours, of_xid=self._ours.xid)).rows)

    async def _is_row_committed(self, db: DatabaseSession[object]) -> bool:
        found = await db.ask(self._fence.outcome, of_xid=self._ours.xid)
        return [row[0] for row in found.rows] == [COMMITTED]

    async def _after_rollback(self) -> None:
        """Check whether the row is committed anyway.

        A driver knows the status of its connection, but not whether the transaction is still the
        same. The application may have committed it with its own statement and begun another.
        """
        if self._final is not None:
            return
        with suppress(ResourceError, *self._adapter.problems):
            if await outcome(self._fence, self._adapter, self._ours.xid) == COMMITTED:
                self._final = LocalTransactionState.UNKNOWN

    def _refuse(self, found: FenceRow) -> NoReturn:
        if found.owner not in ("", self._ours.owner):
            self._final = LocalTransactionState.UNKNOWN
            raise UsageError(f"transaction {self._ours.xid} belongs to group {found.owner!r}")
        if found.outcome == COMMITTED:
            self._final = LocalTransactionState.COMMIT
            raise CommittedBefore(f"transaction {self._ours.xid} has committed before")
        raise RolledBackByCheck(
            f"transaction {self._ours.xid} was rolled back by a check; it came too late"
        )
