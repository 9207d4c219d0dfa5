"""One local transaction: fenced first, committed last, and what may be told of it at any moment."""

from __future__ import annotations

from contextlib import suppress
from types import MappingProxyType
from typing import Final, Generic, NoReturn, TypeVar

from txmq.databases.block import Block
from txmq.databases.door import Borrowed, Door, drive
from txmq.databases.witnessed import Fate, Witnessed
from txmq.errors import (
    CommittedBefore,
    ResourceError,
    RolledBackByCheck,
    TransactionExpired,
    UsageError,
)
from txmq.transaction.resources.fence import COMMITTED, Fence
from txmq.transaction.resources.steps import Claim, Row, claim, outcome
from txmq.transaction.state import LocalTransactionState

__all__ = ["Local"]

S = TypeVar("S")

_TOLD: Final = MappingProxyType(
    {
        Fate.NOTHING: LocalTransactionState.ROLLBACK,
        Fate.UNKNOWN: LocalTransactionState.UNKNOWN,
        Fate.COMMITTED: LocalTransactionState.COMMIT,
    }
)


class Local(Block[S], Generic[S]):
    """``with`` or ``async with``: a session in a database transaction that begins with the fence.

    An exception inside rolls it back and comes out again. The transaction must be ended by nobody
    else. Whatever happens, :attr:`state` says what may be told of it:

    - ``ROLLBACK`` until the commit is asked for, and where it surely failed;
    - ``UNKNOWN`` while the commit is under way, and for ever if its answer never came;
    - ``COMMIT`` once the database has said so.
    """

    def __init__(self, fence: Fence, door: Door[S], ours: Claim) -> None:
        self._door = door
        self._row = _FenceRow(fence, door, ours)
        self._inner = Witnessed(door, self._row)

    @property
    def is_blocking(self) -> bool:
        """See :attr:`Block.is_blocking`."""
        return self._door.is_blocking

    @property
    def state(self) -> LocalTransactionState:
        """What may be told of it now."""
        return self._row.told or _TOLD[self._inner.fate]

    @property
    def may_be_in(self) -> bool:
        """Whether its row may be committed."""
        return self._inner.fate is not Fate.NOTHING

    async def begin(self) -> S:
        """Begin, and claim the transaction for its commit.

        Raises:
            RolledBackByCheck: It came too late.
            CommittedBefore: An earlier attempt has committed; ``state`` says so.
            TransactionExpired: It is older than what the fence remembers.
            FenceElsewhere: The session belongs to another database.
            Exception: Whatever the source's library raises; nothing was done.
        """
        return await self._inner.begin()

    async def end(self, problem: BaseException | None) -> None:
        """Commit, or roll back if an exception came.

        Raises:
            OutcomeUnknown: The database did not say what became of the commit, or the transaction
                had been ended inside.
            TransactionBroken: The database had given it up; nothing of it remains.
            Exception: Why the database refused the commit; nothing of it remains.
        """
        try:
            await self._inner.end(problem)
        finally:
            if self._inner.fate is Fate.NOTHING and not self._inner.is_held:
                await self._row.see_that_it_is_gone()

    async def claim(self, door: Door[S]) -> None:
        """Nothing but the row: commit that the transaction is committed.

        Args:
            door: Leads to the same database.

        Raises:
            Exception: As for :meth:`begin` and :meth:`end`.
        """
        self._row.door = door
        self._inner = Witnessed(door, self._row)
        await self.begin()
        await self.end(None)

    async def see_undecided(self, door: Door[S] | None = None) -> None:
        """See that nobody has decided it so far.

        Args:
            door: Leads to the same database.

        Raises:
            RolledBackByCheck: A check has.
            CommittedBefore: An earlier attempt has committed; ``state`` says so.
            Exception: Whatever the source's library raises.
        """
        await self._row.see_undecided(door or self._door)

    def flush(self) -> None:
        """Write what the session has kept back so far; for ``with``.

        Raises:
            Exception: What the database says to it.
        """
        drive(self.aflush())

    async def aflush(self) -> None:
        """See :meth:`flush`; for ``async with``."""
        await self._inner.borrowed.flush()


class _FenceRow:
    """What the fence says of the transaction."""

    def __init__(self, fence: Fence, door: Door[object], ours: Claim) -> None:
        self._fence = fence
        self._ours = ours
        self.door = door
        self.told: LocalTransactionState | None = None
        """What it says for good, whatever becomes of this attempt."""

    @property
    def of(self) -> str:
        return f"local transaction {self._ours.xid}"

    async def put(self, borrowed: Borrowed[object]) -> None:
        try:
            found = await claim(self._fence, self.door, borrowed, self._ours)
        except TransactionExpired:
            # Whether an earlier attempt committed is what has been forgotten.
            self.told = LocalTransactionState.UNKNOWN
            raise
        if found is not None:
            self._refuse(found)

    async def is_ours(self, borrowed: Borrowed[object]) -> bool:
        return bool((await borrowed.ask(self._fence.ours, of_xid=self._ours.xid)).rows)

    async def is_committed(self, borrowed: Borrowed[object]) -> bool:
        found = await borrowed.ask(self._fence.outcome, of_xid=self._ours.xid)
        return [row[0] for row in found.rows] == [COMMITTED]

    async def see_undecided(self, door: Door[object]) -> None:
        known = await outcome(self._fence, door, self._ours.xid)
        if known is not None:
            self._refuse(Row(known, self._ours.owner))

    async def see_that_it_is_gone(self) -> None:
        """A driver that knows how its connection stands does not know whether it is still the same
        transaction: one that was committed by its own words, and followed by another, looks alike.
        """
        if self.told is not None:
            return
        with suppress(ResourceError, *self.door.problems):
            if await outcome(self._fence, self.door, self._ours.xid) == COMMITTED:
                self.told = LocalTransactionState.UNKNOWN

    def _refuse(self, found: Row) -> NoReturn:
        if found.owner not in ("", self._ours.owner):
            self.told = LocalTransactionState.UNKNOWN
            raise UsageError(f"transaction {self._ours.xid} belongs to group {found.owner!r}")
        if found.outcome == COMMITTED:
            self.told = LocalTransactionState.COMMIT
            raise CommittedBefore(f"transaction {self._ours.xid} has committed before")
        raise RolledBackByCheck(
            f"transaction {self._ours.xid} was rolled back by a check; it came too late"
        )
