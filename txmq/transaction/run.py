"""One transaction of a producer from beginning to end: begin, work, decide, settle.

:meth:`TransactionRun.transact` reads in that order. The half message is stored, the local
transaction runs, the broker receives the decision as an END, and the outcome follows from the
broker's reply. A decision reaches the broker even if the caller no longer waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from txmq.client.cluster_client import ClusterClient
from txmq.client.observe.hooks import TransactionEnd
from txmq.client.values import SendResult, SendStatus
from txmq.errors import (
    Effect,
    OutcomeUnknown,
    RemoteProtocolError,
    ResourceError,
    RollBack,
    TransactionConflict,
    TxmqError,
    UsageError,
)
from txmq.message import Message
from txmq.protocol.record import position_in
from txmq.runtime.tasks import Runner, Tasks, Threads
from txmq.transaction.end import EndAnswer, EndSender
from txmq.transaction.listener import (
    HalfMessage,
    LocalAnswer,
    TransactionListener,
    doubt_of,
)
from txmq.transaction.listener_method import ListenerMethod
from txmq.transaction.pending_end import CLOSED, PendingEnd
from txmq.transaction.resource import Resource
from txmq.transaction.settings import TransactionSettings
from txmq.transaction.state import (
    OUTCOMES,
    SPELLINGS,
    EndReply,
    LocalTransactionState,
    TransactionOutcome,
    TransactionState,
    TransactionTally,
)
from txmq.transaction.story import Step, Stories, note

__all__ = ["ActiveCount", "ActiveTransactions", "TransactionRun"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_ROLLBACK: Final = LocalTransactionState.ROLLBACK
_UNKNOWN: Final = LocalTransactionState.UNKNOWN
_USUAL: Final = OUTCOMES[LocalTransactionState.COMMIT, EndReply.TAKEN]
_UNFOLLOWED: Final = nullcontext()
_IF_STORED: Final = "if it is stored, the broker will ask;"
_NOT_CONFIRMED: Final = (
    "transaction %s is %s, but its broker has not confirmed that, and may ask: %s"
)


@dataclass(slots=True)
class TransactionRun:
    """One transaction, in one producer."""

    runs: ActiveTransactions
    xid: str
    is_followed: bool
    """Whether a watch or the log receives its steps."""
    message: Message | None = None
    """Its message, unless the local transaction makes that."""
    sent: SendResult | None = None
    """The broker's answer to its half message once that is stored."""
    known_half: HalfMessage | None = None
    """Its half message, if it was needed before."""
    answer: LocalAnswer | None = None
    """The end of its local transaction; from then on no half message is sent."""
    left: LocalTransactionState = _UNKNOWN
    """The state of its local transaction if the caller is cancelled now."""

    @property
    def half(self) -> HalfMessage | None:
        """Its half message once that is stored."""
        # Made when needed: most functions of managers never look at it.
        if self.known_half is None and self.sent is not None and self.message is not None:
            half = self.runs.half_of(self.message, self.xid)
            self.known_half = HalfMessage(
                topic=half.topic, body=half.body, tags=half.tags, keys=half.keys,
                properties=half.properties, flag=half.flag, id=self.xid, sent=self.sent,
            )  # fmt: skip
        return self.known_half

    @property
    def _is_safe(self) -> bool:
        """Whether its half message, if it has one, is stored safely."""
        return self.sent is None or self.sent.status is SendStatus.OK

    def tell(self, step: Step, detail: object = "") -> None:
        """Report a step to whatever follows this transaction."""
        if self.is_followed:
            self.runs.stories.tell(self.xid, step, detail)

    def inside(self) -> AbstractContextManager[None]:
        """While inside, spans and notes of this task or thread belong to the present step."""
        return self.runs.stories.inside(self.xid) if self.is_followed else _UNFOLLOWED

    async def transact(
        self, arg: object, runner: Runner | None = None
    ) -> TransactionOutcome | None:
        """Run the whole transaction. Return ``None`` if no half message was sent.

        Args:
            arg: For the application.
            runner: Where a plain local transaction runs, unless in a thread of the producer.

        Raises:
            TransactionConflict: The transaction had been decided otherwise before.
            OutcomeUnknown: The producer was closed meanwhile; a broker will ask.
            TxmqError: The half message was not stored, or its broker did not answer.
        """
        runs = self.runs
        runs.enter(self.xid)
        try:
            if self.message is not None:
                await self.begin(self.message)
            if runs.execute.is_async:
                answer = await self._work_here(arg)
                found = self._end_or_outcome(answer)
                if found is None:
                    found = await runs.shield(self.finish(answer), self.xid)
            else:
                # A thread cannot be cancelled, so a task of its own waits for it.
                found = await runs.shield(self._work_and_finish(arg, runner), self.xid)
            if not isinstance(found, PendingEnd):
                return found
            return await found.outcome()
        finally:
            runs.leave(self.xid)

    async def _work_here(self, arg: object) -> LocalAnswer:
        """Run an ``async`` local transaction, which is cancelled together with its caller."""
        runs = self.runs
        try:
            if self.is_followed or runs.shows_half or not self._is_safe:
                return await self.work(arg, None)
            return await runs.execute.ask(self.xid, None, arg)
        except asyncio.CancelledError:
            self.finish_behind(LocalAnswer(self.left))
            raise

    async def _work_and_finish(
        self, arg: object, runner: Runner | None
    ) -> TransactionOutcome | PendingEnd | None:
        """Run a plain local transaction to its end, and decide."""
        try:
            answer = await self.work(arg, runner)
        except asyncio.CancelledError:
            answer = LocalAnswer(_UNKNOWN, OutcomeUnknown(CLOSED))
            self.tell(Step.RECEIVED, _UNKNOWN)
        return self._end_or_outcome(answer) or await self.finish(answer)

    def _end_or_outcome(self, answer: LocalAnswer) -> TransactionOutcome | PendingEnd | None:
        """Decide: the END that settles the transaction, or the outcome if no caller waits for that.

        Returns ``None`` if the decision needs the steps of :meth:`finish`.
        """
        return self.finish_soon(answer) or self.start_end(answer)

    # Begin

    async def begin(self, message: Message, *, is_late: bool = False) -> SendResult:
        """Send the half message.

        Args:
            message: The message.
            is_late: Whether the local transaction sends it, before it commits.

        Raises:
            TxmqError: As for :meth:`TransactionProducer.send_in_transaction`; nothing may commit.
        """
        stories, xid = self.runs.stories, self.xid
        if self.is_followed and not is_late:
            stories.open(xid, message.topic, self.runs.group)
        self.tell(Step.SENT, message.topic)
        try:
            sent = await self.runs.send_half(message, xid)
            try:
                position_in(sent.offset_id)
            except RemoteProtocolError as error:
                error.effect = Effect.MAYBE
                raise
        except BaseException as error:
            if isinstance(error, TxmqError):
                stored = "it is not stored, and" if error.effect is Effect.NONE else _IF_STORED
                error.add_note(
                    f"it was the half message of transaction {xid}: {stored} nothing is committed"
                )
            if not is_late:
                stories.end(xid, error=error)
            raise
        self.tell(Step.STORED, sent.offset_id)
        self.tell(Step.REPORTED, sent.status)
        if self.answer is not None:
            raise UsageError(f"transaction {xid} was left meanwhile")
        self.message, self.sent = message, sent
        if is_late and (doubt := doubt_of(sent)) is not None:
            raise doubt
        return sent

    async def prepare(self) -> HalfMessage:
        """Send the half message of a transaction whose local part runs elsewhere, or later.

        Raises:
            TxmqError: As for :meth:`begin`.
        """
        assert self.message is not None, "it has a half message"
        # A check may come before the answer to the half message, if this process was asleep.
        self.runs.hold(self.xid)
        try:
            await self.begin(self.message)
        finally:
            self.runs.release(self.xid)
        half = self.half
        assert half is not None, "it is stored"
        return half

    # Work

    async def work(self, arg: object, runner: Runner | None) -> LocalAnswer:
        """Run the local transaction, unless the half message is not stored safely."""
        sent, xid = self.sent, self.xid
        if sent is not None and sent.status is not SendStatus.OK:
            answer = LocalAnswer(_ROLLBACK, doubt_of(sent))
        else:
            self.tell(Step.CALLED)
            with self.inside():
                half = self.half if self.runs.shows_half else None
                answer = await self.runs.execute.ask(xid, half, arg, runner=runner)
                if answer.problem is not None:
                    note(xid, "the local transaction ends with %r", answer.problem)
            self.tell(Step.RETURNED, answer.state)
        self.tell(Step.RECEIVED, answer.state)
        return answer

    # Decide and settle

    async def finish_apart(self, answer: LocalAnswer) -> TransactionOutcome | None:
        """Decide and settle a transaction whose local part did not run in :meth:`transact`. Once
        begun it goes on, even if the caller is cancelled.

        Raises:
            TxmqError: As for :meth:`transact`.
        """
        with self.runs:
            soon = self.finish_soon(answer)
            return soon or await self.runs.shield(self.finish(answer), self.xid)

    def finish_behind(self, answer: LocalAnswer) -> None:
        """Decide and settle without a caller that waits; the producer's stop does wait."""
        runs = self.runs
        if runs.is_stopped:
            return
        if self.start_end(answer) is None:
            runs.start_behind(self.finish(answer), self.xid)

    def finish_soon(self, answer: LocalAnswer) -> TransactionOutcome | None:
        """Decide and settle in the background, and return the outcome that is certain by now.

        Returns ``None`` if the caller must wait: its settings say so, nothing is decided, or the
        decision has a second phase.
        """
        runs, sent = self.runs, self.sent
        if runs.awaits_end or runs.is_stopped or sent is None or answer.state is _UNKNOWN:
            return None
        self.finish_behind(answer)
        state, _ = OUTCOMES[answer.state, EndReply.NONE]
        return TransactionOutcome(
            state=state,
            xid=self.xid,
            sent=sent,
            is_acknowledged=False,
            problem=answer.problem,
        )

    async def finish(self, answer: LocalAnswer) -> TransactionOutcome | None:
        """Decide and settle; return ``None`` if no half message was sent.

        Raises:
            TransactionConflict: The transaction had been decided otherwise before.
        """
        self.answer = answer
        if self.sent is None:
            with self.inside():
                note(
                    self.xid,
                    "no half message is stored for certain, so no broker receives a decision",
                )
            state, _ = OUTCOMES[answer.state, EndReply.NONE]
            self.runs.stories.end(self.xid, state.name, error=answer.problem)
            return None
        taken = await self.decide(self.sent, answer.state)
        return await self.settle(self.sent, answer, taken)

    async def decide(self, sent: SendResult, state: LocalTransactionState) -> EndAnswer:
        """Send the END. The decision stands whatever the broker replies."""
        runs, xid = self.runs, self.xid
        if state is _UNKNOWN:
            self.tell(Step.DECIDED, "no decision, and will ask")
            return EndAnswer(EndReply.NONE)
        self.tell(Step.DECIDED, state)
        ended, watches = None, runs.stories.look() if self.is_followed else None
        half = None if watches is None else self.half
        if watches is not None and half is not None:
            ending = TransactionEnd(
                half, xid, sent.offset_id, sent.queue.broker, SPELLINGS[state], False
            )
            with self.inside():
                ended = watches.before_end(ending)
        taken = EndAnswer(EndReply.NONE, UsageError(CLOSED))
        try:
            taken = await runs.ends.send(sent, state)
        except asyncio.CancelledError:
            # Only a stop cancels this task. The outcome of the local transaction is known all the
            # same.
            self.note_unanswered()
        finally:
            if ended is not None:
                ended(taken.reply.value)
        return taken

    def enter(self) -> None:
        """See :meth:`ActiveTransactions.enter`."""
        self.runs.enter(self.xid)

    def leave(self) -> None:
        """See :meth:`ActiveTransactions.leave`."""
        self.runs.leave(self.xid)

    def start_end(self, answer: LocalAnswer) -> PendingEnd | None:
        """Decide, and settle once the broker answers, without a task.

        Returns ``None`` if that needs more steps: nothing is decided, no connection is open, a
        watch or the log follows the transaction, or the decision has a second phase.
        """
        runs, sent = self.runs, self.sent
        if sent is None or answer.state is _UNKNOWN or self.is_followed:
            return None
        if runs.has_second_phase or runs.is_stopped:
            return None
        self.answer = answer
        ending = PendingEnd(self, sent, answer, runs.pending_ends)
        return ending if ending.start(runs.ends) else None

    def go_on(self, ending: PendingEnd, error: TxmqError, deadline: float) -> asyncio.Task[None]:
        """Repeat an END that failed, if that is possible, and settle; in a task."""
        work = self._repeat_end(ending.sent, ending.answer, error, deadline)
        return self.runs.start(ending.future, work, self.xid)

    async def _repeat_end(
        self, sent: SendResult, answer: LocalAnswer, error: TxmqError, deadline: float
    ) -> TransactionOutcome:
        taken = EndAnswer(EndReply.NONE, UsageError(CLOSED))
        try:
            taken = await self.runs.ends.send(sent, answer.state, failed=error, deadline=deadline)
        except asyncio.CancelledError:
            self.note_unanswered()  # Only a stop cancels this task.
        return self.outcome_of(sent, answer, taken)

    def note_unanswered(self) -> None:
        """Log that the producer stops before the broker has answered the END."""
        log.info("it is not known whether the broker received the END of %s", self.xid)

    async def settle(
        self, sent: SendResult, answer: LocalAnswer, taken: EndAnswer
    ) -> TransactionOutcome:
        """Let the resource carry out the decision, and derive the outcome.

        Raises:
            TransactionConflict: The broker's reply contradicts the local transaction.
        """
        runs, xid = self.runs, self.xid
        known = OUTCOMES.get((answer.state, taken.reply))
        if known is not None and self.is_followed:
            by_broker = "confirmed" if known[1] else "not confirmed"
            self.tell(Step.CONFIRMED, f"{known[0].value}, {by_broker} by the broker")
        left = None
        if runs.resource is not None:
            with self.inside():
                try:
                    await runs.resource.confirm(xid, answer.state)
                except ResourceError as error:
                    log.warning("%s", error)
                    left = error
        return self.outcome_of(sent, answer, taken, left)

    def outcome_of(
        self,
        sent: SendResult,
        answer: LocalAnswer,
        taken: EndAnswer,
        left: ResourceError | None = None,
    ) -> TransactionOutcome:
        """Derive the outcome from the broker's reply, and count it.

        Raises:
            TransactionConflict: The broker's reply contradicts the local transaction.
        """
        runs, xid, tally, problem = self.runs, self.xid, self.runs.tally, answer.problem
        known: tuple[TransactionState, bool] | None
        if answer.state is LocalTransactionState.COMMIT and taken.reply is EndReply.TAKEN:
            known = _USUAL  # Hashing two members of enums takes a microsecond.
        else:
            known = OUTCOMES.get((answer.state, taken.reply))
        if known is None:
            tally.conflicts += 1
            conflict = TransactionConflict(xid, answer.state.name, taken.reply.value)
            runs.stories.end(xid, error=conflict)
            raise conflict from taken.error
        state, is_confirmed = known
        # If a check has decided the transaction, the broker's refusal of the END confirms that.
        unconfirmed = None if is_confirmed else taken.error
        if unconfirmed is not None:
            log.warning(_NOT_CONFIRMED, xid, state.value, unconfirmed)
        outcome = TransactionOutcome(
            state=state,
            xid=xid,
            sent=sent,
            is_acknowledged=is_confirmed,
            problem=problem or unconfirmed or left,
        )
        if state is TransactionState.COMMITTED:
            tally.committed += 1
        elif state is TransactionState.ROLLED_BACK:
            tally.rolled_back += 1
        else:
            tally.unknown += 1
        if not (is_confirmed or state is TransactionState.UNKNOWN):
            tally.unacknowledged += 1
        if self.is_followed:
            wrong = None if isinstance(problem, RollBack) else problem
            runs.stories.end(xid, state.name, is_acknowledged=is_confirmed, error=wrong or left)
        return outcome


