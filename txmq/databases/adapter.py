"""The database adapter: one interface for every source of connections.

A resource is written once, as coroutines over a :class:`DatabaseAdapter`. The adapter of a blocking
source never suspends them, so :func:`txmq.databases.guarded_transaction.drive` runs them to the end
in the calling thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from txmq.databases import dialects
from txmq.databases.canary import Canary
from txmq.databases.failures import Failure, failure

__all__ = [
    "DatabaseAdapter",
    "DatabaseSession",
    "OneConnectionAdapter",
    "SessionStatus",
    "StatementResult",
    "lock_timeout",
    "open_with_lock_timeout",
    "reading",
]

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class StatementResult(NamedTuple):
    """The result of a statement."""

    changed: int
    rows: list[tuple[Any, ...]]


class SessionStatus(Enum):
    """The status of a local transaction before its commit."""

    OPEN = "open"
    ABORTED = "aborted"
    """A statement failed, and the database accepts no more; a COMMIT would fail without an error.
    """
    ENDED = "ended"
    """The application has committed it, or rolled it back."""
    UNSURE = "unsure"
    """The driver cannot tell; the database must be asked."""


class DatabaseSession(Protocol[S_co]):
    """A session in one database transaction, checked out until it is closed."""

    @property
    def session(self) -> S_co:
        """The object that the application's function receives."""
        ...

    @property
    def canary(self) -> Canary | None:
        """Detects that the application ended the transaction, where the driver can."""
        ...

    async def execute(self, statement: Any, **values: object) -> StatementResult:
        """Run an SQLAlchemy statement or a text."""
        ...

    async def flush(self) -> None:
        """Flush the session's pending writes."""
        ...

    def status(self) -> SessionStatus:
        """The transaction's status as the client sees it."""
        ...

    async def commit(self, *, is_last: bool = False) -> None:
        """Commit; after an error the outcome may be unknown.

        Args:
            is_last: Only :meth:`close` follows, so the commit may close the session right away.
                :meth:`close` still raises the errors of closing.
        """
        ...

    async def prepare(self, statement: str) -> str:
        """Run PREPARE TRANSACTION and return the server's answer; PostgreSQL only.

        Afterwards the transaction is detached from its session.
        """
        ...

    async def begin_again(self) -> DatabaseSession[S_co]:
        """Begin another transaction on the same connection after this one is prepared; PostgreSQL
        only.

        Closing it keeps the connection checked out.
        """
        ...

    async def execute_outside(self, statement: str) -> None:
        """Run a statement outside any transaction after this one is prepared; PostgreSQL only."""
        ...

    async def close(self) -> None:
        """Return the session; uncommitted work is rolled back."""
        ...


class DatabaseAdapter(Protocol[S_co]):
    """Opens sessions of one source."""

    @property
    def kind(self) -> str:
        """The family of databases: postgresql, mysql or sqlite."""
        ...

    @property
    def is_blocking(self) -> bool:
        """Whether its coroutines never suspend."""
        ...

    @property
    def can_prepare(self) -> bool:
        """Whether its transactions can be prepared, and ended later by another session."""
        ...

    @property
    def problems(self) -> tuple[type[Exception], ...]:
        """The exceptions of its library."""
        ...

    async def open(self, *, begins_at_once: bool = False) -> DatabaseSession[S_co]:
        """Begin a transaction in a new session.

        Args:
            begins_at_once: The caller's next step is a statement, so the BEGIN may wait for it and
                travel with it.

        Raises:
            DatabaseFailed: The source returned a session that already has a transaction.
            FenceUnsafe: The source returned a session that commits each statement.
        """
        ...

    async def execute_outside(self, statement: str) -> None:
        """Run a statement outside any transaction, on a separate connection."""
        ...


class OneConnectionAdapter(Generic[S]):
    """An adapter over the one connection that prepared a transaction and stays checked out.

    It needs its own connection, because sessions that wait for the prepared transaction's locks may
    hold all others.

    Args:
        adapter: The adapter that opened the connection.
        db: The session that owns the connection; sessions opened here are closed before it.
    """

    def __init__(self, adapter: DatabaseAdapter[S], db: DatabaseSession[S]) -> None:
        self.kind: str = adapter.kind
        self.is_blocking: bool = adapter.is_blocking
        self.can_prepare: bool = adapter.can_prepare
        self.problems: tuple[type[Exception], ...] = adapter.problems
        self._db = db

    async def open(self, *, begins_at_once: bool = False) -> DatabaseSession[S]:
        """See :meth:`DatabaseAdapter.open`."""
        del begins_at_once
        return await self._db.begin_again()

    async def execute_outside(self, statement: str) -> None:
        """See :meth:`DatabaseAdapter.execute_outside`."""
        await self._db.execute_outside(statement)


@asynccontextmanager
async def reading(opening: Awaitable[DatabaseSession[S]]) -> AsyncIterator[DatabaseSession[S]]:
    """A read-only transaction; it commits unless the block raises.

    It commits because psycopg forgets a connection's prepared statements after a rollback, and the
    next user of the pooled connection would have to prepare them again.

    Args:
        opening: Opens the session.

    Raises:
        Exception: Any error of the adapter's library, including those of the commit.
    """
    db = await opening
    try:
        yield db
        await db.commit(is_last=True)
    finally:
        await db.close()


@asynccontextmanager
async def open_with_lock_timeout(
    adapter: DatabaseAdapter[object], wait_ms: int
) -> AsyncIterator[DatabaseSession[object]]:
    """A new session with a short lock timeout; it sees the latest commits."""
    db = await adapter.open()
    try:
        if (level := dialects.ISOLATION.get(adapter.kind)) is not None:
            await db.execute(level)
        async with lock_timeout(adapter, db, wait_ms):
            yield db
    finally:
        await db.close()


@asynccontextmanager
async def lock_timeout(
    adapter: DatabaseAdapter[object], db: DatabaseSession[object], wait_ms: int
) -> AsyncIterator[None]:
    """Set a short lock timeout inside the block, and restore the session's own afterwards."""
    query = dialects.LOCK_TIMEOUTS.get(adapter.kind)
    before = None if query is None else (await db.execute(query)).rows[0]
    await db.execute(dialects.set_lock_timeout(adapter.kind, wait_ms))
    try:
        yield
    finally:
        if before is not None:
            try:
                await db.execute(dialects.restore_lock_timeout(adapter.kind, before))
            except adapter.problems as error:
                # The block's error says more, and a lost connection is not used again.
                if failure(error) is not Failure.LOST:
                    raise
