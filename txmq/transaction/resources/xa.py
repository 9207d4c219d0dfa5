"""Several databases in one transaction: each prepares, a fence decides, all follow.

There is no second coordinator. The decision is a row of the fence in the first database; a check
competes for it as for any other transaction. The broker receives the decision by an END. The
transaction's process, the answer to a check, or a recovery ends the prepared branches as the row
says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, Unpack, cast, overload

from txmq.databases.adapter import DatabaseAdapter
from txmq.databases.guarded_transaction import drive
from txmq.databases.sources import AsyncPool, Pool, adapter_of
from txmq.errors import ConfigError, DatabaseFailed, ResourceError, TwoPhaseUnavailable, TxmqError
from txmq.limits import FENCE_ROWS_REMOVED, XA_THREADS
from txmq.runtime.backoff import Backoff
from txmq.runtime.entropy import Entropy, SystemEntropy
from txmq.runtime.tasks import Threads
from txmq.settings.units import DurationLike, seconds
from txmq.transaction.resources import two_phase
from txmq.transaction.resources.sql import ResourceOptions, SQLResource
from txmq.transaction.resources.two_phase import (
    Duty,
    Prepared,
    can_name,
    check_branch,
    duty,
    gid_of,
)
from txmq.transaction.resources.xa_local import Branch, XALocalTransaction
from txmq.transaction.state import LocalTransactionState
from txmq.transaction.story import note

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
    from sqlalchemy.orm import Session, sessionmaker

__all__ = ["InDoubtBranch", "Look", "Recovered", "XAResource"]

S = TypeVar("S")
A = TypeVar("A", bound="AsyncSession")
B = TypeVar("B", bound="Session")
T = TypeVar("T")

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
AT_ONCE_S: Final = 1.0
"""How long the answer to a check waits for the prepared branches to end."""

_COMMIT, _ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
_UNKNOWN: Final = LocalTransactionState.UNKNOWN


class InDoubtBranch(NamedTuple):
    """A prepared transaction that has not ended."""

    branch: str
    """The database it is in."""
    prepared: Prepared
    decided: LocalTransactionState | None
    """The fence's decision, if any."""
    duty: Duty
    """The action that a recovery would take now."""

    @property
    def xid(self) -> str:
        """The transaction's id; empty if it is not ours."""
        return "" if self.prepared.parts is None else self.prepared.parts.xid


class Look(NamedTuple):
    """The prepared transactions found in all databases."""

    waiting: list[InDoubtBranch]
    """The oldest of each database first."""
    silent: dict[str, str]
    """The databases that did not answer, and why."""


class Recovered(NamedTuple):
    """The result of one recovery, counted in prepared transactions."""

    committed: int = 0
    rolled_back: int = 0
    left: int = 0
    """Left prepared: they may still be decided, or the fence no longer remembers them."""
    failed: int = 0
    """Their database refused, or did not answer."""
    silent: tuple[str, ...] = ()
    """Databases that did not answer; the next recovery tries them again."""

    @property
    def is_complete(self) -> bool:
        """Whether the recovery ended everything that it had to end."""
        return not self.failed and not self.silent


