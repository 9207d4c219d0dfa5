"""A database as a resource of transactions: local transactions behind a fence, and their checks.

Every insert into the fence is one statement, and the first insert decides. Nothing here holds a
lock when it returns.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)
from weakref import WeakKeyDictionary

from txmq.databases import dialects
from txmq.databases.adapter import DatabaseAdapter, open_with_lock_timeout
from txmq.databases.failures import Failure, failure, words
from txmq.databases.guarded_transaction import drive
from txmq.databases.sources import AsyncPool, DjangoConnection, Pool, adapter_of
from txmq.databases.tables import create_command
from txmq.errors import (
    ConfigError,
    DatabaseFailed,
    FenceElsewhere,
    FenceMissing,
    FenceOutdated,
    FenceUnsafe,
    LimitExceeded,
    ResourceError,
    UsageError,
)
from txmq.limits import (
    FENCE_CHECKS_TOGETHER,
    FENCE_ROWS_REMOVED,
    RESOURCE_THREADS,
    XID_CHARS_MAX,
)
from txmq.runtime.entropy import Entropy, SystemEntropy
from txmq.runtime.tasks import Tasks, Threads
from txmq.settings.units import DurationLike, seconds
from txmq.transaction.resources.fence import (
    COMMITTED,
    FENCE_VERSION,
    ROLLED_BACK,
    TRIAL,
    Fence,
    check_horizon,
)
from txmq.transaction.resources.local import (
    Claim,
    FenceRow,
    SQLLocalTransaction,
    claim,
    no_row,
    outcome,
)
from txmq.transaction.state import LocalTransactionState

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
    from sqlalchemy.orm import Session, sessionmaker

__all__ = ["CheckBatches", "ResourceOptions", "SQLResource"]

S = TypeVar("S")
A = TypeVar("A", bound="AsyncSession")
B = TypeVar("B", bound="Session")
C = TypeVar("C", bound="DjangoConnection")
T = TypeVar("T")

log = logging.getLogger(__name__)

CLOCKS_APART_MS: Final = 600_000
"""Tolerance for a producer's clock that is ahead of the database's. Rows are kept that much longer.
"""
ANNOUNCE_WAIT_MS: Final = 1_000
"""Short, because in MySQL all local transactions queue behind a session that waits for the mark."""
TRIAL_WAIT_MS: Final = 10_000
"""Longer, because only a migration can hold the lock that a trial needs for several seconds."""
SPENT_WAIT_MS: Final = 5
"""The lock timeout of each check in a batch that has already waited: if a row is still locked, its
transaction is in progress."""

_ALWAYS_MS: Final = 2**62
_XID: Final = re.compile(r"[ -~]*[!-~]")
"""Printable ASCII that does not end with a space: MySQL ignores trailing spaces in comparisons."""
_STATES: Final = {
    COMMITTED: LocalTransactionState.COMMIT,
    ROLLED_BACK: LocalTransactionState.ROLLBACK,
}


class ResourceOptions(TypedDict, total=False):
    """The options of a resource, without its source."""

    fence: str
    schema: str | None
    check_wait: DurationLike
    entropy: Entropy | None


class SQLResource(Generic[S]):
    """A database that takes part in transactions.

    Local transactions run in the caller's thread: ``with`` for a blocking source, ``async with``
    for an asyncio one. Await every other method; the resource runs a blocking source in its own
    threads.

    Args:
        source: An SQLAlchemy ``Engine``, ``sessionmaker``, ``AsyncEngine`` or
            ``async_sessionmaker``; a psycopg pool, or a function that connects;
            ``django.db.connection``.
        fence: The fence table.
        schema: Its schema; by default, the session's default schema.
        check_wait: How long a check waits for a local transaction that is committing.
        entropy: The source of randomness.

    Raises:
        ConfigError: The source is not one of these, or cannot be guarded.
    """

    @overload
    def __init__(
        self: SQLResource[Session], source: Engine, **options: Unpack[ResourceOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: SQLResource[AsyncSession], source: AsyncEngine, **options: Unpack[ResourceOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: SQLResource[B], source: sessionmaker[B], **options: Unpack[ResourceOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: SQLResource[A], source: async_sessionmaker[A], **options: Unpack[ResourceOptions]
    ) -> None: ...
    @overload
    def __init__(self: SQLResource[C], source: C, **options: Unpack[ResourceOptions]) -> None: ...
    @overload
    def __init__(
        self, source: AsyncPool[S] | Pool[S], **options: Unpack[ResourceOptions]
    ) -> None: ...
    @overload
    def __init__(
        self, source: Callable[[], Coroutine[Any, Any, S]], **options: Unpack[ResourceOptions]
    ) -> None: ...
    @overload
    def __init__(self, source: Callable[[], S], **options: Unpack[ResourceOptions]) -> None: ...
    def __init__(
        self,
        source: Any,
        *,
        fence: str = "txmq_fence",
        schema: str | None = None,
        check_wait: DurationLike = 0.2,
        entropy: Entropy | None = None,
    ) -> None:
        adapter: DatabaseAdapter[S] = adapter_of(source)
        self._adapter = adapter
        self.is_blocking: bool = adapter.is_blocking
        """Whether local transactions are for ``with``; otherwise they are for ``async with``."""
        self._problems: tuple[type[Exception], ...] = (ResourceError, *adapter.problems)
        self._threads = Threads("txmq-fence", RESOURCE_THREADS)
        self._fence = Fence(fence, schema)
        self._wait_ms = max(1, int(seconds("check_wait", check_wait) * 1000))
        self._batches = CheckBatches(lambda theirs: self._turn(self._check_all(theirs)))
        self._entropy = entropy or SystemEntropy()
        self._identity = ""
        self._is_closed = False

    has_second_phase: ClassVar[bool] = False
    """False: the database commits before the decision."""

    @property
    def identity(self) -> str:
        """The fence's identity, generated with its table and shared by all its users.

        Half messages carry it. A resource with another identity answers their checks with
        ``UNKNOWN``.

        Raises:
            UsageError: The fence was not verified yet.
        """
        if not self._identity:
            raise UsageError("verify the resource first")
        return self._identity

    async def verify(self) -> None:
        """Verify that the fence exists, has this version, and works; call it at start.

        Raises:
            FenceMissing: The table does not exist.
            FenceOutdated: The fence has another version.
            FenceElsewhere: Sessions see different fences.
            FenceUnsafe: Commits are not durable, or writes persist without a commit.
            DatabaseFailed: The database does not answer.
        """
        self._identity = await self._turn(self._verify(self._entropy.token(16).hex()))

    async def confirm(self, xid: str, state: LocalTransactionState) -> None:
        """Do nothing: there is no second phase."""

    async def attend(self) -> None:
        """Do nothing: a crash leaves nothing prepared."""

    def close(self) -> None:
        """Stop the threads of a blocking source; the source stays open."""
        self._is_closed = True
        self._threads.close()

    def local(self, xid: str, group: str, born_ms: int) -> SQLLocalTransaction[S]:
        """A local transaction, to be entered once.

        Args:
            xid: The transaction's id.
            group: The producer group that answers its checks.
            born_ms: Its start by this machine's clock.

        Raises:
            UsageError: The fence was not verified yet, or the id is invalid.
            LimitExceeded: The id is longer than the fence's column.
        """
        if not _XID.fullmatch(xid):
            raise UsageError(f"{xid!r} is not the id of a transaction")
        if len(xid) > XID_CHARS_MAX:
            raise LimitExceeded("the length of a transaction's id", XID_CHARS_MAX, len(xid))
        ours = Claim(xid, group, COMMITTED, born_ms, self.identity)
        return SQLLocalTransaction(self._fence, self._adapter, ours)

    async def check(
        self, xid: str, group: str, born_ms: int, *, identity: str = ""
    ) -> LocalTransactionState:
        """The outcome of a local transaction. One that has not begun yet can then never commit.

        ``UNKNOWN`` if it is in progress, if the database does not answer, or if its row may have
        been removed from the fence.

        Args:
            xid: The transaction's id.
            group: The producer group that received the check.
            born_ms: The birth time of its half message.
            identity: The fence that the half message names, if any.

        Raises:
            UsageError: The fence was not verified yet.
        """
        is_id = len(xid) <= XID_CHARS_MAX and _XID.fullmatch(xid)
        if identity not in ("", self.identity) or not is_id:
            log.warning("%.80r of fence %r is not known to %s", xid, identity, self.identity)
            return LocalTransactionState.UNKNOWN
        theirs = Claim(xid, group, ROLLED_BACK, born_ms, self.identity)
        try:
            row = await self._batches.settle(theirs)
        except self._problems as error:
            log.warning("the state of %s is not known now: %s", xid, error)
            return LocalTransactionState.UNKNOWN
        # A recovery does not know the group, so it neither writes nor compares one.
        if row.owner and group and row.owner != group:
            log.warning("%s belongs to group %s; %s was asked", xid, row.owner, group)
            return LocalTransactionState.UNKNOWN
        return _STATES[row.outcome]

    async def decided(self, xid: str) -> LocalTransactionState | None:
        """The fence's current decision on a transaction, if any; read-only.

        Raises:
            DatabaseFailed: The database does not answer.
        """
        try:
            known = await self._turn(outcome(self._fence, self._adapter, xid))
        except self._problems as error:
            raise DatabaseFailed(
                f"{self._fence.name} cannot be read now: {words(error)}"
            ) from error
        return None if known is None else _STATES[known]

    def may_retry(self, problem: BaseException) -> bool:
        """Whether a retry may succeed: the error is a serialization failure or a deadlock, and the
        local transaction left no trace.
        """
        return failure(problem) is Failure.RETRY

    async def clean(
        self,
        older_than: DurationLike,
        *,
        horizon: DurationLike | None = None,
        batch: int = FENCE_ROWS_REMOVED,
    ) -> int:
        """Remove old rows in batches; call it regularly, from any process.

        Each call removes the rows that the previous call announced. From the announcement on, a
        check that finds no row for such an old transaction answers ``UNKNOWN`` instead of presuming
        a rollback, so the broker parks it.

        Args:
            older_than: The age of rows to remove; ten minutes are added for clock differences.
            horizon: How long checks can still arrive; see :func:`check_horizon`.
            batch: Rows removed in one database transaction.

        Returns:
            The number of removed rows.

        Raises:
            ConfigError: Checks can still arrive for transactions of this age.
            FenceElsewhere: The fence is not the one that was verified.
            DatabaseFailed: The database does not answer, or a lock is held; call again.
            UsageError: The fence was not verified yet.
        """
        least_s = check_horizon() if horizon is None else seconds("horizon", horizon)
        older_s = seconds("older_than", older_than)
        if older_s < least_s:
            raise ConfigError(
                f"checks of a transaction can arrive for {least_s:.0f} s: rows that are "
                f"{older_s:.0f} s old are still needed"
            )
        older_ms = int(older_s * 1000)
        return await self._turn(self._clean(self.identity, older_ms, max(1, batch)))

    async def _turn(self, work: Coroutine[Any, Any, T]) -> T:
        if self.is_blocking:
            if self._is_closed:
                work.close()
                raise UsageError("this resource is closed: its threads have ended")
            return cast(T, await self._threads.run(lambda: drive(work)))
        return await work

    # The operations on the fence, in a thread of this resource if the source blocks

    async def _check_all(self, theirs: Sequence[Claim]) -> list[FenceRow | Exception]:
        """Settle undecided transactions; returns for each its final row in the fence, or an error.

        Several share a database transaction. If one of them is locked or fails, they are settled
        one by one, so that none affects another.
        """
        wait_ms = self._wait_ms
        if len(theirs) > 1 and _are_alike(theirs):
            try:
                return await self._check_together(theirs, wait_ms)
            except self._problems as error:
                if failure(error) is Failure.LOST:
                    return [error] * len(theirs)
                if failure(error) is Failure.LOCKED:
                    wait_ms = min(wait_ms, SPENT_WAIT_MS)
        found: list[FenceRow | Exception] = []
        for one in theirs:
            try:
                found.append(await self._check_alone(one, wait_ms))
            except self._problems as error:
                found.append(error)
                if failure(error) is Failure.LOST:
                    break
        return found + found[-1:] * (len(theirs) - len(found))

    async def _check_alone(self, theirs: Claim, wait_ms: int) -> FenceRow:
        async with open_with_lock_timeout(self._adapter, wait_ms) as db:
            found = await claim(self._fence, self._adapter, db, theirs)
            if found is not None:
                return found
            await db.commit()
            return FenceRow(theirs.outcome, theirs.owner)

    async def _check_together(
        self, theirs: Sequence[Claim], wait_ms: int
    ) -> list[FenceRow | Exception]:
        fence = self._fence
        # Always in the same order, so that two checks of the same transactions cannot deadlock.
        wanted = sorted(set(theirs))
        rows = [{"xid": one.xid, "owner": one.owner, "born_ms": one.born_ms} for one in wanted]
        claims = json.dumps(rows)
        async with open_with_lock_timeout(self._adapter, wait_ms) as db:
            await db.execute(
                fence.claims_of_checks[self._adapter.kind], claims=claims, known=wanted[0].identity
            )
            there = (await db.execute(fence.outcomes[self._adapter.kind], claims=claims)).rows
            found: dict[str, FenceRow | Exception] = {row[0]: FenceRow(*row[1:]) for row in there}
            for one in wanted:
                if one.xid not in found:
                    found[one.xid] = await no_row(fence, db, one)
            # ``found`` includes our own rows, so answer only after the commit.
            await db.commit()
        return [found[one.xid] for one in theirs]

    async def _verify(self, trial: str) -> str:
        """Verify the fence; returns its identity.

        Args:
            trial: A unique id for the trial row.

        Raises:
            ResourceError: As for :meth:`verify`.
        """
        try:
            identity = await self._look()
            await self._try_rollback(Claim(TRIAL + trial, "", COMMITTED, _ALWAYS_MS, identity))
        except self._adapter.problems as error:
            raise _refusal(self._fence, error) from error
        return identity

    async def _look(self) -> str:
        fence, adapter = self._fence, self._adapter
        db = await adapter.open()
        try:
            marks = (await db.execute(fence.about)).rows
            if len(marks) != 1:
                raise FenceMissing(
                    f"{fence.mark.fullname} has {len(marks)} rows, not one: run the statements of "
                    "`txmq schema sql` that insert into it"
                )
            version, identity, _ = marks[0]
            if version != FENCE_VERSION:
                raise FenceOutdated(
                    f"{fence.name} has version {version}, but this txmq needs version "
                    f"{FENCE_VERSION}: change all services and the table together"
                )
            await db.execute(fence.shape)
            values: tuple[object, ...] = ()
            for question in dialects.DURABILITY[adapter.kind]:
                values += tuple((await db.execute(question)).rows[0])
            if (doubt := dialects.doubts(adapter.kind, values)) is not None:
                raise FenceUnsafe(doubt)
            return str(identity)
        finally:
            await db.close()

    async def _try_rollback(self, trial: Claim) -> None:
        """Verify that a rollback works: it does not with autocommit, nor in MyISAM tables."""
        fence, adapter = self._fence, self._adapter
        # Write as a check does: MySQL's statement-based logging refuses writes in READ COMMITTED.
        async with open_with_lock_timeout(adapter, TRIAL_WAIT_MS) as db:
            if await claim(fence, adapter, db, trial) is not None:
                raise FenceUnsafe("this driver does not report how many rows an INSERT added")
        db = await adapter.open()
        try:
            if (await db.execute(fence.outcome, of_xid=trial.xid)).rows:
                await db.execute(fence.remove, of_xid=trial.xid)
                await db.commit()
                raise FenceUnsafe(
                    f"rolled-back rows stay in {fence.name}: switch autocommit off, and keep the "
                    "table in an engine that has transactions"
                )
            if [mark[1] for mark in (await db.execute(fence.about)).rows] != [trial.identity]:
                raise FenceElsewhere(f"two sessions see two different tables {fence.name}")
        finally:
            await db.close()

    async def _clean(self, identity: str, older_than_ms: int, batch: int) -> int:
        """Remove the rows that the last call announced, and announce those of ``older_than_ms``.

        After the announcement, rows of older transactions can no longer be inserted: neither by a
        check, which would presume a rollback, nor by a local transaction that stalled. Rows are
        removed one call later, when every statement that began before the announcement has ended.
        """
        try:
            announced_ms = await self._announce(identity, older_than_ms)
            removed, last = 0, batch
            while last >= batch:
                last = await self._remove(announced_ms - CLOCKS_APART_MS, batch)
                removed += last
        except self._adapter.problems as error:
            name = self._fence.name
            raise DatabaseFailed(f"{name} could not be cleaned now: {words(error)}") from error
        return removed

    async def _announce(self, identity: str, older_than_ms: int) -> int:
        """Announce a new limit; returns the previous one."""
        fence, adapter = self._fence, self._adapter
        async with open_with_lock_timeout(adapter, ANNOUNCE_WAIT_MS) as db:
            marks = (await db.execute(fence.about)).rows
            if [mark[1] for mark in marks] != [identity]:
                raise FenceElsewhere(f"{fence.name} is not the one that was verified at start")
            now_ms = (await db.execute(f"SELECT {dialects.NOW_MS[adapter.kind]}")).rows[0][0]
            before_ms = int(now_ms) - older_than_ms
            await db.execute(fence.announce, known=identity, before_ms=before_ms)
            await db.commit()
            return int(marks[0][2])

    async def _remove(self, before_ms: int, batch: int) -> int:
        fence, adapter = self._fence, self._adapter
        old = {"before_ms": before_ms, "batch": batch}
        async with open_with_lock_timeout(adapter, ANNOUNCE_WAIT_MS) as db:
            if adapter.kind != "mysql":
                gone = (await db.execute(fence.remove_old, **old)).changed
            else:
                # A DELETE of many rows locks each row that it scans, including those of running
                # local transactions. It would wait for them, and others would wait for it.
                gone = 0
                for (xid,) in (await db.execute(fence.old, **old)).rows:
                    gone += (await db.execute(fence.remove, of_xid=xid)).changed
            await db.commit()
            return gone


def _are_alike(theirs: Sequence[Claim]) -> bool:
    """Whether one statement is enough: all claims name one fence, and no transaction has two
    different claims.
    """
    is_one_fence = len({one.identity for one in theirs}) == 1
    return is_one_fence and len({one.xid for one in theirs}) == len(set(theirs))


def _refusal(fence: Fence, problem: Exception) -> ResourceError:
    found = failure(problem)
    if found is Failure.MISSING:
        return FenceMissing(
            f"table {fence.name} does not exist: run `{create_command('fence', fence.table)}`, "
            f"or have a migration run what `txmq schema sql` prints ({words(problem)})"
        )
    if found is Failure.CHANGED:
        return FenceOutdated(
            f"{fence.name} has other columns than this version uses ({words(problem)})"
        )
    if found is Failure.REFUSED:
        return FenceUnsafe(
            f"the database forbids what {fence.name} needs: SELECT and INSERT, and UPDATE and "
            f"DELETE to clean it ({words(problem)})"
        )
    return DatabaseFailed(f"the database did not answer: {words(problem)}")


Settle: TypeAlias = Callable[[list[Claim]], Coroutine[Any, Any, list[FenceRow | Exception]]]
_Waiting: TypeAlias = deque[tuple[Claim, asyncio.Future[FenceRow]]]


class CheckBatches:
    """Batches concurrent checks of one database.

    A single check is settled at once. While the maximum number of database transactions is running,
    new checks gather and share the next one.

    Args:
        settle: Settles several checks in one database transaction.
    """

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        # Several managers in different threads may share the resource.
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[_Waiting, Tasks]]
        self._lines = WeakKeyDictionary()

    async def settle(self, theirs: Claim) -> FenceRow:
        """Settle a transaction and return its final row in the fence.

        It is settled even if the caller is cancelled.

        Raises:
            Exception: Why the row is not known now.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._lines:
            self._lines[loop] = deque(), Tasks()
        waiting, tasks = self._lines[loop]
        answer: asyncio.Future[FenceRow] = loop.create_future()
        waiting.append((theirs, answer))
        if len(tasks) < RESOURCE_THREADS:
            tasks.start(self._work(waiting), "checks of a fence")
        return await answer

    async def _work(self, waiting: _Waiting) -> None:
        while waiting:
            batch = [waiting.popleft() for _ in range(min(len(waiting), FENCE_CHECKS_TOGETHER))]
            found: list[FenceRow | Exception]
            try:
                found = await self._settle([theirs for theirs, _ in batch])
            except Exception as error:  # noqa: BLE001 - all callers receive it
                found = [error] * len(batch)
            except BaseException:
                for _, answer in batch:
                    answer.cancel()
                raise
            for (_, answer), row in zip(batch, found, strict=True):
                if answer.done():
                    continue  # The caller was cancelled.
                if isinstance(row, Exception):
                    answer.set_exception(row)
                else:
                    answer.set_result(row)
