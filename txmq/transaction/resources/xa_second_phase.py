"""The second phase: end the prepared branches of decided transactions.

It uses the branches' own connections if they are kept, or others of their pools.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, Generic, TypeVar, cast

from txmq.databases.adapter import DatabaseAdapter
from txmq.databases.guarded_transaction import drive
from txmq.errors import DatabaseFailed
from txmq.limits import XA_THREADS
from txmq.runtime.backoff import Backoff
from txmq.runtime.entropy import Entropy
from txmq.runtime.tasks import Threads
from txmq.transaction.resources import two_phase
from txmq.transaction.resources.prepared import can_name, gid_of
from txmq.transaction.resources.sql import SQLResource
from txmq.transaction.resources.xa_local import Branch
from txmq.transaction.state import LocalTransactionState
from txmq.transaction.story import note

__all__ = ["AT_ONCE_S", "SecondPhase", "within"]

S = TypeVar("S")
T = TypeVar("T")

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
AT_ONCE_S: Final = 1.0
"""How long the answer to a check waits until prepared branches are ended."""

_COMMIT: Final = LocalTransactionState.COMMIT


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


class SecondPhase(Generic[S]):
    """Ends the prepared branches of decided transactions.

    Args:
        adapters: The databases by their names.
        fence: The fence, which decides.
        confirm_s: How long it retries.
        entropy: Where chance comes from.
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
        """Uncount a manager; the last one returns kept connections."""
        self._attended -= 1
        if not self._attended:
            await self.give_back(self.kept)

    async def give_back(self, xids: Iterable[str]) -> None:
        """Return the connections of transactions that other processes ended."""
        async with AsyncExitStack() as stack:
            for xid in xids:
                stack.push_async_callback(self._close_all, self._kept.pop(xid, {}))

    async def _close_all(self, branches: Mapping[str, Branch[S]]) -> None:
        # All of them, even if this task is cancelled at one.
        async with AsyncExitStack() as stack:
            for name, branch in branches.items():
                stack.push_async_callback(self._close, name, branch)

    async def _close(self, name: str, branch: Branch[S]) -> None:
        await self.turn(name, branch.close())

    # What is decided

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
        """The same for the answer to a check, without retries.

        The broker waits for the decision, and another database must not delay it.
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
