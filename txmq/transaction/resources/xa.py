"""Several databases in one transaction: each prepares, a fence decides, all follow.

There is no second coordinator. The decision is a row of the fence in the first database; a check
competes for it as for any other transaction. The broker receives the decision by an END. The
transaction's process, the answer to a check, or a recovery ends the prepared branches as the row
says.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, Unpack, overload

from txmq.databases.adapter import DatabaseAdapter
from txmq.databases.sources import AsyncPool, Pool, adapter_of
from txmq.errors import ConfigError, DatabaseFailed, ResourceError, TwoPhaseUnavailable
from txmq.limits import FENCE_ROWS_REMOVED
from txmq.runtime.entropy import Entropy, SystemEntropy
from txmq.settings.units import DurationLike, seconds
from txmq.transaction.resources import two_phase
from txmq.transaction.resources.prepared import check_branch, gid_of
from txmq.transaction.resources.sql import ResourceOptions, SQLResource
from txmq.transaction.resources.xa_local import Branch, XALocal
from txmq.transaction.resources.xa_recovery import InDoubtBranch, Look, Recovered, XARecovery
from txmq.transaction.resources.xa_second_phase import SecondPhase
from txmq.transaction.state import LocalTransactionState

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
    from sqlalchemy.orm import Session, sessionmaker

__all__ = ["InDoubtBranch", "Look", "Recovered", "XAResource"]

S = TypeVar("S")
A = TypeVar("A", bound="AsyncSession")
B = TypeVar("B", bound="Session")

_UNKNOWN: Final = LocalTransactionState.UNKNOWN


class XAOptions(ResourceOptions, total=False):
    """The options of a resource beside its sources."""

    confirm_timeout: DurationLike
    horizon: DurationLike
    recover_interval: DurationLike


class XAResource(Generic[S]):
    """Several PostgreSQL databases that take part in one transaction.

    ::

        resource = XAResource({"icbc": icbc_engine, "ccb": ccb_engine})
        tm = TransactionManager("transfer", names, resource)

        @tm.transactional(topic="transfer")
        def transfer(banks: Mapping[str, Session], order: Transfer) -> None:
            banks["icbc"].execute(...)
            banks["ccb"].execute(...)

    The function receives one session of each database, by name. Its writes become visible only
    after all databases have prepared and the decision is made. :meth:`recover` ends the branches
    that a crash leaves prepared; an open manager calls it regularly.

    The first database has the fence. Do not change names and order while any branch is prepared.

    Args:
        sources: The databases by their names, as for :class:`SQLResource`; all blocking, or all
            asyncio. SQLAlchemy sources must use psycopg.
        fence: The fence table.
        schema: Its schema; by default, the session's default schema.
        check_wait: How long a check waits for a decision in progress.
        confirm_timeout: How long a caller waits for the second phase, which is retried meanwhile.
        horizon: How long a prepared transaction may be undecided before a recovery rolls it back,
            if no check has. Must be longer than local transactions take.
        recover_interval: How often an open manager recovers.
        entropy: Where chance comes from.

    Raises:
        ConfigError: A source is invalid or cannot prepare, blocking and asyncio sources are mixed,
            or a name is invalid.
    """

    @overload
    def __init__(
        self: XAResource[Session], sources: Mapping[str, Engine], **options: Unpack[XAOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: XAResource[AsyncSession],
        sources: Mapping[str, AsyncEngine],
        **options: Unpack[XAOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: XAResource[B], sources: Mapping[str, sessionmaker[B]], **options: Unpack[XAOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: XAResource[A],
        sources: Mapping[str, async_sessionmaker[A]],
        **options: Unpack[XAOptions],
    ) -> None: ...
    @overload
    def __init__(
        self, sources: Mapping[str, AsyncPool[S] | Pool[S]], **options: Unpack[XAOptions]
    ) -> None: ...
    @overload
    def __init__(
        self,
        sources: Mapping[str, Callable[[], Coroutine[Any, Any, S]]],
        **options: Unpack[XAOptions],
    ) -> None: ...
    @overload
    def __init__(
        self, sources: Mapping[str, Callable[[], S]], **options: Unpack[XAOptions]
    ) -> None: ...
    def __init__(
        self,
        sources: Mapping[str, Any],
        *,
        fence: str = "txmq_fence",
        schema: str | None = None,
        check_wait: DurationLike = 0.2,
        confirm_timeout: DurationLike = 10.0,
        horizon: DurationLike = 300.0,
        recover_interval: DurationLike = 30.0,
        entropy: Entropy | None = None,
    ) -> None:
        if not sources:
            raise ConfigError("an XAResource has databases, by their names")
        self._adapters: dict[str, DatabaseAdapter[S]] = {}
        for name, source in sources.items():
            check_branch(name)
            self._adapters[name] = adapter_of(source)
        self._check_sources()
        self._entropy = entropy or SystemEntropy()
        self._fence: SQLResource[Any] = SQLResource(
            next(iter(sources.values())), fence=fence, schema=schema, check_wait=check_wait,
            entropy=self._entropy,
        )  # fmt: skip
        confirm_s = seconds("confirm_timeout", confirm_timeout)
        self._second = SecondPhase(self._adapters, self._fence, confirm_s, self._entropy)
        self._recovery = XARecovery(
            self._adapters, self._fence, self._second, confirm_s,
            seconds("horizon", horizon), seconds("recover_interval", recover_interval),
        )  # fmt: skip

    def _check_sources(self) -> None:
        for name, adapter in self._adapters.items():
            if not adapter.can_prepare:
                raise ConfigError(f"{name} is not a PostgreSQL used through psycopg")
            if adapter.is_blocking is not self.is_blocking:
                raise ConfigError(f"{name} is of another colour: let all block, or all be async")

    @property
    def is_blocking(self) -> bool:
        """Whether its transactions are for ``with``; otherwise they are for ``async with``."""
        return next(iter(self._adapters.values())).is_blocking

    @property
    def identity(self) -> str:
        """The identity of the deciding fence; see :attr:`SQLResource.identity`.

        Raises:
            UsageError: The databases were not verified yet.
        """
        return self._fence.identity

    async def verify(self, *, only_fence: bool = False) -> None:
        """Verify that the fence works and that every database can prepare; call it at start.

        Args:
            only_fence: Skip the trial of preparing; for processes that only recover.

        Raises:
            ResourceError: As for :meth:`SQLResource.verify`.
            TwoPhaseUnavailable: A database does not prepare transactions.
        """
        await self._fence.verify()
        if only_fence:
            return
        try:
            await self._try_all()
        except TwoPhaseUnavailable:
            # Transactions of crashed processes may occupy all slots, and only a recovery ends them.
            found = await self.recover()
            if not found.committed + found.rolled_back:
                raise
            await self._try_all()

    async def _try_all(self) -> None:
        for name, adapter in self._adapters.items():
            trial = f"trial-{self._entropy.token(16).hex()}"
            gid = gid_of(trial, name, self.identity)
            try:
                await self._second.turn(name, two_phase.verify(adapter, gid))
            except ResourceError as error:
                if await self._fence.decided(trial) is not None:
                    continue  # It was prepared, and a recovery with a short horizon ended it first.
                error.args = (f"{name}: {error}",)
                raise

    def close(self) -> None:
        """Stop the threads of blocking sources; the sources stay open."""
        self._fence.close()
        self._second.close()

    # The first phase

    def local(self, xid: str, group: str, born_ms: int) -> XALocal[S]:
        """A transaction's first phase, to be entered once; see :meth:`SQLResource.local`.

        :meth:`confirm` carries out its decision; until then it keeps its connections, if a manager
        is open.

        Raises:
            UsageError: The databases were not verified yet, or the id is invalid.
            LimitExceeded: The id is longer than a prepared transaction's name may be.
        """
        branches = {
            name: Branch(name, adapter, gid_of(xid, name, self.identity))
            for name, adapter in self._adapters.items()
        }
        return XALocal(xid, branches, self._fence.local(xid, group, born_ms), self._second.keep)

    def may_retry(self, problem: BaseException) -> bool:
        """Whether a retry may succeed; see :meth:`SQLResource.may_retry`."""
        # If a trace may remain, the error is a txmq error, whatever the cause.
        return not isinstance(problem, DatabaseFailed) and self._fence.may_retry(problem)

    # The second phase

    async def confirm(self, xid: str, state: LocalTransactionState) -> None:
        """End the prepared branches of a decided transaction, all databases in parallel.

        Failed branches are retried; after ``confirm_timeout`` they are left to a recovery.

        Raises:
            DatabaseFailed: Some branches have not ended yet.
        """
        if state is not _UNKNOWN:
            await self._second.confirm(xid, state)

    # Checks and recovery

    async def check(
        self, xid: str, group: str, born_ms: int, *, identity: str = ""
    ) -> LocalTransactionState:
        """The outcome of a transaction; see :meth:`SQLResource.check`.

        Its prepared branches end accordingly, if their databases answer at once.
        """
        state = await self._fence.check(xid, group, born_ms, identity=identity)
        if state is not _UNKNOWN:
            await self._second.follow(xid, state)
        return state

    async def look(self, horizon: DurationLike | None = None, *, also_others: bool = False) -> Look:
        """The prepared transactions, and what a recovery would do with each.

        A prepared transaction is ours if its name contains this fence's identity and the name of
        its database.

        Args:
            horizon: Overrides the resource's horizon.
            also_others: Whether to include other prepared transactions.

        Raises:
            DatabaseFailed: The fence is not readable.
            UsageError: It was not verified yet.
        """
        return await self._recovery.look(_optional(horizon), also_others=also_others)

    async def recover(self, horizon: DurationLike | None = None) -> Recovered:
        """End decided prepared transactions, and roll back those undecided for longer than the
        horizon.

        Any process may run it at any time, also concurrently: the row of the fence decides, and it
        never changes.

        Args:
            horizon: Overrides the resource's horizon.

        Raises:
            DatabaseFailed: The fence is not readable.
            UsageError: It was not verified yet.
        """
        return await self._recovery.recover(_optional(horizon))

    async def attend(self) -> None:
        """Recover now and then regularly, until cancelled; an open manager runs this."""
        await self._recovery.attend()

    async def clean(
        self,
        older_than: DurationLike,
        *,
        horizon: DurationLike | None = None,
        batch: int = FENCE_ROWS_REMOVED,
    ) -> int:
        """Remove old rows of the fence; see :meth:`SQLResource.clean`.

        Raises:
            ResourceError: A transaction that old is still prepared, and needs its row.
            TxmqError: As for :meth:`SQLResource.clean`.
        """
        waiting, silent = await self.look()
        if silent:
            raise DatabaseFailed(f"cannot look for prepared transactions in {', '.join(silent)}")
        oldest = max((branch.prepared.age_s for branch in waiting), default=0.0)
        if oldest >= seconds("older_than", older_than):
            raise ResourceError(
                f"something has been prepared for {oldest:.0f} s, and its row is needed: run "
                "`txmq xa list` and `txmq xa recover`"
            )
        return await self._fence.clean(older_than, horizon=horizon, batch=batch)


def _optional(horizon: DurationLike | None) -> float | None:
    return None if horizon is None else seconds("horizon", horizon)
