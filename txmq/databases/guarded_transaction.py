"""A database transaction whose first row, the guard row, proves whether it committed."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from enum import Enum
from types import TracebackType
from typing import Any, Generic, TypeVar

from txmq.databases import dialects
from txmq.databases.adapter import DatabaseAdapter, DatabaseSession, SessionStatus
from txmq.databases.failures import has_unread_rows, is_settled, words
from txmq.errors import OutcomeUnknown, TransactionBroken, UsageError

__all__ = ["CommitState", "DualContext", "GuardedTransaction", "drive"]

S = TypeVar("S")
T = TypeVar("T")

log = logging.getLogger(__name__)


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, in this thread."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise AssertionError("a blocking source was awaited")


class DualContext(ABC, Generic[T]):
    """A context manager: ``with`` for a blocking source, ``async with`` for an asyncio one.

    Its beginning and end are written once, as coroutines.
    """

    is_blocking: bool
    """Whether its coroutines never suspend, so that ``with`` can run them."""

    @abstractmethod
    async def begin(self) -> T:
        """Run before the block; returns the value for ``as``."""

    @abstractmethod
    async def end(self, problem: BaseException | None) -> None:
        """Run after the block, with its exception, which is raised again."""

    def __enter__(self) -> T:
        """Begin, in this thread.

        Raises:
            UsageError: This is for ``async with``.
            Exception: As for :meth:`begin`.
        """
        if not self.is_blocking:
            raise UsageError("use this source with `async with`")
        return drive(self.begin())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it.

        Raises:
            Exception: As for :meth:`end`.
        """
        drive(self.end(problem))

    # Not `async def`: every await inside would pass through one more coroutine.

    def __aenter__(self) -> Coroutine[Any, Any, T]:
        """See :meth:`__enter__`."""
        if self.is_blocking:
            raise UsageError("this source blocks: use it with `with`, in a thread")
        return self.begin()

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> Coroutine[Any, Any, None]:
        """See :meth:`__exit__`."""
        return self.end(problem)


class CommitState(Enum):
    """The known state of a transaction's commit."""

    NOTHING = "nothing"
    """The transaction left no trace in the database."""
    UNKNOWN = "unknown"
    """The commit is in progress or was never answered, or the application ended the transaction."""
    COMMITTED = "committed"