# The objects that a producer's transactions share


class ActiveCount:
    """Counts running work, so that a stop can wait for it: ``with`` counts one."""

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
        """Count one until a task has ended."""
        self.__enter__()
        task.add_done_callback(self.__exit__)

    async def wait(self) -> None:
        """Wait until the count is zero."""
        await self._idle.wait()


class ActiveTransactions(ActiveCount):
    """The running transactions of an open producer, and their shared objects.

    Args:
        client: The connections to the brokers.
        group: The producer group.
        listener: The application.
        settings: The settings of the producer.
        tally: The producer's counters.
        stories: Reports the steps of transactions.
        send_half: Sends the half message of a message with the producer.
        half_of: Makes the half message of a message.
        resource: Carries out decisions, if that is a separate step.
    """

    count: int

    def __init__(
        self,
        client: ClusterClient,
        group: str,
        listener: TransactionListener,
        settings: TransactionSettings,
        tally: TransactionTally,
        stories: Stories,
        send_half: Callable[[Message, str], Awaitable[SendResult]],
        half_of: Callable[[Message, str], Message],
        resource: Resource[Any] | None,
    ) -> None:
        super().__init__()
        self.group = group
        self.tally = tally
        self.stories = stories
        self.send_half = send_half
        self.half_of = half_of
        self.resource = resource
        self.has_second_phase: bool = resource is not None and bool(
            getattr(resource, "has_second_phase", True)
        )
        self.awaits_end: bool = settings.awaits_end or self.has_second_phase
        self.ends: EndSender = EndSender(client, group, settings)
        self.undecided: dict[str, int] = {}
        """Transactions whose local part runs here or is about to, by the number of holders. Checks
        of them are answered with "unknown"."""
        self.pending_ends: dict[PendingEnd, None] = {}
        """The ENDs that a broker has not answered and for which no task waits."""
        self.is_closing = self.is_stopped = False
        self._tasks = Tasks()
        self._threads = Threads(f"txmq-{group}-local", settings.local_threads)
        self.execute: ListenerMethod = ListenerMethod(
            listener.execute_local_transaction, self._threads
        )
        self.shows_half: bool = getattr(listener, "reads_half", True)
        """Whether the listener looks at half messages."""

    def enter(self, xid: str) -> None:
        """A local transaction begins here. Until :meth:`leave`, a stop waits for it, and checks of
        it are answered with "unknown".
        """
        self.undecided[xid] = self.undecided.get(xid, 0) + 1
        self.count += 1
        self._idle.clear()

    def leave(self, xid: str) -> None:
        """A local transaction no longer runs here."""
        left = self.undecided.pop(xid) - 1
        if left:
            self.undecided[xid] = left
        self.count -= 1
        if not self.count:
            self._idle.set()

    def hold(self, xid: str) -> None:
        """Add a holder of :attr:`undecided`."""
        self.undecided[xid] = self.undecided.get(xid, 0) + 1

    def release(self, xid: str) -> None:
        """Remove a holder."""
        left = self.undecided.pop(xid) - 1
        if left:
            self.undecided[xid] = left

    def start_behind(self, work: Coroutine[Any, Any, object], xid: str) -> None:
        """Start work in the background; only a stop waits for it."""
        self.until_done(self._tasks.start(work, f"transaction {xid}"))

    def start(
        self, result: asyncio.Future[T], work: Coroutine[Any, Any, T], xid: str
    ) -> asyncio.Task[None]:
        """Start work that resolves a future; a failure is logged as well."""
        return self._tasks.start(_resolve(result, work), f"transaction {xid}")

    async def shield(self, work: Coroutine[Any, Any, T], xid: str) -> T:
        """Wait for work that goes on, and is counted, even if the caller is cancelled.

        Raises:
            OutcomeUnknown: The producer was closed meanwhile.
        """
        if self.is_stopped:
            return await work  # A task that began now would be cancelled at once.
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        task = self.start(result, work, xid)
        # A cancelled task sets no result, and may never have begun: its end releases the caller.
        task.add_done_callback(lambda _: result.cancel())
        try:
            return await result
        except asyncio.CancelledError:
            if task.cancelled():
                raise OutcomeUnknown(CLOSED) from None
            self.enter(xid)
            task.add_done_callback(lambda _: self.leave(xid))
            raise

    async def stop(self) -> None:
        """Stop the running work."""
        for ending in list(self.pending_ends):
            ending.abandon()
        try:
            await self._tasks.stop()
        finally:
            self._threads.close()


async def _resolve(result: asyncio.Future[T], work: Coroutine[Any, Any, T]) -> None:
    """Set a result at once, some turns of the loop earlier than ``asyncio.shield`` would."""
    try:
        found = await work
    except Exception as error:
        if not result.done():
            result.set_exception(error)
        raise
    if not result.done():
        result.set_result(found)
