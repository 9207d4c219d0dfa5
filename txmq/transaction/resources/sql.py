"""The resource manager of one database: local transactions with a fence, and their checks."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Coroutine
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from txmq.databases.adapter import DatabaseAdapter
from txmq.databases.failures import Failure, failure, words
from txmq.databases.guarded_transaction import drive
from txmq.databases.sources import AsyncPool, DjangoConnection, Pool, adapter_of
from txmq.errors import ConfigError, DatabaseFailed, LimitExceeded, ResourceError, UsageError
from txmq.limits import FENCE_ROWS_REMOVED, RESOURCE_THREADS, XID_CHARS_MAX
from txmq.runtime.entropy import Entropy, SystemEntropy
from txmq.runtime.tasks import Threads
from txmq.settings.units import DurationLike, seconds
from txmq.transaction.resources import steps
from txmq.transaction.resources.check_batches import CheckBatches
from txmq.transaction.resources.fence import COMMITTED, ROLLED_BACK, Fence, check_horizon
from txmq.transaction.resources.local import Claim, FencedTransaction, FenceRow, outcome
from txmq.transaction.state import LocalTransactionState

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
    from sqlalchemy.orm import Session, sessionmaker

__all__ = ["ResourceOptions", "SQLResource"]

S = TypeVar("S")
A = TypeVar("A", bound="AsyncSession")
B = TypeVar("B", bound="Session")
C = TypeVar("C", bound="DjangoConnection")
T = TypeVar("T")

log = logging.getLogger(__name__)


_XID: Final = re.compile(r"[ -~]*[!-~]")
"""Printable ASCII that does not end with a space: MySQL ignores trailing spaces in comparisons."""
_STATES: Final = {
    COMMITTED: LocalTransactionState.COMMIT,
    ROLLED_BACK: LocalTransactionState.ROLLBACK,
}


class ResourceOptions(TypedDict, total=False):
    """The options of a resource beside its source."""

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
        entropy: Where chance comes from.

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
        self._problems: tuple[type[Exception], ...] = (ResourceError, *adapter.problems)
        self._threads = Threads("txmq-fence", RESOURCE_THREADS)
        self._fence = Fence(fence, schema)
        self._wait_ms = max(1, int(seconds("check_wait", check_wait) * 1000))
        self._batches = CheckBatches(self._settle)
        self._entropy = entropy or SystemEntropy()
        self._identity = ""
        self._is_closed = False

    has_second_phase: ClassVar[bool] = False
    """It has committed before the decision."""

    @property
    def is_blocking(self) -> bool:
        """Whether local transactions are for ``with``; otherwise they are for ``async with``."""
        return self._adapter.is_blocking

    @property
    def identity(self) -> str:
        """The fence's identity, generated with its table and shared by all its users.

        A resource with another identity does not answer checks of a half message that carries this
        one.

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
        trial = self._entropy.token(16).hex()
        self._identity = await self._turn(steps.verify(self._fence, self._adapter, trial))

    async def confirm(self, xid: str, state: LocalTransactionState) -> None:
        """Nothing to do: there is no second phase."""

    async def attend(self) -> None:
        """Nothing to do: a crash leaves nothing prepared."""

    def close(self) -> None:
        """Stop the threads of a blocking source; the source stays open."""
        self._is_closed = True
        self._threads.close()

    def local(self, xid: str, group: str, born_ms: int) -> FencedTransaction[S]:
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
        return FencedTransaction(self._fence, self._adapter, ours)

    async def check(
        self, xid: str, group: str, born_ms: int, *, identity: str = ""
    ) -> LocalTransactionState:
        """The outcome of a local transaction. One that has not begun by now never commits.

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

    async def _settle(self, theirs: list[Claim]) -> list[FenceRow | Exception]:
        return await self._turn(steps.check(self._fence, self._adapter, theirs, self._wait_ms))

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
        """Remove old rows in batches of some hundreds; call it regularly, from any process.

        A call removes the rows that the previous call announced. From then on, a check of an older
        transaction answers ``UNKNOWN``, so the broker parks it: the check presumes nothing.

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
                f"checks of a transaction can come for {least_s:.0f} s: rows of {older_s:.0f} s "
                "are still needed"
            )
        older_ms = int(older_s * 1000)
        work = steps.clean(self._fence, self._adapter, self.identity, older_ms, max(1, batch))
        return await self._turn(work)

    async def _turn(self, work: Coroutine[Any, Any, T]) -> T:
        if self._adapter.is_blocking:
            if self._is_closed:
                work.close()
                raise UsageError("this resource is closed: no thread of it is left")
            return cast(T, await self._threads.run(lambda: drive(work)))
        return await work
