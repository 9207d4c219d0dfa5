"""One local transaction: it claims its fence row first and commits last."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from txmq.databases.adapter import DatabaseAdapter, DatabaseSession
from txmq.databases.failures import Failure, failure
from txmq.databases.guarded_transaction import CommitState, DualContext, GuardedTransaction, drive
from txmq.errors import (
    CommittedBefore,
    DatabaseFailed,
    FenceElsewhere,
    ResourceError,
    RolledBackByCheck,
    TransactionExpired,
    UsageError,
)
from txmq.transaction.resources.fence import COMMITTED, Fence
from txmq.transaction.state import LocalTransactionState

__all__ = ["Claim", "FenceRow", "SQLLocalTransaction", "claim", "no_row", "outcome"]

S = TypeVar("S")

_STATES: Final = MappingProxyType(
    {
        CommitState.NOTHING: LocalTransactionState.ROLLBACK,
        CommitState.UNKNOWN: LocalTransactionState.UNKNOWN,
        CommitState.COMMITTED: LocalTransactionState.COMMIT,
    }
)


class Claim(NamedTuple):
    """A fence row to insert: a transaction's outcome, and who inserts it."""

    xid: str
    owner: str
    """The producer group."""
    outcome: int
    born_ms: int
    """When the transaction began, by its producer's clock."""
    identity: str
    """The identity of the fence that it belongs to."""


class FenceRow(NamedTuple):
    """An existing row of the fence."""

    outcome: int
    owner: str


async def claim(
    fence: Fence, adapter: DatabaseAdapter[object], db: DatabaseSession[object], ours: Claim
) -> FenceRow | None:
    """Insert a row; returns ``None`` on success, otherwise the existing row.

    Raises:
        FenceElsewhere: The session sees another fence.
        TransactionExpired: The transaction is so old that its row may have been removed.
        Exception: Any error of the session's library; the row is not inserted.
    """
    values = {"of_xid": ours.xid, "as_outcome": ours.outcome, "by_owner": ours.owner}
    try:
        put = await db.execute(
            fence.claims[adapter.kind], **values, known=ours.identity, born_ms=ours.born_ms
        )
    except adapter.problems as error:
        if failure(error) is not Failure.DUPLICATE:
            raise
    else:
        if put.changed == 1:
            return None
    # A plain SELECT in MySQL reads an old snapshot; a locking read sees the current row.
    look = fence.outcome_now if adapter.kind == "mysql" else fence.outcome
    found = (await db.execute(look, of_xid=ours.xid)).rows
    if found:
        return FenceRow(*found[0])
    raise await no_row(fence, db, ours)


async def no_row(fence: Fence, db: DatabaseSession[object], ours: Claim) -> ResourceError:
    """Why the fence neither accepted nor shows a row."""
    marks = (await db.execute(fence.about)).rows
    if [mark[1] for mark in marks] != [ours.identity]:
        return FenceElsewhere(
            f"this session's {fence.name} is not the one that was verified at start: it is in "
            "another database or schema, or was created again"
        )
    if marks[0][2] > ours.born_ms:
        return TransactionExpired(
            f"transaction {ours.xid} is older than the rows that {fence.name} still has"
        )
    return DatabaseFailed(f"{fence.name} neither accepted nor shows transaction {ours.xid}")


async def outcome(fence: Fence, adapter: DatabaseAdapter[object], xid: str) -> int | None:
    """The fence's current outcome of a transaction, if any.

    Raises:
        Exception: Any error of the adapter's library.
    """
    db = await adapter.open()
    try:
        found = (await db.execute(fence.outcome, of_xid=xid)).rows
        return int(found[0][0]) if found else None
    finally:
        await db.close()


class SQLLocalTransaction(GuardedTransaction[S], DualContext[S]):
    """A local transaction, for ``with`` or ``async with``: a session whose first write is the fence
    row.

    An exception inside rolls it back and is raised again. Only this class may end the transaction.
    :attr:`state` is always valid:

    - ``ROLLBACK`` until the commit begins, and if it certainly failed;
    - ``UNKNOWN`` while the commit is in progress, and from then on if its answer is lost;
    - ``COMMIT`` once the database has confirmed it.

    :meth:`begin` raises:

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
        """The outcome already in the fence, which this attempt cannot change."""

    # Not `async def`: every await inside would pass through one coroutine more.

    def begin(self) -> Coroutine[Any, Any, S]:
        """Open a session and claim the fence row, as the class says."""
        return self.start()

    def end(self, problem: BaseException | None) -> Coroutine[Any, Any, None]:
        """Commit, or roll back because of an exception; see :meth:`GuardedTransaction.finish`."""
        return self.finish(problem)

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
            # An earlier attempt may have committed; the fence no longer has its row.
            self._final = LocalTransactionState.UNKNOWN
            raise
        if found is not None:
            self._refuse(found)

    async def _is_row_ours(self, db: DatabaseSession[object]) -> bool:
        return bool((await db.execute(self._fence.ours, of_xid=self._ours.xid)).rows)

    async def _is_row_committed(self, db: DatabaseSession[object]) -> bool:
        found = await db.execute(self._fence.outcome, of_xid=self._ours.xid)
        return [row[0] for row in found.rows] == [COMMITTED]

    async def _after_rollback(self) -> None:
        """Check whether the row is committed after all.

        The application may have committed with its own statement and begun another transaction,
        which the driver does not notice.
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
            raise CommittedBefore(f"transaction {self._ours.xid} has already committed")
        raise RolledBackByCheck(
            f"transaction {self._ours.xid} came too late: a check has rolled it back"
        )
