"""What an open transactional producer has under way: local transactions, ENDs and checks.

A local transaction that was begun is seen through as far as it can be, and a decision is told also
where whoever asked for it no longer waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar

from txmq.client.cluster_client import ClusterClient
from txmq.client.observe.hooks import TransactionEnd
from txmq.errors import OutcomeUnknown, UsageError
from txmq.limits import HUNG_CHECKS_MAX
from txmq.quantity import quantity
from txmq.runtime.tasks import Tasks
from txmq.runtime.threads import Runner, Threads
from txmq.transaction.checks import Checks
from txmq.transaction.ends import Ends, Heard
from txmq.transaction.listener import Called, Half, HalfMessage, Said, TransactionListener
from txmq.transaction.settings import TransactionSettings
from txmq.transaction.state import (
    SPELLINGS,
    LocalTransactionState,
    Reply,
    end_of,
)
from txmq.transaction.story import Step, Stories, note
from txmq.transaction.tally import TransactionTally
from txmq.transaction.underway import Underway

__all__ = ["Opened"]

log = logging.getLogger(__name__)

T = TypeVar("T")
Decide: TypeAlias = Callable[
    ["Opened", Any, LocalTransactionState, Exception | None], Coroutine[Any, Any, T]
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
        stories: Told what happens.
    """

    def __init__(
        self,
        client: ClusterClient,
        group: str,
        listener: TransactionListener,
        settings: TransactionSettings,
        tally: TransactionTally,
        stories: Stories,
    ) -> None:
        self.is_closing = self._is_stopped = False
        self.local = Underway()
        self._undecided: dict[str, int] = {}
        self._group = group
        self._stories = stories
        self._tasks = Tasks()
        self._ends = Ends(client, settings)
        here = Threads(f"txmq-{group}-local", settings.local_threads)
        # Those that hang keep their threads, and must not take them from others.
        checking = Threads(f"txmq-{group}-check", settings.check_workers + HUNG_CHECKS_MAX)
        self._threads = here, checking
        self._execute = Called(listener.execute_local_transaction, here)
        check = Called(listener.check_local_transaction, checking)
        self.checks = Checks(
            group, check, self._ends, settings, tally, stories.look, self._undecided.__contains__
        )

    def __str__(self) -> str:
        """What there is, as logs say it."""
        return (
            f"{quantity(len(self.local), 'local transaction')} and "
            f"{quantity(len(self.checks.underway), 'check')}"
        )

    def _start(self, work: Coroutine[Any, Any, T], half: Half) -> asyncio.Task[T]:
        return self._tasks.start(work, f"transaction {half.id}")

    # Local transactions

    def undecided(self, xid: str) -> Undecided:
        """While inside, a local transaction runs here or is about to, and nobody is asked what
        became of it.
        """
        return Undecided(self._undecided, xid)

    async def execute(
        self,
        half: Half,
        arg: object,
        runner: Runner | None,
        decide: Decide[T],
        left: Callable[[Any], LocalTransactionState],
    ) -> T:
        """Run a local transaction, and decide what it comes to.

        Args:
            half: Its half message, or what becomes of that.
            arg: For the application.
            runner: Where a plain one runs, unless in a thread of its own.
            decide: What is to be done in the end, also where the caller is cancelled.
            left: What is known then of one that is cancelled as well, by its ``arg``.
        """
        if isinstance(half, HalfMessage) and (doubt := half.doubt()) is not None:
            said = self._heard(half, Said(LocalTransactionState.ROLLBACK, doubt))
        elif self._execute.is_async:
            try:
                said = await self._ask(half, arg, None)
            except asyncio.CancelledError:
                if not self._is_stopped:
                    self.behind(decide(self, half, left(arg), None), half)
                raise
        else:
            # No thread can be ended: it is waited for by somebody whom nobody cancels.
            return await self.through(self._follow(half, arg, runner, decide), half)
        # Also of a producer that has closed meanwhile: what is committed is committed.
        return await self.through(decide(self, half, *said), half)

    async def _follow(self, half: Half, arg: object, runner: Runner | None, decide: Decide[T]) -> T:
        with self.undecided(half.id):
            try:
                said = await self._ask(half, arg, runner)
            except asyncio.CancelledError:
                said = Said(LocalTransactionState.UNKNOWN, OutcomeUnknown(_CLOSED))
                self._heard(half, said)
            return await decide(self, half, *said)

    async def _ask(self, half: Half, arg: object, runner: Runner | None) -> Said:
        self._stories.tell(half.id, Step.CALLED)
        with self._stories.inside(half.id):
            said = await self._execute.ask(half.id, half, arg, runner=runner)
            if said.problem is not None:
                note(half.id, "it ends with %r", said.problem)
        self._stories.tell(half.id, Step.SAID, said.state)
        return self._heard(half, said)

    def _heard(self, half: Half, said: Said) -> Said:
        self._stories.tell(half.id, Step.HEARD, said.state)
        return said

    # Decisions

    def behind(self, work: Coroutine[Any, Any, T], half: Half) -> asyncio.Task[T]:
        """Have something done that a stop waits for, and nobody else."""
        task = self._start(work, half)
        self.local.until_done(task)
        return task

    async def through(self, work: Coroutine[Any, Any, T], half: Half) -> T:
        """See something through: it goes on, and is counted, also where the caller is cancelled.

        Raises:
            OutcomeUnknown: The producer was closed in the middle.
        """
        if self._is_stopped:
            return await work  # What is begun now would be cancelled at once.
        heard: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        task = self._start(_heard_by(heard, work), half)
        # One that is cancelled tells nobody, least of all before it has begun.
        task.add_done_callback(lambda _: heard.cancel())
        try:
            return await heard
        except asyncio.CancelledError:
            if task.cancelled():
                raise OutcomeUnknown(_CLOSED) from None
            self.local.until_done(task)
            raise

    async def tell(self, half: HalfMessage, state: LocalTransactionState) -> Heard:
        """Tell the broker a decision."""
        sent, watches, told = half.sent, self._stories.look(), None
        if watches is not None:
            said, broker = SPELLINGS[state], sent.queue.broker
            ending = TransactionEnd(
                half, half.id, sent.offset_id, broker, said, is_after_check=False
            )
            with self._stories.inside(half.id):
                told = watches.before_end(ending)
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


class Undecided:
    """What :meth:`Opened.undecided` gives; transactions that are, each as often as it is inside."""

    __slots__ = ("_inside", "_xid")

    def __init__(self, inside: dict[str, int], xid: str) -> None:
        self._inside = inside
        self._xid = xid

    def __enter__(self) -> None:
        self._inside[self._xid] = self._inside.get(self._xid, 0) + 1

    def __exit__(self, *_: object) -> None:
        left = self._inside.pop(self._xid) - 1
        if left:
            self._inside[self._xid] = left


async def _heard_by(heard: asyncio.Future[T], work: Coroutine[Any, Any, T]) -> T:
    """Tell at once what comes of some work, some turns of the loop earlier than a shield would."""
    try:
        result = await work
    except Exception as problem:
        if not heard.done():
            heard.set_exception(problem)
        raise
    if not heard.done():
        heard.set_result(result)
    return result