class XAOptions(ResourceOptions, total=False):
    """The options of a resource, without its sources."""

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
        confirm_timeout: How long a caller waits for the second phase and its retries.
        horizon: How long a prepared transaction may be undecided before a recovery rolls it back,
            if no check has. Must be longer than local transactions take.
        recover_interval: How often an open manager recovers.
        entropy: The source of randomness.

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
            raise ConfigError("an XAResource needs databases, by their names")
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
        self._confirm_s = seconds("confirm_timeout", confirm_timeout)
        self._horizon_s = seconds("horizon", horizon)
        self._recover_every_s = seconds("recover_interval", recover_interval)
        self._second = SecondPhase(self._adapters, self._fence, self._confirm_s, self._entropy)

    def _check_sources(self) -> None:
        for name, adapter in self._adapters.items():
            if not adapter.can_prepare:
                raise ConfigError(f"{name} is not a PostgreSQL used through psycopg")
            if adapter.is_blocking is not self.is_blocking:
                raise ConfigError(f"{name} differs from the first: let all block, or all be async")

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

    def local(self, xid: str, group: str, born_ms: int) -> XALocalTransaction[S]:
        """A transaction's first phase, to be entered once; see :meth:`SQLResource.local`.

        :meth:`confirm` carries out its decision; until then it keeps its connections, if a manager
        is open.

        Raises:
            UsageError: The databases were not verified yet, or the id is invalid.
            LimitExceeded: The id is too long for the name of a prepared transaction.
        """
        branches = {
            name: Branch(name, adapter, gid_of(xid, name, self.identity))
            for name, adapter in self._adapters.items()
        }
        return XALocalTransaction(
            xid, branches, self._fence.local(xid, group, born_ms), self._second.keep
        )

    def may_retry(self, problem: BaseException) -> bool:
        """Whether a retry may succeed; see :meth:`SQLResource.may_retry`."""
        # If a branch may still be prepared, the error is a txmq error, whatever its cause.
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
        limit_s = self._horizon_s if horizon is None else seconds("horizon", horizon)
        seen = Look([], {})
        known: dict[str, LocalTransactionState | None] = {}
        for name in self._adapters:
            try:
                looking = self._second.turn(name, two_phase.found(self._adapters[name]))
                found = await within(self._confirm_s, looking)
            except two_phase.problems_of(self._adapters[name]) as error:
                seen.silent[name] = str(error) or "it did not answer in time"
                continue
            for item in found:
                if item.parts is None or item.parts[1:] != (name, self._fence.identity):
                    if also_others:
                        seen.waiting.append(InDoubtBranch(name, item, None, Duty.NONE))
                    continue
                xid = item.parts.xid
                # Read the fence after the list: an attempt is prepared before it is decided.
                if xid not in known:
                    known[xid] = await self._decided(xid)
                what = duty(known[xid], item.age_s, limit_s)
                seen.waiting.append(InDoubtBranch(name, item, known[xid], what))
        return seen

    async def recover(self, horizon: DurationLike | None = None) -> Recovered:
        """End decided prepared transactions, and roll back those undecided for longer than the
        horizon.

        Any process may run it at any time, even concurrently: the row of the fence decides, and it
        never changes.

        Args:
            horizon: Overrides the resource's horizon.

        Raises:
            DatabaseFailed: The fence is not readable.
            UsageError: It was not verified yet.
        """
        done = dict.fromkeys(Duty, 0)
        failed = 0
        kept = set(self._second.kept)
        waiting, silent = await self.look(horizon)
        for name, why in silent.items():
            log.warning("cannot look for prepared transactions in %s now: %s", name, why)
        for branch in waiting:
            if branch.xid in self._second.kept and branch.prepared.age_s < self._confirm_s:
                done[Duty.WAIT] += 1  # This process is ending it, over its own connections.
                kept.discard(branch.xid)
                continue
            try:
                done[await within(self._confirm_s, self._do(branch))] += 1
            except two_phase.problems_of(self._adapters[branch.branch]) as error:
                failed += 1
                log.warning("%s stays prepared for now: %s", branch.prepared.gid, error)
        await self._second.give_back(kept)
        return Recovered(
            committed=done[Duty.COMMIT],
            rolled_back=done[Duty.ROLL_BACK],
            left=done[Duty.WAIT],
            failed=failed,
            silent=tuple(silent),
        )

    async def _decided(self, xid: str) -> LocalTransactionState | None:
        try:
            return await within(self._confirm_s, self._fence.decided(xid))
        except TimeoutError as error:
            raise DatabaseFailed("the fence did not answer in time") from error

    async def _do(self, waiting: InDoubtBranch) -> Duty:
        xid, what = waiting.xid, waiting.duty
        if what is Duty.ASK:
            state = await self._fence.check(xid, "", waiting.prepared.prepared_ms)
            what = duty(None if state is _UNKNOWN else state, 0.0, 1.0)
        if what is Duty.WAIT:
            return what
        state = _COMMIT if what is Duty.COMMIT else _ROLLBACK
        await self._second.finish(waiting.branch, xid, state, is_there=True)
        # A younger one has only just been decided, and its own manager is about to end it.
        level = logging.WARNING if waiting.prepared.age_s >= AT_ONCE_S else logging.DEBUG
        log.log(
            level,
            "%s was left prepared for %.0f s: %s",
            waiting.prepared.gid,
            waiting.prepared.age_s,
            "committed" if state is _COMMIT else "rolled back",
        )
        return what

    async def attend(self) -> None:
        """Recover now and then regularly, until cancelled; an open manager runs this."""
        self._second.begin()
        try:
            while True:
                try:
                    await self._round()
                except (TxmqError, OSError) as error:
                    log.warning("cannot look for prepared transactions now: %s", error)
                await asyncio.sleep(self._recover_every_s)
        finally:
            await self._second.end()

    async def _round(self) -> None:
        """Recover once; if cancelled, wait briefly for the recovery to end."""
        # A driver loses a connection if a statement is cancelled halfway.
        working = asyncio.ensure_future(self.recover())
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            await asyncio.wait((working,), timeout=AT_ONCE_S)
            if not working.done():
                working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            raise

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
                f"a transaction has been prepared for {oldest:.0f} s, and its row is still needed: "
                "run `txmq xa list` and `txmq xa recover`"
            )
        return await self._fence.clean(older_than, horizon=horizon, batch=batch)


