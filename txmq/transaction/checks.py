"""Answers the brokers' checks of half messages.

A few checks run at a time; the others wait in a queue. When the queue is full, further checks are
dropped, and the broker asks again. If a handler takes too long, the broker receives "unknown", and
the next check starts. A plain function cannot be interrupted: it keeps its thread until it returns,
and its late answer is sent then. While it hangs, further checks of its transaction are answered
with "unknown", as are checks of a transaction that is still running here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Coroutine
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from txmq.client.observe.hooks import SendHooks, TransactionEnd
from txmq.errors import TransactionConflict
from txmq.limits import HUNG_CHECKS_MAX
from txmq.message import ReceivedMessage
from txmq.protocol.headers import CheckState
from txmq.remoting.connection import Connection
from txmq.runtime.signatures import is_async
from txmq.runtime.tasks import Tasks, Threads
from txmq.transaction.ends import EndAnswer, EndSender
from txmq.transaction.listener import LocalState
from txmq.transaction.machine import LocalAnswer, ask
from txmq.transaction.settings import TransactionSettings
from txmq.transaction.state import (
    OUTCOMES,
    SPELLINGS,
    EndReply,
    LocalTransactionState,
    TransactionTally,
)

__all__ = ["CheckAnswerer"]

log = logging.getLogger(__name__)

_UNKNOWN: Final = LocalAnswer(LocalTransactionState.UNKNOWN)


class ActiveCount:
    """Counts running work so that a stop can wait for it; a ``with`` block counts as one."""

    def __init__(self) -> None:
        self.count: int = 0
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()

    def __enter__(self) -> None:
        self.count += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if not self.count:
            self._idle.set()

    def until_done(self, task: asyncio.Task[Any]) -> None:
        """Count a task until it ends."""
        self.__enter__()
        task.add_done_callback(self.__exit__)

    async def wait(self) -> None:
        """Wait until the count is zero."""
        await self._idle.wait()


class _Check:
    """A transaction being checked. If several brokers ask, only the last one gets the answer."""

    __slots__ = ("connection", "counted", "header", "message")

    def __init__(
        self, connection: Connection, header: CheckState, message: ReceivedMessage
    ) -> None:
        self.connection = connection
        self.header = header
        self.message = message
        self.counted = ExitStack()


class CheckAnswerer:
    """Calls the application for each check, and sends its answer to the broker.

    Args:
        group: The producer group.
        check: Asks the application; it may be ``async``.
        ends: Sends the answers.
        settings: How many checks run at once, and for how long.
        tally: The producer's counters.
        watches: Returns the producer's watches, if it has any.
        undecided: The transactions still running here.
    """

    def __init__(
        self,
        group: str,
        check: Callable[[ReceivedMessage], LocalState],
        ends: EndSender,
        settings: TransactionSettings,
        tally: TransactionTally,
        watches: Callable[[], SendHooks | None],
        undecided: Container[str],
    ) -> None:
        # A hung check keeps its thread, so checks and local transactions use separate pools.
        self._threads = Threads(f"txmq-{group}-check", settings.check_workers + HUNG_CHECKS_MAX)
        self._check = check
        self._runner = None if is_async(check) else self._threads
        self._ends = ends
        self._settings = settings
        self._tally = tally
        self._hooks = watches
        self._undecided = undecided
        self._tasks = Tasks()
        self._waiting: dict[str, _Check] = {}
        self._running: dict[str, _Check] = {}
        self._hung: dict[str, _Check] = {}
        self.active: ActiveCount = ActiveCount()

    def take(self, connection: Connection, header: CheckState, message: ReceivedMessage) -> None:
        """Accept a broker's check; it is answered later, or dropped."""
        xid, check = message.id, _Check(connection, header, message)
        self._tally.checks += 1
        if xid in self._hung or message.xid in self._undecided:
            # Another call would probably hang too, and occupy a second thread. And a listener
            # cannot see a local transaction that is still running: it might report a rollback.
            self._start(self._answer(check, _UNKNOWN), xid)
        elif xid in self._running:
            known = self._running[xid]
            known.connection, known.header = connection, header
        elif xid in self._waiting:
            self._waiting[xid] = check
        elif self._has_room():
            self._run(xid, check)
        elif len(self._waiting) < self._settings.check_queue:
            self._waiting[xid] = check
        else:
            self._drop(xid)

    def _drop(self, xid: str) -> None:
        is_first = not self._tally.checks_dropped
        self._tally.checks_dropped += 1
        # Warn only once: brokers repeat dropped checks, perhaps thousands of them.
        level = logging.WARNING if is_first else logging.INFO
        log.log(
            level, "dropped the check of %s, which its broker repeats: %d wait, %d hang",
            xid, len(self._waiting), len(self._hung),
        )  # fmt: skip

    def _has_room(self) -> bool:
        is_free = len(self._running) < self._settings.check_workers
        return is_free and len(self._hung) < HUNG_CHECKS_MAX

    def _run(self, xid: str, check: _Check) -> None:
        self._running[xid] = check
        self._start(self._work(xid, check), xid)

    def _start(self, work: Coroutine[Any, Any, None], xid: str) -> asyncio.Task[None]:
        return self._tasks.start(work, f"check of transaction {xid}")

    def _advance(self) -> None:
        while self._waiting and self._has_room():
            xid = next(iter(self._waiting))
            self._run(xid, self._waiting.pop(xid))

    async def _work(self, xid: str, check: _Check) -> None:
        # Only one task and one timer per check: a group that comes back may receive 100,000.
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        late = loop.call_later(self._settings.check_timeout, self._write_off, xid, check, task)
        with ExitStack() as check.counted:
            check.counted.enter_context(self.active)
            try:
                answer = await self._ask(xid, check.message)
            except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
                raise
            except BaseException:
                log.exception("the check handler of transaction %s failed", xid)
                answer = _UNKNOWN
            finally:
                late.cancel()
                self._leave(xid, check)
            await self._answer(check, answer)

    def _write_off(self, xid: str, check: _Check, task: asyncio.Task[None]) -> None:
        if self._running.get(xid) is not check:
            return  # The handler has just answered.
        self._tally.checks_hung += 1
        self._hung[xid] = self._running.pop(xid)
        log.error(
            "the check of transaction %s takes longer than %s s and is answered with "
            '"unknown" for now; %d hang',
            xid, self._settings.check_timeout, len(self._hung),
        )  # fmt: skip
        # From now on, a stop waits for this answer, not for the handler.
        self.active.until_done(self._start(self._answer(check, _UNKNOWN), xid))
        check.counted.close()
        if self._runner is None:
            task.cancel()
        self._advance()

    def _leave(self, xid: str, check: _Check) -> None:
        for checks in (self._running, self._hung):
            if checks.get(xid) is check:
                del checks[xid]
        self._advance()

    async def _ask(self, xid: str, message: ReceivedMessage) -> LocalAnswer:
        watches, call = self._hooks(), partial(self._check, message)
        if watches is None:
            return await ask(xid, call, self._runner)
        ended = watches.before_check(message)
        answer = _UNKNOWN
        try:
            answer = await ask(xid, call, self._runner)
        finally:
            ended(answer.state.name)
        return answer

    async def _answer(self, check: _Check, answer: LocalAnswer) -> None:
        message, header, state = check.message, check.header, answer.state
        watches = self._hooks()
        ended = None
        if watches is not None and state is not LocalTransactionState.UNKNOWN:
            place, broker = header.offset_msg_id or message.offset_id, message.queue.broker
            ending = TransactionEnd(message, message.id, place, broker, SPELLINGS[state], True)
            ended = watches.before_end(ending)
        taken = EndAnswer(EndReply.NONE)
        try:
            taken = await self._ends.answer(
                check.connection, header, message.topic, message.id, state
            )
        finally:
            if ended is not None:
                ended(taken.reply.value)
        self._note(message.id, state, taken)

    def _note(self, xid: str, state: LocalTransactionState, taken: EndAnswer) -> None:
        match state:
            case LocalTransactionState.COMMIT:
                self._tally.checks_committed += 1
            case LocalTransactionState.ROLLBACK:
                self._tally.checks_rolled_back += 1
            case LocalTransactionState.UNKNOWN:
                self._tally.checks_unknown += 1
        if (state, taken.reply) not in OUTCOMES:
            self._tally.conflicts += 1
            log.error("%s", TransactionConflict(xid, state.name, taken.reply.value))
        elif taken.error is not None:
            log.warning("the answer to the check of %s: %s", xid, taken.error)
        else:
            log.debug("the check of %s was answered with %s", xid, state.name, extra={"xid": xid})

    async def stop(self) -> None:
        """Stop all checks, and let the threads end."""
        self._waiting.clear()
        try:
            await self._tasks.stop()
        finally:
            self._threads.close()
