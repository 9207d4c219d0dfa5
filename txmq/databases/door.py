"""The door to a database: one interface for every source of connections, without any library.

The work of a resource is written once, as coroutines over a :class:`Door`. The door of a blocking
source never waits inside them, so :func:`drive` runs them to their end in the calling thread.
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
    """How a local transaction stands before its commit."""

    OPEN = "open"
    ABORTED = "aborted"
    """A statement failed, and the database takes no more; a COMMIT would be answered with "OK"."""
    ENDED = "ended"
    """The application has committed it, or rolled it back."""
    UNSURE = "unsure"
    """This driver does not say; the database must be asked."""


class Borrowed(Protocol[S_co]):
    """One session in one database transaction, ours until it is closed."""

    @property
    def session(self) -> S_co:
        """What the application's function receives."""
        ...

    async def ask(self, statement: Any, **values: object) -> StatementResult:
        """Run a statement of SQLAlchemy's, or a text."""
        ...

    async def flush(self) -> None:
        """Write what the session still holds back."""
        ...

    def know(self) -> None:
        """Remember the value of the canary, now that the transaction has flipped it; see
        :mod:`txmq.databases.canary`.
        """
        ...

    def standing(self) -> Standing:
        """How the transaction stands, as far as this side knows."""
        ...

    async def commit(self, *, is_last: bool = False) -> None:
        """Commit; what is raised may leave open whether it is done.

        Args:
            is_last: Nothing follows but :meth:`close`, which may be done already; what is wrong
                with that is raised by it all the same, and not here.
        """
        ...

    async def prepare(self, statement: str) -> str:
        """Say PREPARE TRANSACTION, and what the server answers to it; only PostgreSQL's doors can.

        Afterwards the transaction belongs to no session any more.
        """
        ...

    async def anew(self) -> Borrowed[S_co]:
        """Another transaction, once this one is prepared, on the same connection; closing that does
        not give the connection back. Only PostgreSQL's doors can.
        """
        ...

    async def alone(self, statement: str) -> None:
        """Run a statement outside of any transaction, once this one is prepared; likewise."""
        ...

    async def close(self) -> None:
        """Give the session back; what was not committed is rolled back."""
        ...


class Door(Protocol[S_co]):
    """Opens sessions of one source."""

    @property
    def kind(self) -> str:
        """The family of databases: postgresql, mysql or sqlite."""
        ...

    @property
    def is_blocking(self) -> bool:
        """Whether its coroutines never wait."""
        ...

    @property
    def can_prepare(self) -> bool:
        """Whether its transactions can be prepared, and ended later by another session."""
        ...

    @property
    def problems(self) -> tuple[type[Exception], ...]:
        """What its library raises."""
        ...

    async def open(self) -> Borrowed[S_co]:
        """Begin a transaction on a session of its own.

        Raises:
            DatabaseFailed: The source gave a session that is in a transaction already.
            FenceUnsafe: It gave one that commits each statement by itself.
        """
        ...

    async def say(self, statement: str) -> None:
        """Run a statement outside of any transaction, on a connection of its own."""
        ...


class Kept(Generic[S]):
    """A door behind which one connection is: one that has prepared, and that is not given back.

    Sessions that wait for the locks of the prepared transaction may hold all other connections.

    Args:
        door: Where the connection is from.
        borrowed: The session that has it; what is opened here is closed first.
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
    """A transaction that only reads; it is committed, unless something is raised inside.

    At a rollback psycopg forgets all statements that its connection has prepared, and the next user
    of the pooled connection would have to prepare them again.

    Args:
        opening: Begins it.

    Raises:
        Exception: Whatever the door's library raises, also at the end.
    """
    borrowed = await opening
    try:
        yield borrowed
        await borrowed.commit(is_last=True)
    finally:
        await borrowed.close()


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits to its end, in this thread."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise AssertionError("a blocking source was awaited")