class SecondPhase(Generic[S]):
    """Ends the prepared branches of decided transactions.

    Args:
        adapters: The databases by their names.
        fence: The fence, which decides.
        confirm_s: How long it retries.
        entropy: The source of randomness.
    """

    def __init__(
        self,
        adapters: Mapping[str, DatabaseAdapter[S]],
        fence: SQLResource[Any],
        confirm_s: float,
        entropy: Entropy,
    ) -> None:
        self._adapters = adapters
        self._fence = fence
        self._confirm_s = confirm_s
        self._entropy = entropy
        # Each database has its own threads, because a hung database blocks the threads that wait
        # for it.
        self._threads = {name: Threads(f"txmq-xa-{name}", XA_THREADS) for name in adapters}
        self._attended = 0
        self._kept: dict[str, Mapping[str, Branch[S]]] = {}

    async def turn(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        """Run work on a database, in a thread if it blocks."""
        if self._adapters[name].is_blocking:
            return cast(T, await self._threads[name].run(lambda: drive(work)))
        return await work

    def close(self) -> None:
        """Stop the threads."""
        for threads in self._threads.values():
            threads.close()

    # Connections that are kept

    @property
    def kept(self) -> list[str]:
        """The transactions that still keep their connections."""
        return list(self._kept)

    def keep(self, xid: str, branches: Mapping[str, Branch[S]]) -> bool:
        """Keep the branches of a decided transaction, if an open manager will end them."""
        is_attended = bool(self._attended)
        if is_attended:
            self._kept[xid] = branches
        return is_attended

    def begin(self) -> None:
        """Count an open manager, which ends kept branches."""
        self._attended += 1

    async def end(self) -> None:
        """Stop counting a manager; the last one returns all kept connections."""
        self._attended -= 1
        if not self._attended:
            await self.give_back(self.kept)

    async def give_back(self, xids: Iterable[str]) -> None:
        """Return the connections of transactions that other processes ended."""
        async with AsyncExitStack() as stack:
            for xid in xids:
                stack.push_async_callback(self._close_all, self._kept.pop(xid, {}))

    async def _close_all(self, branches: Mapping[str, Branch[S]]) -> None:
        # Close all branches, even if this task is cancelled while it closes one.
        async with AsyncExitStack() as stack:
            for name, branch in branches.items():
                stack.push_async_callback(self._close, name, branch)

    async def _close(self, name: str, branch: Branch[S]) -> None:
        await self.turn(name, branch.close())

    # Ending decided branches

    async def confirm(self, xid: str, state: LocalTransactionState) -> None:
        """End the prepared branches of a decided transaction, all databases in parallel.

        Failed branches are retried; after ``confirm_s`` they are left to a recovery.

        Raises:
            DatabaseFailed: Some branches have not ended yet.
        """
        kept = dict(self._kept.pop(xid, {}))
        ends = [self._persist(name, xid, state, kept) for name in self._adapters]
        try:
            late = [text for text in await asyncio.gather(*ends) if text is not None]
        finally:
            # For branches cancelled before they began.
            await self._close_all(kept)
        if late:
            raise DatabaseFailed(
                f"transaction {xid} is decided, {state.name.lower()}, and is carried out once "
                f"these databases answer: {'; '.join(late)}"
            )

    async def follow(self, xid: str, state: LocalTransactionState) -> None:
        """End the branches for the answer to a check, without retries.

        The broker waits for the answer, so a slow database must not delay it.
        """
        kept = dict(self._kept.pop(xid, {}))
        names = [name for name in self._adapters if can_name(xid, name, self._fence.identity)]
        ends = [self._end_at_once(name, xid, state, kept) for name in names]
        try:
            await asyncio.gather(*ends)
        finally:
            await self._close_all(kept)

    async def _end_at_once(
        self, name: str, xid: str, state: LocalTransactionState, kept: dict[str, Branch[S]]
    ) -> None:
        async def work() -> str | None:
            branch = kept.pop(name, None)
            return await self._try(name, xid, state, is_there=False, branch=branch)

        try:
            problem = await within(AT_ONCE_S, work())
        except TimeoutError:
            problem = "it did not answer at once"
        if problem is not None:
            log.warning("branch %s of %s is left to a recovery: %s", name, xid, problem)

    async def _persist(
        self, name: str, xid: str, state: LocalTransactionState, kept: dict[str, Branch[S]]
    ) -> str | None:
        """End one branch with retries; returns the last error if it took too long."""
        problem = "it did not answer"

        async def work() -> None:
            nonlocal problem
            # If the work has not begun, the caller still owns the connection.
            branch, is_there = kept.pop(name, None), state is _COMMIT
            backoff = Backoff(self._entropy, FIRST_PAUSE_S, LONGEST_PAUSE_S)
            found = await self._try(name, xid, state, is_there=is_there, branch=branch)
            while found is not None:
                problem = found
                log.warning("branch %s of %s is ended again: %s", name, xid, problem)
                await asyncio.sleep(backoff.next_pause())
                found = await self._try(name, xid, state, is_there=is_there)

        try:
            await within(self._confirm_s, work())
        except TimeoutError:
            return f"{name}: {problem}"
        return None

    async def _try(
        self,
        name: str,
        xid: str,
        state: LocalTransactionState,
        *,
        is_there: bool,
        branch: Branch[S] | None = None,
    ) -> str | None:
        """Try to end one branch; returns the error."""
        try:
            await self.finish(name, xid, state, is_there=is_there, branch=branch)
        except two_phase.problems_of(self._adapters[name]) as error:
            return str(error)
        return None

    async def finish(
        self,
        name: str,
        xid: str,
        state: LocalTransactionState,
        *,
        is_there: bool,
        branch: Branch[S] | None = None,
    ) -> None:
        """End one branch, if it is still prepared.

        Args:
            name: The branch.
            xid: The transaction.
            state: The decision.
            is_there: Whether it should still be prepared. Otherwise, a query checks first, to avoid
                errors in the server's log.
            branch: The branch with its own connection, if kept.
        """
        adapter, gid = self._adapters[name], gid_of(xid, name, self._fence.identity)
        commits = state is _COMMIT
        if branch is not None:
            is_done = await self.turn(name, branch.finish(commits=commits))
        elif is_there or await self.turn(name, two_phase.is_prepared(adapter, gid)):
            is_done = await self.turn(name, two_phase.finish(adapter, gid, commits=commits))
        else:
            return
        if is_done:
            note(xid, "branch %s is %s", name, "committed" if commits else "rolled back")


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Await work with a hard time limit.

    Cancelling a driver whose database hangs would still wait for the database. So work that does
    not end at once is abandoned.

    Raises:
        TimeoutError: It took too long.
    """
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait((working,), timeout=seconds)
    finally:
        if not working.done():
            working.cancel()
            working.add_done_callback(_forget)
            await asyncio.wait((working,), timeout=AT_ONCE_S)
    if not working.done() or working.cancelled():
        raise TimeoutError
    return working.result()


def _forget(working: asyncio.Future[Any]) -> None:
    if not working.cancelled():
        working.exception()  # The caller was cancelled.
