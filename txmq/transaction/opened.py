"""What an open transactional producer has under way: local transactions, ENDs and checks.

A local transaction that was begun is seen through as far as it can be, and a decision is told also
where whoever asked for it no longer waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, TypeVar

from txmq.client.client import Client
from txmq.client.values import SendStatus
from txmq.client.watch import Ending, SendWatches
from txmq.errors import UsageError
from txmq.limits import HUNG_CHECKS_MAX
from txmq.runtime.tasks import Tasks
from txmq.transaction.checks import Checks
from txmq.transaction.ends import Ends, Heard
from txmq.transaction.listener import Called, HalfMessage, Said, TransactionListener
from txmq.transaction.settings import TransactionSettings
from txmq.transaction.state import (
    SPELLINGS,
    LocalTransactionState,
    Reply,
    TransactionOutcome,
    end_of,
)
from txmq.transaction.story import Step, tell
from txmq.transaction.tally import TransactionTally
from txmq.transaction.threads import Runner, Threads
from txmq.transaction.underway import Underway

__all__ = ["Opened"]

log = logging.getLogger(__name__)

T = TypeVar("T")
Decide: TypeAlias = Callable[
    [HalfMessage, LocalTransactionState, Exception | None],
    Coroutine[Any, Any, TransactionOutcome],
]

_CLOSED: Final = "this producer was closed meanwhile"


class Opened:
    """What is under way, and the threads for it.

    Args:
        client: The way to the brokers.
        group: The producer group.
        listener: The application.
        settings: How much at once, and for how long.
        tally: What is counted.
        look: Tells who looks on.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        listener: TransactionListener,
        settings: TransactionSettings,
        tally: TransactionTally,
        look: Callable[[], SendWatches | None],
    ) -> None:
        self.is_closing = self._is_stopped = False
        self.local = Underway()
        self._undecided: Counter[str] = Counter()
        self._group = group
        self._look = look
        self._tasks = Tasks()
        self._ends = Ends(client, settings)
        here = Threads(f"txmq-{group}-local", settings.local_threads)
        # Those that hang keep their threads, and must not take them from others.
        checking = Threads(f"txmq-{group}-check", settings.check_workers + HUNG_CHECKS_MAX)
        self._threads = here, checking
        self._execute = Called(listener.execute_local_transaction, here)
        check = Called(listener.check_local_transaction, checking)
        self.checks = Checks(
            group, check, self._ends, settings, tally, look, self._undecided.__contains__
        )

    def __str__(self) -> str:
        """What there is, as logs say it."""
        return f"{len(self.local)} local transactions and {len(self.checks.underway)} checks"

    def _start(self, work: Coroutine[Any, Any, T], half: HalfMessage) -> asyncio.Task[T]:
        return self._tasks.start(work, f"transaction {half.id}")

    # Local transactions

    @contextmanager
    def undecided(self, half: HalfMessage) -> Iterator[None]:
        """While inside, a local transaction runs here, and nobody is asked what became of it."""
        self._undecided[half.id] += 1
        try:
            yield
        finally:
            self._forget(half.id)

    def _forget(self, xid: str) -> None:
        self._undecided[xid] -= 1
        if not self._undecided[xid]:
            del self._undecided[xid]

    async def execute(
        self, half: HalfMessage, arg: object, runner: Runner | None, decide: Decide
    ) -> Said:
        """Run a local transaction, and say what it came to.

        Args:
            half: Its half message.
            arg: For the application.
            runner: Where a plain one runs, unless in a thread of its own.
            decide: What is to be done in the end where the caller is cancelled and it runs on.
        """
        if half.sent.status is not SendStatus.OK:
            # As stock producers do: what may be lost with the broker's memory is given up.
            status = half.sent.status.name
            unsafe = UsageError(f"the half message is stored, but not safely: {status}")
            return Said(LocalTransactionState.ROLLBACK, unsafe)
        if self._execute.is_async:
            return await self._ask(half, arg, None)
        # No thread can be ended: it is waited for by somebody whom nobody cancels.
        asking = self._start(self._ask(half, arg, runner), half)
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            if asking.cancelled():
                return Said(LocalTransactionState.UNKNOWN, UsageError(_CLOSED))
            following = self.behind(self._follow(half, asking, decide), half)
            self._undecided[half.id] += 1
            following.add_done_callback(lambda _: self._forget(half.id))
            raise

    async def _ask(self, half: HalfMessage, arg: object, runner: Runner | None) -> Said:
        tell(half.id, Step.CALLED)
        watches, said = self._look(), Said(LocalTransactionState.UNKNOWN)
        ended = None if watches is None else watches.begin_local(half, half.id)
        try:
            said = await self._execute.ask(half.id, half, arg, runner=runner)
        finally:
            if ended is not None:
                ended(said.state.name)
        tell(half.id, Step.SAID, said.state.name)
        return said

    async def _follow(self, half: HalfMessage, asking: asyncio.Task[Said], decide: Decide) -> None:
        state, problem = await asking
        await decide(half, state, problem)

    # Decisions

    def behind(self, work: Coroutine[Any, Any, T], half: HalfMessage) -> asyncio.Task[T]:
        """Have something done that a stop waits for, and nobody else."""
        task = self._start(work, half)
        self.local.until_done(task)
        return task

    async def through(self, work: Coroutine[Any, Any, T], half: HalfMessage) -> T:
        """See something through: it goes on, and is counted, also where the caller is cancelled.

        Raises:
            UsageError: The producer was closed before it began.
        """
        if self._is_stopped:
            return await work  # What is begun now would be cancelled at once.
        task = self._start(work, half)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise UsageError(_CLOSED) from None
            self.local.until_done(task)
            raise

    async def tell(self, half: HalfMessage, state: LocalTransactionState) -> Heard:
        """Tell the broker a decision."""
        sent, watches = half.sent, self._look()
        said, broker = SPELLINGS[state], sent.queue.broker
        ending = Ending(half, half.id, sent.offset_id, broker, said, is_after_check=False)
        told = None if watches is None else watches.begin_end(ending)
        heard = Heard(Reply.NONE, UsageError(_CLOSED))
        try:
            heard = await self._ends.send(sent.queue, end_of(self._group, sent, state))
        except asyncio.CancelledError:
            # Only a stop cancels what is seen through; that it was decided is known all the same.
            log.info("nobody knows whether the END of transaction %s was heard", half.id)
        finally:
            if told is not None:
                told(heard.reply.value)
        return heard

    # The end

    async def wait(self) -> None:
        """Return once nothing is under way any more."""
        await self.local.wait()
        await self.checks.underway.wait()

    async def stop(self) -> None:
        """Leave what is still under way."""
        self._is_stopped = True
        try:
            await self.checks.stop()
            await self._tasks.stop()
        finally:
            for each in self._threads:
                each.close()
