"""A database transaction that begins with a row, by which it is known whether it was committed."""

from __future__ import annotations

import logging
from enum import Enum
from typing import Generic, Protocol, TypeVar

from txmq.databases import dialects
from txmq.databases.door import Borrowed, Door, Standing
from txmq.databases.failures import is_settled, words
from txmq.errors import OutcomeUnknown, TransactionBroken, UsageError

__all__ = ["Fate", "Witness", "Witnessed"]

S = TypeVar("S")

log = logging.getLogger(__name__)


class Fate(Enum):
    """What is known of a transaction."""

    NOTHING = "nothing"
    """Nothing of it is in the database."""
    UNKNOWN = "unknown"
    """Its commit is under way, or was never answered, or somebody else has ended it."""
    COMMITTED = "committed"


class Witness(Protocol):
    """The row, and what is asked about it."""

    @property
    def of(self) -> str:
        """Of which transaction it tells, as errors name that."""
        ...

    async def put(self, borrowed: Borrowed[object]) -> None:
        """Have it in the transaction.

        Raises:
            Exception: It cannot be there.
        """
        ...

    async def is_ours(self, borrowed: Borrowed[object]) -> bool:
        """Whether the transaction that asks has put it there; asked of PostgreSQL alone."""
        ...

    async def is_committed(self, borrowed: Borrowed[object]) -> bool:
        """Whether it is seen; asked where the transaction may be another one by now."""
        ...


class Witnessed(Generic[S]):
    """The transaction: its witness is in before anything else is done, and it is committed last.

    It must be ended by nobody else, and it is noticed where somebody does. :attr:`fate` says at any
    moment what is known of it.

    Args:
        door: Leads to the database.
        witness: The row.
    """

    def __init__(self, door: Door[S], witness: Witness) -> None:
        self._door = door
        self._witness = witness
        self._hold = dialects.HOLDS.get(door.kind)
        self._borrowed: Borrowed[S] | None = None
        self.is_held = False
        """Whether a savepoint lasts as long as it does."""
        self.fate = Fate.NOTHING

    @property
    def borrowed(self) -> Borrowed[S]:
        """The session, once it has begun."""
        assert self._borrowed is not None, "begun"
        return self._borrowed

    async def begin(self) -> S:
        """Open a session, and have the witness in.

        Raises:
            UsageError: It has begun before.
            Exception: Why the witness cannot be in, or whatever the source's library raises;
                nothing was done.
        """
        if self._borrowed is not None:
            raise UsageError("one object is one local transaction; ask the resource for another")
        borrowed = self._borrowed = await self._door.open()
        try:
            await self._witness.put(borrowed)
            if self._hold is not None and borrowed.standing() is Standing.UNSURE:
                await borrowed.ask(self._hold[0])
                self.is_held = True
            borrowed.know()
        except BaseException:
            await self.close()
            raise
        return borrowed.session

    async def end(self, problem: BaseException | None) -> None:
        """Commit, or roll back if a problem came.

        Raises:
            OutcomeUnknown: The database did not say what became of the commit, or the transaction
                had been ended inside.
            TransactionBroken: The database had given it up; nothing of it remains.
            Exception: Why the database refused the commit; nothing of it remains.
        """
        try:
            try:
                if problem is None:
                    await self.borrowed.flush()
            finally:
                standing, why = await self._standing()
                if standing is Standing.ENDED:
                    # What was ended inside may have been committed there.
                    self.fate = Fate.UNKNOWN
            if problem is None:
                self._see_that_it_stands(standing, why)
                await self._commit()
        finally:
            await self.close()

    async def close(self) -> None:
        """Give the session back; what is not committed is rolled back."""
        try:
            await self.borrowed.close()
        except self._door.problems as problem:
            # A connection that cannot even roll back is dead, and its transaction with it.
            log.warning("could not give a session back: %s", problem)

    def _see_that_it_stands(self, standing: Standing, why: Exception | None) -> None:
        if standing is Standing.ENDED:
            raise OutcomeUnknown(
                f"{self._witness.of} was ended inside; leave commit and rollback to txmq"
            )
        if standing is Standing.ABORTED:
            raise TransactionBroken(
                f"the database gave {self._witness.of} up after an error that was not passed on"
            ) from why

    async def _standing(self) -> tuple[Standing, Exception | None]:
        """How it stands, and what the database said instead if it does not."""
        borrowed = self.borrowed
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
        try:
            if self._door.kind == "postgresql":
                is_ours = await self._witness.is_ours(borrowed)
                return (Standing.OPEN if is_ours else Standing.ENDED), None
            # It is another transaction by now, or a broken one: what has become of ours?
            is_committed = await self._witness.is_committed(borrowed)
        except self._door.problems as problem:
            return Standing.ABORTED, why or problem
        return (Standing.ENDED if is_committed else Standing.ABORTED), why

    async def _commit(self) -> None:
        self.fate = Fate.UNKNOWN  # Also true if we are cancelled or killed in the middle.
        try:
            await self.borrowed.commit(is_last=True)
        except self._door.problems as problem:
            if is_settled(problem):
                self.fate = Fate.NOTHING
                raise
            raise OutcomeUnknown(
                f"the database did not say whether {self._witness.of} is committed: "
                f"{words(problem)}"
            ) from problem
        self.fate = Fate.COMMITTED