class GuardedTransaction(ABC, Generic[S]):
    """A database transaction: its guard row is inserted before anything else, and it commits last.

    Subclasses define the guard row. Only this class may end the transaction; it detects if the
    application has done so. :attr:`commit_state` is always valid.

    Args:
        adapter: Opens sessions of the database.
    """

    def __init__(self, adapter: DatabaseAdapter[S]) -> None:
        self.is_blocking: bool = adapter.is_blocking
        self._adapter = adapter
        self._savepoint = dialects.SAVEPOINTS.get(adapter.kind)
        self._db: DatabaseSession[S] | None = None
        self._has_savepoint = False
        """Whether a savepoint lasts as long as the transaction."""
        self.commit_state: CommitState = CommitState.NOTHING

    # The guard row

    @property
    @abstractmethod
    def _name(self) -> str:
        """The transaction's name in errors."""

    @abstractmethod
    async def _insert_row(self, db: DatabaseSession[object]) -> None:
        """Insert the row.

        Raises:
            Exception: It cannot be inserted.
        """

    @abstractmethod
    async def _is_row_ours(self, db: DatabaseSession[object]) -> bool:
        """Whether the session's current transaction inserted the row; only for PostgreSQL."""

    @abstractmethod
    async def _is_row_committed(self, db: DatabaseSession[object]) -> bool:
        """Whether the row is visible, in a session that may already be in another transaction."""

    async def _before_commit(self, db: DatabaseSession[object]) -> None:
        """Run statements after the application's work, in its open transaction.

        Nothing checks the transaction between this and the commit, so it must raise on any failure.
        """

    async def _after_rollback(self) -> None:
        """Called after a rollback of a transaction without a savepoint."""

    # The transaction

    @property
    def db(self) -> DatabaseSession[S]:
        """The session, once it has begun."""
        assert self._db is not None, "begun"
        return self._db

    async def start(self) -> S:
        """Open a session, insert the guard row, and return the application's session.

        Raises:
            UsageError: It has already begun.
            Exception: The row cannot be inserted, or any exception of the source's library; nothing
                was done.
        """
        if self._db is not None:
            raise UsageError("a local transaction is used once; ask the resource for another")
        db = self._db = await self._adapter.open(begins_at_once=True)
        try:
            await self._insert_row(db)
            if self._savepoint is not None and db.status() is SessionStatus.UNSURE:
                await db.execute(self._savepoint[0])
                self._has_savepoint = True
            if db.canary is not None:
                db.canary.remember()
        except BaseException:
            await self._close(db)
            raise
        return db.session

    async def finish(self, problem: BaseException | None) -> None:
        """Commit, or roll back because of an exception.

        Raises:
            OutcomeUnknown: The database did not say whether it has committed, or the application
                had ended the transaction.
            TransactionBroken: The database had aborted it, or SQLite cannot commit it because rows
                of a RETURNING are unread; nothing of it remains.
            Exception: The database refused the commit; nothing of it remains.
        """
        db, why = self._db, None
        assert db is not None, "begun"
        try:
            try:
                if problem is None:
                    await db.flush()
            finally:
                status = db.status()
                if status is SessionStatus.UNSURE:
                    status, why = await self._ask_status(db)
                if status is SessionStatus.ENDED:
                    # The application may have committed it.
                    self.commit_state = CommitState.UNKNOWN
            if problem is not None:
                return
            if status is SessionStatus.ENDED:
                raise OutcomeUnknown(
                    f"{self._name} was ended inside; leave commit and rollback to txmq"
                )
            if status is SessionStatus.ABORTED:
                self._raise_if_unread(why)
                raise TransactionBroken(
                    f"the database aborted {self._name} after an error that was not passed on"
                ) from why
            await self._before_commit(db)
            self.commit_state = CommitState.UNKNOWN  # Also if this process is killed now.
            try:
                await db.commit(is_last=True)
            except self._adapter.problems as error:
                if is_settled(error):
                    self.commit_state = CommitState.NOTHING
                    self._raise_if_unread(error)
                    raise
                raise OutcomeUnknown(
                    f"the database did not say whether {self._name} is committed: {words(error)}"
                ) from error
            self.commit_state = CommitState.COMMITTED
        finally:
            try:
                await self._close(db)
            finally:
                if self.commit_state is CommitState.NOTHING and not self._has_savepoint:
                    await self._after_rollback()

    async def _close(self, db: DatabaseSession[S]) -> None:
        """Return the session; uncommitted work is rolled back."""
        try:
            await db.close()
        except self._adapter.problems as error:
            # A connection that cannot even roll back is dead, and its transaction with it.
            log.warning("could not return a session: %s", error)

    def _raise_if_unread(self, why: Exception | None) -> None:
        if why is not None and has_unread_rows(why):
            raise TransactionBroken(
                f"{self._name} is rolled back: SQLite cannot commit while rows of a RETURNING are "
                "unread; read all rows of the result, or close it"
            ) from why

    async def _ask_status(self, db: DatabaseSession[S]) -> tuple[SessionStatus, Exception | None]:
        """Ask the database for the transaction's status; also returns the error it answered."""
        why: Exception | None = None
        if self._savepoint is not None:
            try:
                await db.execute(self._savepoint[1])
            except self._adapter.problems as error:
                if has_unread_rows(error):
                    return SessionStatus.ABORTED, error
                why = error
            else:
                return SessionStatus.OPEN, None
        try:
            if self._adapter.kind == "postgresql":
                is_ours = await self._is_row_ours(db)
                return (SessionStatus.OPEN if is_ours else SessionStatus.ENDED), None
            # The session is now in another transaction, or in a broken one. Has ours committed?
            is_committed = await self._is_row_committed(db)
        except self._adapter.problems as error:
            return SessionStatus.ABORTED, why or error
        return (SessionStatus.ENDED if is_committed else SessionStatus.ABORTED), why
