"""The second phase: what is prepared and decided is ended, over its own connections where these are
kept, and else over others of its pools.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, Generic, TypeVar, cast

from txmq.databases.door import Door, drive
from txmq.errors import DatabaseFailed
from txmq.limits import XA_THREADS
from txmq.runtime.backoff import Backoff
from txmq.runtime.entropy import Entropy
from txmq.runtime.threads import Threads
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
    """Do something, and wait for it no longer than this, give or take a moment.

    Cancelling a driver whose database hangs means waiting for the database all the same. Work that
    does not end at once is left alone.

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
        working.exception()  # Its caller no longer waits.


class SecondPhase(Generic[S]):
    """Ends what is prepared of transactions that are decided.

    Args:
        doors: The databases by their names.
        fence: Says which fence decides.
        confirm_s: How long it is tried.
        entropy: Where chance comes from.
    """

    def __init__(
        self,
        doors: Mapping[str, Door[S]],
        fence: SQLResource[Any],
        confirm_s: float,
        entropy: Entropy,
    ) -> None:
        self._doors = doors
        self._fence = fence
        self._confirm_s = confirm_s
        self._entropy = entropy
        # Each has its own: a database that hangs keeps those that wait for it.
        self._threads = {name: Threads(f"txmq-xa-{name}", XA_THREADS) for name in doors}
        self._attended = 0
        self._kept: dict[str, Mapping[str, Branch[S]]] = {}

    async def turn(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        """Do something with a database, in a thread if that blocks."""
        if self._doors[name].is_blocking:
            return cast(T, await self._threads[name].run(lambda: drive(work)))
        return await work

    def close(self) -> None:
        """Let the threads end."""
        for threads in self._threads.values():
            threads.close()

    # Connections that are kept

    @property
    def kept(self) -> list[str]:
        """The transactions that have their connections still."""
        return list(self._kept)

    def keep(self, xid: str, branches: Mapping[str, Branch[S]]) -> bool:
        """Keep the branches of a decided transaction, if a manager is open that ends them."""
        is_attended = bool(self._attended)
        if is_attended:
            self._kept[xid] = branches
        return is_attended

    def begin(self) -> None:
        """A manager is open, and ends what is kept from now on."""
        self._attended += 1

    async def end(self) -> None:
        """A manager closes; with the last one, kept connections are given back."""
        self._attended -= 1
        if not self._attended:
            await self.give_back(self.kept)

    async def give_back(self, xids: Iterable[str]) -> None:
        """Give back the connections of transactions that others have ended."""
        async with AsyncExitStack() as stack:
            for xid in xids:
                stack.push_async_callback(self._close_all, self._kept.pop(xid, {}))

    async def _close_all(self, branches: Mapping[str, Branch[S]]) -> None:
        # All of them, also where this is cancelled at one.
        async with AsyncExitStack() as stack:
            for name, branch in branches.items():
                stack.push_async_callback(self._close, name, branch)

    async def _close(self, name: str, branch: Branch[S]) -> None:
        await self.turn(name, branch.close())

    # What is decided

    async def confirm(self, xid: str, state: LocalTransactionState) -> None:
        """End what is prepared of a transaction that is decided, everywhere at once; what fails is
        tried again, and left to a recovery after ``confirm_s``.

        Raises:
            DatabaseFailed: Not everywhere so far.
        """
        kept = dict(self._kept.pop(xid, {}))
        ends = [self._persist(name, xid, state, kept) for name in self._doors]
        try:
            late = [text for text in await asyncio.gather(*ends) if text is not None]
        finally:
            # Of those that were cancelled before they had begun.
            await self._close_all(kept)
        if late:
            raise DatabaseFailed(
                f"transaction {xid} is decided, {state.name.lower()}, and is carried out once "
                f"these databases answer: {'; '.join(late)}"
            )

    async def follow(self, xid: str, state: LocalTransactionState) -> None:
        """The same for the answer to a check: only where databases answer at once.

        The broker waits for the decision, and another database must not delay it.
        """
        kept = dict(self._kept.pop(xid, {}))
        names = [name for name in self._doors if can_name(xid, name, self._fence.identity)]
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
        """End one branch; what stood in the way, if it took too long."""
        problem = "it did not answer"

        async def work() -> None:
            nonlocal problem
            # Work that has not begun leaves its connection to the caller.
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
        """End one branch; what stands in the way."""
        try:
            await self.finish(name, xid, state, is_there=is_there, branch=branch)
        except two_phase.problems_of(self._doors[name]) as error:
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
        """End one branch, if it still waits.

        Args:
            name: The branch.
            xid: The transaction.
            state: What is decided.
            is_there: Whether it should still wait. Otherwise it is looked for first: a server's
                log need not tell of what was never prepared.
            branch: Has a connection of its own for it.
        """
        door, gid = self._doors[name], gid_of(xid, name, self._fence.identity)
        commits = state is _COMMIT
        if branch is not None:
            is_done = await self.turn(name, branch.finish(commits=commits))
        elif is_there or await self.turn(name, two_phase.is_prepared(door, gid)):
            is_done = await self.turn(name, two_phase.finish(door, gid, commits=commits))
        else:
            return
        if is_done:
            note(xid, "branch %s is %s", name, "committed" if commits else "rolled back")
