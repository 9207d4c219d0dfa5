"""The guard that needs no table: the row that is changed knows how often it was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NoReturn,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from txmq.databases.canary import SAME
from txmq.databases.door import Borrowed, Door, drive, reading
from txmq.databases.failures import Failure, failure
from txmq.databases.guarded_transaction import RowTransaction
from txmq.databases.session_adapters import AwaitedSession, BlockingSession, Lender
from txmq.databases.sources import AsyncPool, DjangoConnection, Pool, door_of
from txmq.errors import ConfigError, UsageError, VersionGap
from txmq.idempotent.attempts import Refused, Within
from txmq.idempotent.guard import Attempt, Payload
from txmq.idempotent.loaded import expire
from txmq.idempotent.verdict import Found, Verdict
from txmq.idempotent.versions import Bumped, Place, Versions
from txmq.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
    from sqlalchemy.orm import Session, sessionmaker

__all__ = ["Gaps", "VersionGuard"]

S = TypeVar("S")
A = TypeVar("A", bound="AsyncSession")
B = TypeVar("B", bound="Session")
C = TypeVar("C", bound="DjangoConnection")

Gaps: TypeAlias = Literal["retry", "wait", "accept"]

FIRST_PAUSE_S: Final = 0.01
LONGEST_PAUSE_S: Final = 0.5
"""Between two looks at a row whose next version has not come yet."""


class Options(TypedDict, total=False):
    """What may be said of a guard beside its source and its rows."""

    version: Any
    key: Any
    gaps: Gaps
    wait_s: float
    first: int
    clock: Clock


class VersionGuard(Generic[S]):
    """A guard in the rows that are changed: a message makes version v of a row, so it is done once.

    Its key is a pair, of the row's key and of v. The row's version is set from v - 1 to v before
    the function is called, in the same database transaction; both are committed, or neither is. A
    version that is there already, or was overtaken, is ``DONE``, whoever brought it. The row is
    locked for as long as the function works, so versions of one row never work side by side, and
    who comes second waits as the database does.

    There is no row before the first version: the function inserts it, with that version, and it is
    seen to that it did. Let it be a plain INSERT: under MySQL's READ COMMITTED two functions may
    work on the first version at the same moment, and the second INSERT is what undoes one of them.

    What it does not know: what came with a version. Another message with the same version is
    ``DONE``, never ``CONFLICT``; versions are counted by one owner, or it is no use. No result is
    kept. It forgets a row that is deleted with all its versions; let deleted ones be marked.

    Args:
        source: As for :class:`txmq.SQLResource`.
        model: A mapped class, or a table of SQLAlchemy's.
        version: The column of the version.
        key: The columns by which a row is known, one or several, and no two rows have the same; by
            default its primary key.
        gaps: What becomes of a version that comes before one in front of it. ``retry``:
            :class:`VersionGap` is raised, and consumers of ours bring the message later. ``wait``:
            the function waits for those that are missing, without a connection, and then the same.
            ``accept``: those before it are never done, since the newest state says it all.
        wait_s: How long ``wait`` waits.
        first: The version that a new row has.
        clock: Where the time comes from.

    Raises:
        ConfigError: There are no such columns, or no such source.
    """

    has_session: Literal[True] = True
    keeps_result: Literal[False] = False

    @overload
    def __init__(
        self: VersionGuard[Session], source: Engine, model: Any, **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(
        self: VersionGuard[AsyncSession],
        source: AsyncEngine,
        model: Any,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: VersionGuard[B], source: sessionmaker[B], model: Any, **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(
        self: VersionGuard[A],
        source: async_sessionmaker[A],
        model: Any,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: VersionGuard[C], source: C, model: Any, **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(
        self, source: AsyncPool[S] | Pool[S], model: Any, **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(
        self,
        source: Callable[[], Coroutine[Any, Any, S]],
        model: Any,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(self, source: Callable[[], S], model: Any, **options: Unpack[Options]) -> None: ...
    def __init__(
        self,
        source: Any,
        model: Any,
        *,
        version: Any = "version",
        key: Any = None,
        gaps: Gaps = "retry",
        wait_s: float = 5.0,
        first: int = 1,
        clock: Clock | None = None,
    ) -> None:
        if gaps not in {"retry", "wait", "accept"}:
            raise ConfigError(f"gaps={gaps!r} is none of retry, wait and accept")
        self._door: Door[S] = door_of(source)
        self._versions = Versions(model, version, key, first=first, takes_gaps=gaps == "accept")
        self._bump = self._versions.bump(self._door.kind)
        self._lender = Lender(self._versions.table)
        self._patience = _Patience(
            wait_s if gaps == "wait" else 0.0, clock or SystemClock(), self._door.is_blocking
        )

    @property
    def is_blocking(self) -> bool:
        """Whether its attempts are for ``with``, otherwise for ``async with``."""
        return self._door.is_blocking

    def attempt(
        self, key: tuple[Any, int], *, scope: str = "", payload: Payload = None
    ) -> Attempt[S]:
        """See :meth:`txmq.idempotent.guard.Guard.attempt`; a row has one version for all scopes,
        and nothing is compared.

        Raises:
            UsageError: That is no pair of a key and a version.
        """
        del scope, payload
        row = _Row(self._versions, self._door.kind, self._bump, self._versions.place(key))
        return _Attempt(self._door, row, self._patience)

    @overload
    def bump(
        self,
        session: AwaitedSession,
        key: tuple[Any, int],
        values: Mapping[Any, object] | None = None,
    ) -> Coroutine[Any, Any, Verdict]: ...
    @overload
    def bump(
        self,
        session: BlockingSession,
        key: tuple[Any, int],
        values: Mapping[Any, object] | None = None,
    ) -> Verdict: ...
    def bump(
        self,
        session: AwaitedSession | BlockingSession,
        key: tuple[Any, int],
        values: Mapping[Any, object] | None = None,
    ) -> Verdict | Coroutine[Any, Any, Verdict]:
        """Bump in a transaction of yours: one ``UPDATE`` that changes the row only if it is its
        turn. Awaited for a session of asyncio's.

        With ``FIRST`` it is bumped, and what belongs to this version is yours to do in the same
        transaction; where there was no row, to insert it with that version. With ``DONE`` there is
        nothing to do. It counts if you commit. Objects of the row that an ORM session has loaded
        are read anew: they may be older than what was waited for.

        Args:
            session: A ``Session`` or ``Connection`` of SQLAlchemy's or its asyncio twin, a
                connection of psycopg's, or ``django.db.connection``.
            key: The row's key and the version.
            values: Columns, or their names, that change in the same statement; values or
                expressions. Nothing of it happens where there is no row.

        Raises:
            VersionGap: One before it has not come yet, whatever ``gaps`` says but ``accept``: it
                would be waited for with your transaction. Nothing was changed.
            UsageError: That is no pair, or no session; it commits each statement by itself; or it
                has changes of the row that are not written.
            Exception: What the session's library raises.
        """
        place, given = self._versions.place(key), self._lender.of(session)
        statement = self._versions.bump(given.kind, values)
        expire(session, self._versions, place)
        work = self._given(given, place, statement)
        return drive(work) if given.is_blocking else work

    async def _given(self, given: Any, place: Place, statement: Any) -> Verdict:
        return (await self._versions.bumped(given.kind, given.ask, place, statement)).verdict

    @overload
    def judge(
        self, session: AwaitedSession, key: tuple[Any, int], changed: int
    ) -> Coroutine[Any, Any, Verdict]: ...
    @overload
    def judge(self, session: BlockingSession, key: tuple[Any, int], changed: int) -> Verdict: ...
    def judge(
        self, session: AwaitedSession | BlockingSession, key: tuple[Any, int], changed: int
    ) -> Verdict | Coroutine[Any, Any, Verdict]:
        """What is to be said of a statement of your own: an ``UPDATE`` that sets the version to v
        ``WHERE`` it was v - 1, of which the database has said how many rows it changed.

        Returns:
            ``FIRST`` if it has changed one, or if there is none yet and this is the first version,
            which is yours to insert. ``DONE`` if it came too late. ``IN_PROGRESS`` if it was too
            early when it was said, and would not be now: say it again.

        Raises:
            VersionGap: One before it has not come yet.
            UsageError: It has changed several; or as for :meth:`bump`.
            Exception: What the session's library raises.
        """
        place, given = self._versions.place(key), self._lender.of(session)
        work = self._judged(given, place, changed)
        return drive(work) if given.is_blocking else work

    async def _judged(self, given: Any, place: Place, changed: int) -> Verdict:
        if changed not in {0, 1}:
            raise UsageError(f"a statement for {place.of} has changed {changed} rows")
        if changed:
            return Verdict.FIRST
        versions = self._versions
        return versions.judged(place, await versions.now(given.kind, given.ask, place))


class _Patience:
    """How long, and how, one waits for a version."""

    def __init__(self, wait_s: float, clock: Clock, is_blocking: bool) -> None:
        self.wait_s = wait_s
        self._clock = clock
        self._is_blocking = is_blocking

    def until(self) -> float:
        return self._clock.monotonic() + self.wait_s

    async def pause(self, seconds: float, until: float) -> bool:
        """Wait a little; whether there was time left to."""
        left = until - self._clock.monotonic()
        if left <= 0:
            return False
        if self._is_blocking:
            time.sleep(min(seconds, left))  # noqa: ASYNC251 - its coroutines never wait
        else:
            await asyncio.sleep(min(seconds, left))
        return True


class _Attempt(Within[S]):
    def __init__(self, door: Door[S], row: _Row, patience: _Patience) -> None:
        super().__init__(door, row)
        self._row = row
        self._patience = patience

    def keep(self, result: object) -> NoReturn:
        del result
        raise UsageError("a version has no room for a result")

    async def begin(self) -> Self:
        until, pause_s = self._patience.until(), FIRST_PAUSE_S
        while True:
            try:
                return await super().begin()
            except VersionGap:
                while not await self._has_come():
                    if not await self._patience.pause(pause_s, until):
                        raise
                    pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            self._inner = RowTransaction(self._door, self._row)

    async def _has_come(self) -> bool:
        """Whether it is worth trying again, in a transaction of its own."""
        if not self._patience.wait_s:
            return False
        async with reading(self._door.open()) as borrowed:
            return await self._row.is_its_turn(borrowed)

    async def finish(self, borrowed: Borrowed[Any]) -> None:
        await self._row.see_that_it_is_there(borrowed)

    def is_undone_for_others(self, problem: Exception) -> bool:
        # Somebody else has inserted the first version meanwhile.
        is_overtaken = self._row.is_new and failure(problem) is Failure.DUPLICATE
        return is_overtaken or super().is_undone_for_others(problem)


class _Row:
    """The row of a key, as a witness: it has the version, or will be inserted with it."""

    def __init__(self, versions: Versions, kind: str, bump: Any, place: Place) -> None:
        self._versions = versions
        self._kind = kind
        self._bump = bump
        self._place = place
        self._bumped = Bumped(Verdict.IN_PROGRESS)

    @property
    def of(self) -> str:
        return f"the transaction of {self._place.of}"

    @property
    def is_new(self) -> bool:
        return self._bumped.is_new

    async def put(self, borrowed: Borrowed[Any]) -> None:
        """Bump it, or raise why there is nothing to do."""
        versions, place = self._versions, self._place
        self._bumped = Bumped(Verdict.IN_PROGRESS)
        try:
            self._bumped = await versions.bumped(self._kind, borrowed.ask, place, self._bump)
        except Exception as problem:
            if failure(problem) is Failure.LOCKED:
                raise Refused(Found(Verdict.IN_PROGRESS)) from problem
            raise
        if self._bumped.verdict is not Verdict.FIRST:
            raise Refused(Found(self._bumped.verdict))

    async def is_its_turn(self, borrowed: Borrowed[Any]) -> bool:
        found = await self._versions.at(borrowed.ask, self._place)
        try:
            self._versions.judged(self._place, found)
        except VersionGap:
            return False
        return True

    async def see_that_it_is_there(self, borrowed: Borrowed[Any]) -> None:
        """What would be done anew with the next message of this version otherwise."""
        if not self.is_new:
            return
        await borrowed.flush()
        found = await self._versions.at(borrowed.ask, self._place)
        if found != [self._place.version]:
            raise UsageError(
                f"{self._place.of} is the first: the function was to insert its row into "
                f"{self._versions.table.name}, with this version"
            )

    async def is_ours(self, borrowed: Borrowed[Any]) -> bool:
        return bool((await borrowed.ask(SAME, transaction=self._bumped.transaction)).rows)

    async def is_committed(self, borrowed: Borrowed[Any]) -> bool:
        found = await self._versions.at(borrowed.ask, self._place)
        return bool(found) and found[0] is not None and found[0] >= self._place.version
