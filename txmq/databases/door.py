"""The database adapter (door): one interface for every source of connections.

A resource is written once, as coroutines over a :class:`Door`. The adapter of a blocking source
never suspends them, so :func:`drive` runs them to the end in the calling thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

__all__ = ["Borrowed", "Door", "Kept", "Standing", "StatementResult", "drive", "reading"]

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
T = TypeVar("T")


class StatementResult(NamedTuple):
    """The result of a statement."""

    changed: int
    rows: list[tuple[Any, ...]]


class Standing(Enum):
    """The status of a local transaction before its commit."""

    OPEN = "open"
    ABORTED = "aborted"
    """A statement failed, and the database takes no more; a COMMIT would be answered with "OK"."""
    ENDED = "ended"
    """The application has committed it, or rolled it back."""
    UNSURE = "unsure"
    """This driver does not say; the database must be asked."""


class Borrowed(Protocol[S_co]):
    """A session in one database transaction, checked out until it is closed."""

    @property
    def session(self) -> S_co:
        """The object that the application's function receives."""
        ...

    async def ask(self, statement: Any, **values: object) -> StatementResult:
        """Run an SQLAlchemy statement or a text."""
        ...

    async def flush(self) -> None:
        """Flush the session's pending writes."""
        ...

    def know(self) -> None:
        """Remember the canary's value after the transaction flipped it; see
        :mod:`txmq.databases.canary`.
        """
        ...

    def standing(self) -> Standing:
        """The transaction's status, as far as the client knows."""
        ...

    async def commit(self, *, is_last: bool = False) -> None:
        """Commit; after an error the outcome may be open.

        Args:
            is_last: Only :meth:`close` follows, so the commit may close already. Errors of closing
                are still raised by :meth:`close`.
        """
        ...

    async def prepare(self, statement: str) -> str:
        """Run PREPARE TRANSACTION and return the server's answer; PostgreSQL only.

        Afterwards the transaction is detached from its session.
        """
        ...

    async def anew(self) -> Borrowed[S_co]:
        """Begin another transaction on the same connection after this one is prepared; PostgreSQL
        only.

        Closing it keeps the connection checked out.
        """
        ...

    async def alone(self, statement: str) -> None:
        """Run a statement outside any transaction after this one is prepared; PostgreSQL only."""
        ...

    async def close(self) -> None:
        """Return the session; uncommitted work is rolled back."""
        ...


class Door(Protocol[S_co]):
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

    async def open(self) -> Borrowed[S_co]:
        """Begin a transaction in a new session.

        Raises:
            DatabaseFailed: The source returned a session that already has a transaction.
            FenceUnsafe: The source returned a session that commits each statement.
        """
        ...

    async def say(self, statement: str) -> None:
        """Run a statement outside any transaction, on a separate connection."""
        ...


class Kept(Generic[S]):
    """An adapter over the one connection that prepared a transaction and stays checked out.

    It needs its own connection, because sessions that wait for the prepared transaction's locks may
    hold all others.

    Args:
        door: The adapter that opened the connection.
        borrowed: The session that owns the connection; sessions opened here are closed before it.
    """

    def __init__(self, door: Door[S], borrowed: Borrowed[S]) -> None:
        self.kind = door.kind
        self.is_blocking = door.is_blocking
        self.can_prepare = door.can_prepare
        self.problems = door.problems
        self._borrowed = borrowed

    async def open(self) -> Borrowed[S]:
        """See :meth:`Door.open`."""
        return await self._borrowed.anew()

    async def say(self, statement: str) -> None:
        """See :meth:`Door.say`."""
        await self._borrowed.alone(statement)


@asynccontextmanager
async def reading(opening: Awaitable[Borrowed[S]]) -> AsyncIterator[Borrowed[S]]:
    """A read-only transaction; it commits unless the block raises.

    After a rollback psycopg forgets the connection's prepared statements, and the next user of the
    pooled connection must prepare them again.

    Args:
        opening: Opens the session.

    Raises:
        Exception: Any error of the adapter's library, also at the end.
    """
    borrowed = await opening
    try:
        yield borrowed
        await borrowed.commit(is_last=True)
    finally:
        await borrowed.close()


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, in this thread."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise AssertionError("a blocking source was awaited")
