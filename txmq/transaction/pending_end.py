"""An END on its way to the broker, without a task that waits for it.

The connection calls it with the broker's answer. If the broker took the END, the transaction is
settled within this call. Otherwise a task repeats the END, or settles what the answer means.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from txmq.client.values import SendResult
from txmq.errors import OutcomeUnknown, TransportError, TxmqError, UsageError, refusal
from txmq.protocol.codes import SUCCESS
from txmq.protocol.command import Command
from txmq.transaction.end import EndAnswer, EndSender, StartedEnd
from txmq.transaction.listener import LocalAnswer
from txmq.transaction.state import EndReply, TransactionOutcome

__all__ = ["CLOSED", "DecidedRun", "PendingEnd"]

CLOSED: Final = "this producer was closed meanwhile"
"""The error text for a transaction whose producer no longer waits for the broker."""

_TAKEN: Final = EndAnswer(EndReply.TAKEN)


class DecidedRun(Protocol):
    """The transaction that an END decides; :class:`txmq.transaction.run.TransactionRun` is it."""

    def outcome_of(
        self, sent: SendResult, answer: LocalAnswer, taken: EndAnswer
    ) -> TransactionOutcome:
        """Derive the outcome from the broker's reply, and count it."""
        ...

    def go_on(self, ending: PendingEnd, error: TxmqError, deadline: float) -> asyncio.Task[None]:
        """Repeat an END that failed, if that is possible, and settle; in a task."""
        ...

    def note_unanswered(self) -> None:
        """Log that the producer stops before the broker has answered the END."""
        ...

    def enter(self) -> None:
        """Count the transaction as running, until :meth:`leave`."""
        ...

    def leave(self) -> None:
        """End the count."""
        ...


class PendingEnd:
    """The END of one transaction; it goes on even if the caller is cancelled. Until it has ended,
    the transaction counts as running.

    Args:
        run: The transaction.
        sent: The answer to its half message.
        answer: The end of its local transaction, which decides.
        pending: Holds it until an answer comes.
    """

    __slots__ = ("_pending", "_run", "_started", "_task", "answer", "future", "sent")

    def __init__(
        self,
        run: DecidedRun,
        sent: SendResult,
        answer: LocalAnswer,
        pending: dict[PendingEnd, None],
    ) -> None:
        self.sent: SendResult = sent
        self.answer: LocalAnswer = answer
        self._run = run
        self._pending = pending
        self._started: StartedEnd | None = None
        self._task: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[TransactionOutcome] = loop.create_future()
        """Resolves with the outcome, or with the error of the transaction."""

    def start(self, ends: EndSender) -> bool:
        """Send the END; returns false if the broker's connection is not open."""
        self._started = ends.start(self.sent, self.answer.state, self)
        if self._started is None:
            return False
        self._pending[self] = None
        self._run.enter()
        return True

    async def outcome(self) -> TransactionOutcome:
        """Wait for the outcome.

        Raises:
            TransactionConflict: The transaction had been decided otherwise before.
            OutcomeUnknown: The producer was closed meanwhile.
        """
        try:
            return await self.future
        except asyncio.CancelledError:
            if self._task is not None and self._task.cancelled():
                raise OutcomeUnknown(CLOSED) from None
            raise

    # Called by the connection

    def answered(self, answer: Command) -> None:
        """See :meth:`txmq.remoting.exchange.Waiter.answered`."""
        if answer.code == SUCCESS:
            self._settle(_TAKEN)
        else:
            self._go_on(refusal(answer.code, answer.remark or ""))

    def failed(self, error: TransportError) -> None:
        """See :meth:`txmq.remoting.exchange.Waiter.failed`."""
        self._go_on(error)

    # The end

    def _settle(self, taken: EndAnswer) -> None:
        self._pending.pop(self, None)
        outcome = self._run.outcome_of(self.sent, self.answer, taken)
        if not self.future.done():
            self.future.set_result(outcome)
        self._run.leave()

    def _go_on(self, error: TxmqError) -> None:
        self._pending.pop(self, None)
        assert self._started is not None, "an END that has an answer was sent"
        self._task = self._run.go_on(self, error, self._started.deadline)
        # A cancelled task sets no result, and may never have begun: its end releases the caller.
        self._task.add_done_callback(self._ended)

    def _ended(self, _: asyncio.Task[None]) -> None:
        if not (self.future.cancel() or self.future.cancelled()):
            self.future.exception()  # The task's error is logged, and its caller may have left.
        self._run.leave()

    def abandon(self) -> None:
        """Settle without an answer, because the producer stops."""
        if self._started is not None and self in self._pending:
            self._started.connection.break_off(self._started.opaque)
            self._run.note_unanswered()
            self._settle(EndAnswer(EndReply.NONE, UsageError(CLOSED)))
