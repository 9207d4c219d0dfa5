"""The guard that cannot err: its row is committed with the work, or neither is."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from txmq.databases.canary import SAME
from txmq.databases.dialects import NOW_MS
from txmq.databases.door import Borrowed, Door, drive
from txmq.databases.failures import Failure, failure, words
from txmq.databases.lock_timeout import impatient, waiting
from txmq.databases.sources import AsyncPool, DjangoConnection, Pool, door_of
from txmq.databases.tables import create_command
from txmq.errors import (
    ConfigError,
    DatabaseFailed,
    FenceUnsafe,
    TableMissing,
)
from txmq.idempotent.attempts import Refused, Within
from txmq.idempotent.done import Done
from txmq.idempotent.guard import Attempt, Payload
from txmq.idempotent.keys import named, redelivery_horizon_s
from txmq.idempotent.verdict import Found, Verdict, fingerprint, judged
from txmq.limits import DONE_ROWS_REMOVED

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
    from sqlalchemy.orm import Session, sessionmaker

__all__ = ["UniqueKeyTable"]

S = TypeVar("S")
A = TypeVar("A", bound="AsyncSession")
B = TypeVar("B", bound="Session")
C = TypeVar("C", bound="DjangoConnection")
T = TypeVar("T")

_WAIT_MS: Final = 1_000
"""MySQL has no lock to try: who comes second waits, and this is the least it knows."""

_TRIAL: Final = "txmq:trial"


class Options(TypedDict, total=False):
    """What may be said of a table beside its source."""

    table: str
    schema: str | None


class UniqueKeyTable(Generic[S]):
    """A guard in the database in which the work is done.

    The row of a key is inserted before the work, in the same database transaction. Both are
    committed, or neither is: there is nothing that a crash, a lost answer or a second delivery at
    the same moment could leave half done. What it cannot know is what the function does outside of
    its session.

    It loses what the database loses: commits that were acknowledged and forgotten, and rows that
    were removed by :meth:`clean` while a message could still come again.

    Who comes while somebody is at work on the key is told so at once; on MySQL after a second, and
    on SQLite, where one transaction writes at a time, after the driver's own patience.

    Args:
        source: As for :class:`txmq.SQLResource`: an SQLAlchemy ``Engine``, ``sessionmaker``,
            ``AsyncEngine`` or ``async_sessionmaker``; a pool of psycopg's, or a function that
            connects; ``django.db.connection``.
        table: The table.
        schema: Where it is, unless where sessions look first.

    Raises:
        ConfigError: The source is none of these.
    """

    has_session: Literal[True] = True

    @overload
    def __init__(
        self: UniqueKeyTable[Session], source: Engine, **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(
        self: UniqueKeyTable[AsyncSession], source: AsyncEngine, **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(
        self: UniqueKeyTable[B], source: sessionmaker[B], **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(
        self: UniqueKeyTable[A], source: async_sessionmaker[A], **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(self: UniqueKeyTable[C], source: C, **options: Unpack[Options]) -> None: ...
    @overload
    def __init__(self, source: AsyncPool[S] | Pool[S], **options: Unpack[Options]) -> None: ...
    @overload
    def __init__(
        self, source: Callable[[], Coroutine[Any, Any, S]], **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(self, source: Callable[[], S], **options: Unpack[Options]) -> None: ...
    def __init__(self, source: Any, *, table: str = "txmq_done", schema: str | None = None) -> None:
        self._door: Door[S] = door_of(source)
        self._done = Done(table, schema)

    @property
    def is_blocking(self) -> bool:
        """Whether its attempts are for ``with``, otherwise for ``async with``."""
        return self._door.is_blocking

    def attempt(self, key: str, *, scope: str = "", payload: Payload = None) -> Attempt[S]:
        """See :meth:`txmq.idempotent.guard.Guard.attempt`.

        Raises:
            UsageError: That is no key.
            LimitExceeded: It is too long.
        """
        row = _Row(self._done, self._door, named(scope, "scope"), named(key), fingerprint(payload))
        return _Attempt(self._done, self._door, row)

    async def verify(self) -> None:
        """See that the table is there, and that nothing stays in it without a commit.

        Raises:
            TableMissing: There is no such table.
            FenceUnsafe: What is rolled back stays.
            DatabaseFailed: The database does not answer.
        """
        await self._turn(self.verified())

    async def verified(self) -> None:
        """The same in this thread; it raises what :meth:`verify` does."""
        done, trial = self._done, secrets.token_hex(16)
        try:
            # What is not committed is rolled back where it is closed.
            async with impatient(self._door, _WAIT_MS) as borrowed:
                row = _Row(done, self._door, _TRIAL, trial, "")
                await row.put(borrowed)
            async with impatient(self._door, _WAIT_MS) as borrowed:
                this = {"of_scope": _TRIAL, "of_key": trial}
                if (await borrowed.ask(done.look, **this)).rows:
                    await borrowed.ask(done.remove, **this)
                    await borrowed.commit()
                    raise FenceUnsafe(
                        f"what is rolled back stays in {done.name}: switch autocommit off, and "
                        "keep the table in an engine that has transactions"
                    )
        except Refused as refused:
            raise DatabaseFailed(f"{done.name} is locked by somebody else; try again") from refused
        except self._door.problems as problem:
            _missing(done, problem)
            raise DatabaseFailed(f"the database did not answer: {words(problem)}") from problem

    async def clean(
        self,
        older_than_s: float,
        *,
        horizon_s: float | None = None,
        batch: int = DONE_ROWS_REMOVED,
    ) -> int:
        """Remove the rows of what was done long ago, some at a time; call it now and then.

        It waits for nobody's lock, and nobody waits for it longer than for one batch.

        Args:
            older_than_s: The age of what may go, by the database's clock.
            horizon_s: How long a message can still come again; see :func:`redelivery_horizon_s`.
            batch: How many rows one database transaction removes.

        Returns:
            How many rows are gone.

        Raises:
            ConfigError: Messages of this age can still come again.
            TableMissing: There is no such table.
            DatabaseFailed: The database does not answer; call again.
        """
        least_s = redelivery_horizon_s() if horizon_s is None else horizon_s
        if older_than_s < least_s:
            raise ConfigError(
                f"a message can come again for {least_s:.0f} s: rows of {older_than_s:.0f} s are "
                "still needed; keep them longer, or say with horizon_s (--horizon) for how long "
                "messages really come again"
            )
        return await self._turn(self._clean(int(older_than_s * 1000), max(1, batch)))

    async def _clean(self, older_ms: int, batch: int) -> int:
        removed, last = 0, batch
        try:
            async with impatient(self._door, _WAIT_MS) as borrowed:
                now_ms = await _now_ms(self._door, borrowed)
            while last >= batch:
                async with impatient(self._door, _WAIT_MS) as borrowed:
                    last = await self._remove(borrowed, now_ms - older_ms, batch)
                    await borrowed.commit()
                removed += last
        except self._door.problems as problem:
            _missing(self._done, problem)
            raise DatabaseFailed(
                f"{self._done.name} could not be cleaned now: {words(problem)}"
            ) from problem
        return removed

    async def _remove(self, borrowed: Borrowed[Any], before_ms: int, batch: int) -> int:
        done, old = self._done, {"before_ms": before_ms, "batch": batch}
        if self._door.kind != "mysql":
            return (await borrowed.ask(done.remove_old[self._door.kind], **old)).changed
        gone = 0
        for scope, key in (await borrowed.ask(done.old, **old)).rows:
            gone += (await borrowed.ask(done.remove, of_scope=scope, of_key=key)).changed
        return gone

    async def _turn(self, work: Coroutine[Any, Any, T]) -> T:
        if self._door.is_blocking:
            return await asyncio.to_thread(drive, work)
        return await work


class _Attempt(Within[S]):
    def __init__(self, done: Done, door: Door[S], row: _Row) -> None:
        super().__init__(door, row)
        self._done = done
        self._row = row

    async def finish(self, borrowed: Borrowed[Any]) -> None:
        if self.kept is None:
            return
        await borrowed.flush()  # A savepoint that was left open would have the row for its own.
        await borrowed.ask(self._done.keep, **self._row.this, as_result=self.kept)


class _Row:
    """The row of a key."""

    def __init__(self, done: Done, door: Door[Any], scope: str, key: str, payload: str) -> None:
        self._done = done
        self._door = door
        self._payload = payload
        self._transaction: int | None = None
        self._values: dict[str, object] = {"as_fingerprint": payload}
        if door.kind == "postgresql":
            self._values["of_lock"] = done.lock(scope, key)
        self.this: dict[str, object] = {"of_scope": scope, "of_key": key}

    @property
    def of(self) -> str:
        return f"the transaction of key {self.this['of_key']!r}"

    async def put(self, borrowed: Borrowed[Any]) -> None:
        """Have it in the transaction, or raise what is known of it."""
        door = self._door
        try:
            if door.kind == "mysql":
                async with waiting(door, borrowed, _WAIT_MS):
                    is_in = await self._insert(borrowed)
            else:
                is_in = await self._insert(borrowed)
            if not is_in:
                raise Refused(await self._look(borrowed))
        except door.problems as problem:
            if failure(problem) is Failure.LOCKED:
                raise Refused(Found(Verdict.IN_PROGRESS)) from problem
            _missing(self._done, problem)
            raise

    async def _insert(self, borrowed: Borrowed[Any]) -> bool:
        claim = self._done.claims[self._door.kind]
        try:
            answer = await borrowed.ask(claim, **self.this, **self._values)
        except self._door.problems as problem:
            if failure(problem) is not Failure.DUPLICATE:
                raise
            return False
        if answer.rows:
            self._transaction = answer.rows[0][0]
        return answer.changed == 1

    async def _look(self, borrowed: Borrowed[Any]) -> Found:
        look = self._done.look_now if self._door.kind == "mysql" else self._done.look
        found = (await borrowed.ask(look, **self.this)).rows
        if not found:
            return Found(Verdict.IN_PROGRESS)  # Or undone just now: whoever comes again will see.
        theirs, result = found[0]
        return judged(self._payload, theirs, result)

    async def is_ours(self, borrowed: Borrowed[Any]) -> bool:
        # Not by the row: a result that was kept after another end would make it anybody's.
        return bool((await borrowed.ask(SAME, transaction=self._transaction)).rows)

    async def is_committed(self, borrowed: Borrowed[Any]) -> bool:
        return bool((await borrowed.ask(self._done.look, **self.this)).rows)


def _missing(done: Done, problem: Exception) -> None:
    if failure(problem) in {Failure.MISSING, Failure.CHANGED}:
        raise TableMissing(
            f"there is no table {done.name} as this version uses it: run "
            f"`{create_command('done', done.table)}`, or have a migration run what "
            f"`txmq schema sql done` prints ({words(problem)})"
        ) from problem


async def _now_ms(door: Door[Any], borrowed: Borrowed[Any]) -> int:
    return int((await borrowed.ask(f"SELECT {NOW_MS[door.kind]}")).rows[0][0])
