"""Brokers' questions about half messages, and the answers.

Some handlers run at once, others wait, and what finds no room is left to the broker, which asks
again. A handler that takes too long is answered for with "unknown", and its place is given to
another; a plain function cannot be ended, so it keeps a thread until it returns, and what it says
then is told all the same. As long as it hangs, its transaction is not asked about again here, and
neither is one whose local transaction still runs here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, Final

from txmq.client.observe.hooks import SendHooks, TransactionEnd
from txmq.errors import TransactionConflict
from txmq.limits import HUNG_CHECKS_MAX
from txmq.message import ReceivedMessage
from txmq.protocol.headers import CheckState
from txmq.remoting.connection import Connection
from txmq.runtime.tasks import Tasks
from txmq.transaction.ends import Ends, Heard
from txmq.transaction.listener import Called, Said
from txmq.transaction.settings import TransactionSettings
from txmq.transaction.state import (
    OUTCOMES,
    SPELLINGS,
    LocalTransactionState,
    Reply,
    end_of_check,
)
from txmq.transaction.tally import TransactionTally
from txmq.transaction.underway import Underway

__all__ = ["Checks"]

log = logging.getLogger(__name__)

_UNKNOWN: Final = Said(LocalTransactionState.UNKNOWN)


class _Asked:
    """One transaction that brokers ask about; where several do, the last that did is answered."""

    __slots__ = ("connection", "counted", "header", "message")

    def __init__(
        self, connection: Connection, header: CheckState, message: ReceivedMessage
    ) -> None:
        self.connection = connection
        self.header = header
        self.message = message
        self.counted = ExitStack()


class Checks:
    """Has the application asked, and tells brokers what it says.

    Args:
        group: The producer group.
        called: The application's method.
        ends: Who tells brokers.
        settings: How much at once, and for how long.
        tally: What is counted.
        watches: Tells who looks on.
        is_undecided: Tells whether a local transaction still runs here.
    """

    def __init__(
        self,
        group: str,
        called: Called,
        ends: Ends,
        settings: TransactionSettings,
        tally: TransactionTally,
        watches: Callable[[], SendHooks | None],
        is_undecided: Callable[[str], bool],
    ) -> None:
        self._group = group
        self._called = called
        self._ends = ends
        self._settings = settings
        self._tally = tally
        self._watches = watches
        self._is_undecided = is_undecided
        self._tasks = Tasks()
        self._waiting: dict[str, _Asked] = {}
        self._running: dict[str, _Asked] = {}
        self._hung: dict[str, _Asked] = {}
        self.underway = Underway()

    def take(self, connection: Connection, header: CheckState, message: ReceivedMessage) -> None:
        """A broker asks; it is answered later, or asks again."""
        xid, asked = message.id, _Asked(connection, header, message)
        self._tally.checks += 1
        if xid in self._hung or self._is_undecided(xid):
            # Once more would take one more thread, for one that hangs already; and of one that
            # still runs its listener would find nothing, and might say that there never was any.
            self._start(self._answer(asked, _UNKNOWN), xid)
        elif xid in self._running:
            known = self._running[xid]
            known.connection, known.header = connection, header
        elif xid in self._waiting:
            self._waiting[xid] = asked
        elif self._has_room():
            self._run(xid, asked)
        elif len(self._waiting) < self._settings.check_queue:
            self._waiting[xid] = asked
        else:
            self._drop(xid)

    def _drop(self, xid: str) -> None:
        is_first = not self._tally.checks_dropped
        self._tally.checks_dropped += 1
        # Said aloud once; what is dropped comes again, and may come by the thousand.
        level = logging.WARNING if is_first else logging.INFO
        log.log(
            level, "the check of %s is left to its broker, which asks again: %d wait, %d hang",
            xid, len(self._waiting), len(self._hung),
        )  # fmt: skip

    def _has_room(self) -> bool:
        is_free = len(self._running) < self._settings.check_workers
        return is_free and len(self._hung) < HUNG_CHECKS_MAX

    def _run(self, xid: str, asked: _Asked) -> None:
        self._running[xid] = asked
        self._start(self._work(xid, asked), xid)

    def _start(self, work: Coroutine[Any, Any, None], xid: str) -> asyncio.Task[None]:
        return self._tasks.start(work, f"check of transaction {xid}")

    def _advance(self) -> None:
        while self._waiting and self._has_room():
            xid = next(iter(self._waiting))
            self._run(xid, self._waiting.pop(xid))

    async def _work(self, xid: str, asked: _Asked) -> None:
        # One task and a timer: a group that comes back is asked about a hundred thousand at a time.
        working, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert working is not None
        late = loop.call_later(self._settings.check_timeout_s, self._write_off, xid, asked, working)
        with ExitStack() as asked.counted:
            asked.counted.enter_context(self.underway)
            try:
                said = await self._ask(xid, asked.message)
            except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
                raise
            except BaseException:
                # Neither an answer nor an Exception.
                log.exception("the check handler of transaction %s failed", xid)
                said = _UNKNOWN
            finally:
                late.cancel()
                self._leave(xid, asked)
            await self._answer(asked, said)

    def _write_off(self, xid: str, asked: _Asked, working: asyncio.Task[None]) -> None:
        if self._running.get(xid) is not asked:
            return  # It has answered in this very moment.
        self._tally.checks_hung += 1
        self._hung[xid] = self._running.pop(xid)
        log.error(
            "the check of transaction %s takes longer than %s s and is answered with "
            '"unknown" for now; %d hang',
            xid, self._settings.check_timeout_s, len(self._hung),
        )  # fmt: skip
        # A stop waits for this answer, and no longer for the handler.
        self.underway.until_done(self._start(self._answer(asked, _UNKNOWN), xid))
        asked.counted.close()
        if self._called.is_async:
            working.cancel()
        self._advance()

    def _leave(self, xid: str, asked: _Asked) -> None:
        for those in (self._running, self._hung):
            if those.get(xid) is asked:
                del those[xid]
        self._advance()

    async def _ask(self, xid: str, message: ReceivedMessage) -> Said:
        watches = self._watches()
        if watches is None:
            return await self._called.ask(xid, message)
        ended = watches.before_check(message)
        said = _UNKNOWN
        try:
            said = await self._called.ask(xid, message)
        finally:
            ended(said.state.name)
        return said

    async def _answer(self, asked: _Asked, said: Said) -> None:
        message, header, state = asked.message, asked.header, said.state
        end = end_of_check(self._group, message.topic, message.id, header, state)
        watches = self._watches()
        told = None
        if watches is not None and state is not LocalTransactionState.UNKNOWN:
            place, broker = header.offset_msg_id or message.offset_id, message.queue.broker
            ending = TransactionEnd(message, message.id, place, broker, SPELLINGS[state], True)
            told = watches.before_end(ending)
        heard = Heard(Reply.NONE)
        try:
            heard = await self._ends.answer(asked.connection, end)
        finally:
            if told is not None:
                told(heard.reply.value)
        self._note(message.id, state, heard)

    def _note(self, xid: str, state: LocalTransactionState, heard: Heard) -> None:
        self._tally.answered(state)
        if (state, heard.reply) not in OUTCOMES:
            self._tally.conflicts += 1
            log.error("%s", TransactionConflict(xid, state.name, heard.reply.value))
        elif heard.problem is not None:
            log.warning("the answer to the check of %s: %s", xid, heard.problem)
        else:
            log.debug("the check of %s was answered with %s", xid, state.name, extra={"xid": xid})

    async def stop(self) -> None:
        """Ask and answer no more."""
        self._waiting.clear()
        await self._tasks.stop()
