"""One transaction from beginning to end: begin, work, decide, settle.

The half message is stored, the local transaction runs, the broker receives the decision as an END,
and the outcome follows from the broker's reply. :data:`txmq.transaction.state.TRANSITIONS` says
which step may follow which. A decision reaches the broker even if the caller no longer waits for
it: a task decides and settles, and a stop of the producer waits for that task.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeAlias, TypeVar

from txmq.client.cluster_client import ClusterClient
from txmq.client.observe.hooks import TransactionEnd
from txmq.client.values import SendResult
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
from txmq.transaction.listener import HalfMessage, LocalAnswer, ask, doubt_of
from txmq.transaction.resource import Resource
from txmq.transaction.settings import TransactionSettings
from txmq.transaction.state import (
    OUTCOMES,
    SPELLINGS,
    TRANSITIONS,
    EndReply,
    LocalTransactionState,
    Phase,
    TransactionOutcome,
    TransactionState,
    TransactionTally,
    Verb,
)
from txmq.transaction.story import Step, Stories, note

__all__ = ["ActiveCount", "ActiveTransactions", "Transaction", "TransactionMachine"]

log = logging.getLogger(__name__)

S = TypeVar("S")
Outcome: TypeAlias = TransactionOutcome | None
"""``None`` if no half message was sent."""

_UNKNOWN: Final = LocalTransactionState.UNKNOWN
_UNFOLLOWED: Final = nullcontext()
_CLOSED: Final = "this producer was closed meanwhile"
_IF_STORED: Final = "if it is stored, the broker will ask;"
_NOT_CONFIRMED: Final = (
    "transaction %s is %s, but its broker has not confirmed that, and may ask: %s"
)


@dataclass(slots=True, eq=False)
class Transaction(ABC, Generic[S]):
    """A transaction of a :class:`txmq.TransactionManager` whose local part runs."""

    group: str
    """The producer group that answers for it."""
    xid: str
    """Its id."""
    session: S = field(init=False)
    """The session of the local transaction; leave commit and rollback to the manager."""
    decided: TransactionOutcome | None = field(default=None, init=False, repr=False)

    @abstractmethod
    def _half(self) -> HalfMessage | None:
        """Its half message once that is stored."""

    @property
    def message(self) -> HalfMessage:
        """Its message, which no consumer sees yet.

        Raises:
            UsageError: It has no message yet: the function's result makes it.
        """
        half = self._half()
        if half is None:
            raise UsageError(f"transaction {self.xid} has no message yet: it has no result yet")
        return half

    @property
    def outcome(self) -> TransactionOutcome:
        """Its outcome, once its block has ended.

        Raises:
            UsageError: It is not decided yet.
        """
        if self.decided is None:
            raise UsageError(
                f"transaction {self.xid} is not decided yet: read its outcome after the block"
            )
        return self.decided


@dataclass(slots=True, eq=False)
class TransactionMachine(Transaction[S]):
    """One transaction, in one producer."""

    active: ActiveTransactions
    is_followed: bool
    """Whether a watch or the log receives its steps."""
    to_send: Message | None = None
    """Its message, unless the local transaction makes that."""
    sent: SendResult | None = None
    """The broker's answer to its half message once that is stored."""
    known_half: HalfMessage | None = None
    """Its half message, if it was needed before."""
    phase: Phase = Phase.NEW
    answer: LocalAnswer | None = None
    """The end of its local transaction."""
    left: LocalTransactionState = _UNKNOWN
    """The state of its local transaction if the caller is cancelled now."""
    is_active: bool = False
    """Whether :attr:`active` counts it."""
    task: asyncio.Task[Any] | None = None
    """Takes the last steps, even if the caller is cancelled."""
    waiting: asyncio.Future[Outcome] | None = None
    """The caller waits for this, perhaps less long than the task takes."""

    def _half(self) -> HalfMessage | None:
        # Made when needed: most functions of managers never look at it.
        if self.known_half is None and self.sent is not None and self.to_send is not None:
            half = self.active.half_of(self.to_send, self.xid)
            self.known_half = HalfMessage(
                topic=half.topic, body=half.body, tags=half.tags, keys=half.keys,
                properties=half.properties, flag=half.flag, id=self.xid, sent=self.sent,
            )  # fmt: skip
        return self.known_half

    def after(self, verb: Verb) -> Phase:
        """The phase after a step.

        Raises:
            UsageError: The step is not allowed in this phase.
        """
        phase = TRANSITIONS.get((self.phase, verb))
        if phase is None:
            raise UsageError(f"transaction {self.xid} {self.phase}, and cannot {verb} now")
        return phase

    def tell(self, step: Step, detail: object = "") -> None:
        """Report a step to whatever follows this transaction."""
        if self.is_followed:
            self.active.stories.tell(self.xid, step, detail)

    def inside(self) -> AbstractContextManager[None]:
        """While inside, spans and notes of this task or thread belong to the present step."""
        return self.active.stories.inside(self.xid) if self.is_followed else _UNFOLLOWED

    async def run(self, call: Callable[[], object], runner: Runner | None) -> Outcome:
        """Run the whole transaction.

        Args:
            call: The local transaction; it returns its state.
            runner: Where it runs; ``None`` if it is ``async``.

        Raises:
            TransactionConflict: The transaction had been decided otherwise before.
            OutcomeUnknown: The producer was closed meanwhile; a broker will ask.
            TxmqError: The half message was not stored, or its broker did not answer.
        """
        self.active.enter(self)
        try:
            if self.to_send is not None:
                await self.begin(self.to_send)
            if runner is not None:
                # A thread cannot be cancelled, so a task of its own waits for it.
                return await self._see_through(self._work_and_decide(call, runner))
            try:
                answer = await self.work(call, None)
            except asyncio.CancelledError:
                self.decide_alone(LocalAnswer(self.left))
                raise
            return await self.decide(answer)
        finally:
            self.leave()

    def leave(self) -> None:
        """Count the transaction as active no more, unless a task takes its last steps; harmless a
        second time.
        """
        if self.is_active and self.task is None:
            self.active.leave(self)

    # Begin

    async def begin(self, message: Message) -> SendResult:
        """Send the half message. If the local transaction runs already, that has made the message,
        and must not commit if this fails.

        Raises:
            TxmqError: As for :meth:`TransactionProducer.send_in_transaction`; nothing may commit.
        """
        stories, xid = self.active.stories, self.xid
        is_late = self.after(Verb.BEGIN) is Phase.WORKING  # Refused before anything is sent.
        if self.is_followed and not is_late:
            stories.open(xid, message.topic, self.group)
        self.tell(Step.SENT, message.topic)
        try:
            sent = await self.active.send_half(message, xid)
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
        self.phase = self.after(Verb.BEGIN)  # A late one may be decided by now: its producer stops.
        self.to_send, self.sent = message, sent
        if is_late and (doubt := doubt_of(sent)) is not None:
            raise doubt
        return sent

    async def prepare(self) -> HalfMessage:
        """Begin a transaction whose local part runs elsewhere, or later. It counts as active, until
        :meth:`leave`: a check may come before the answer to the half message, if this process was
        asleep.

        Raises:
            TxmqError: As for :meth:`begin`.
        """
        assert self.to_send is not None, "it has a message"
        self.active.enter(self)
        try:
            await self.begin(self.to_send)
        except BaseException:
            self.leave()
            raise
        return self.message

    # Work

    async def work(self, call: Callable[[], object], runner: Runner | None) -> LocalAnswer:
        """Run the local transaction, unless the half message is not stored safely."""
        if self.sent is not None and (doubt := doubt_of(self.sent)) is not None:
            answer = LocalAnswer(LocalTransactionState.ROLLBACK, doubt)
            self.tell(Step.RECEIVED, answer.state)
            return answer
        self.work_begins()
        with self.inside():
            answer = await ask(self.xid, call, runner)
        self.work_ends(answer.state, answer.problem)
        return answer

    def work_begins(self) -> None:
        """The local transaction begins to run, perhaps in a block of the application's code."""
        self.phase = self.after(Verb.WORK)
        self.tell(Step.CALLED)

    def work_ends(self, state: LocalTransactionState, problem: BaseException | None) -> None:
        """The local transaction has ended."""
        if problem is not None:
            with self.inside():
                note(self.xid, "the local transaction ends with %r", problem)
        self.tell(Step.RETURNED, state)
        self.tell(Step.RECEIVED, state)

    async def _work_and_decide(self, call: Callable[[], object], runner: Runner) -> Outcome:
        try:
            answer = await self.work(call, runner)
        except asyncio.CancelledError:  # The producer stops, and leaves the thread behind.
            answer = LocalAnswer(_UNKNOWN, OutcomeUnknown(_CLOSED))
            self.tell(Step.RECEIVED, _UNKNOWN)
        return await self._decide(answer)

    # Decide

    async def decide(self, answer: LocalAnswer) -> Outcome:
        """Decide and settle. Once begun this goes on, even if the caller is cancelled.

        Raises:
            TransactionConflict: The transaction had been decided otherwise before.
            OutcomeUnknown: The producer was closed meanwhile; a broker will ask.
        """
        return await self._see_through(self._decide(answer))

    def decide_alone(self, answer: LocalAnswer) -> None:
        """Decide and settle without a caller; a stop of the producer waits for that."""
        if not self.active.is_stopped:
            self._start(self._decide(answer))

    async def _decide(self, answer: LocalAnswer) -> Outcome:
        self.phase = self.after(Verb.DECIDE)
        self.answer = answer
        if self.waiting is not None and not (self.active.awaits_end or self.waiting.done()):
            # The caller does not wait for the END: this much is certain.
            state, _ = OUTCOMES[answer.state, EndReply.NONE]
            self.waiting.set_result(self._outcome(state, answer.problem))
        taken = await self._end(answer.state)
        return await self.settle(answer, taken)

    async def _end(self, state: LocalTransactionState) -> EndAnswer:
        """Send the END. The decision stands whatever the broker replies."""
        active, xid, sent = self.active, self.xid, self.sent
        if sent is None:
            with self.inside():
                note(xid, "no half message is stored for certain, so no broker receives a decision")
            return EndAnswer(EndReply.NONE)
        if state is _UNKNOWN:
            self.tell(Step.DECIDED, "no decision, and will ask")
            return EndAnswer(EndReply.NONE)
        self.tell(Step.DECIDED, state)
        ended, watches = None, active.stories.look() if self.is_followed else None
        if watches is not None and (half := self._half()) is not None:
            word, broker = SPELLINGS[state], sent.queue.broker
            with self.inside():
                ended = watches.before_end(
                    TransactionEnd(half, xid, sent.offset_id, broker, word, False)
                )
        taken = EndAnswer(EndReply.NONE, UsageError(_CLOSED))
        try:
            taken = await active.ends.send(sent, state)
        except asyncio.CancelledError:  # Only a stop cancels this, and the state is known.
            log.info("it is not known whether the broker received the END of %s", xid)
        finally:
            if ended is not None:
                ended(taken.reply.value)
        return taken

    async def _see_through(self, steps: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Wait for the last steps, which go on even if the caller is cancelled."""
        if self.active.is_stopped:
            return await steps  # A task that began now would be cancelled at once.
        self.waiting = asyncio.get_running_loop().create_future()
        self._start(steps)
        return await self.waiting

    def _start(self, steps: Coroutine[Any, Any, Outcome]) -> None:
        if not self.is_active:
            self.active.enter(self)
        self.task = self.active.tasks.start(steps, f"transaction {self.xid}")
        self.task.add_done_callback(self._wake)

    def _wake(self, task: asyncio.Task[Outcome]) -> None:
        """The last steps have ended, or were cancelled before they began: wake the caller."""
        self.task = None
        self.leave()
        if self.waiting is None or self.waiting.done():
            return
        if task.cancelled():
            self.waiting.set_exception(OutcomeUnknown(_CLOSED))
        elif (error := task.exception()) is not None:
            self.waiting.set_exception(error)
        else:
            self.waiting.set_result(task.result())

    # Settle

    async def settle(self, answer: LocalAnswer, taken: EndAnswer) -> Outcome:
        """Let the resource carry out the decision, derive the outcome, and count it.

        Raises:
            TransactionConflict: The broker's reply contradicts the local transaction.
        """
        active, xid, tally, problem = self.active, self.xid, self.active.tally, answer.problem
        self.phase = self.after(Verb.SETTLE)
        if self.sent is None:
            state, _ = OUTCOMES[answer.state, EndReply.NONE]
            active.stories.end(xid, state.name, error=problem)
            return None
        known = OUTCOMES.get((answer.state, taken.reply))
        if known is not None and self.is_followed:
            by_broker = "confirmed" if known[1] else "not confirmed"
            self.tell(Step.CONFIRMED, f"{known[0].value}, {by_broker} by the broker")
        left = None
        if active.second_phase is not None:
            with self.inside():
                try:
                    await active.second_phase.confirm(xid, answer.state)
                except ResourceError as error:
                    log.warning("%s", error)
                    left = error
        if known is None:
            tally.conflicts += 1
            conflict = TransactionConflict(xid, answer.state.name, taken.reply.value)
            active.stories.end(xid, error=conflict)
            raise conflict from taken.error
        state, is_confirmed = known
        # If a check has decided the transaction, the broker's refusal of the END confirms that.
        unconfirmed = None if is_confirmed else taken.error
        if unconfirmed is not None:
            log.warning(_NOT_CONFIRMED, xid, state.value, unconfirmed)
        tally.add(state, is_confirmed)
        if self.is_followed:
            wrong = None if isinstance(problem, RollBack) else problem
            active.stories.end(xid, state.name, is_acknowledged=is_confirmed, error=wrong or left)
        return self._outcome(state, problem or unconfirmed or left, is_acknowledged=is_confirmed)

    def _outcome(
        self, state: TransactionState, problem: Exception | None, *, is_acknowledged: bool = False
    ) -> Outcome:
        if self.sent is None:
            return None
        return TransactionOutcome(
            state=state, xid=self.xid, sent=self.sent,
            is_acknowledged=is_acknowledged, problem=problem,
        )  # fmt: skip


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
        settings: The settings of the producer.
        tally: The producer's counters.
        stories: Reports the steps of transactions.
        send_half: Sends the half message of a message with the producer.
        half_of: Makes the half message of a message.
        resource: Carries out decisions, if that is a separate step.
    """

    count: int  # Again, because some checkers of types infer another one here.

    def __init__(
        self,
        client: ClusterClient,
        group: str,
        settings: TransactionSettings,
        tally: TransactionTally,
        stories: Stories,
        send_half: Callable[[Message, str], Awaitable[SendResult]],
        half_of: Callable[[Message, str], Message],
        resource: Resource[Any] | None,
    ) -> None:
        super().__init__()
        self.tally = tally
        self.stories = stories
        self.send_half = send_half
        self.half_of = half_of
        has_second_phase = resource is not None and getattr(resource, "has_second_phase", True)
        self.second_phase: Resource[Any] | None = resource if has_second_phase else None
        self.awaits_end: bool = settings.awaits_end or self.second_phase is not None
        self.ends: EndSender = EndSender(client, group, settings)
        self.undecided: dict[str, int] = {}
        """The active transactions by their ids: a message may be sent twice under its id."""
        self.is_closing = self.is_stopped = False
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.threads: Threads = Threads(f"txmq-{group}-local", settings.local_threads)
        self.tasks: Tasks = Tasks()

    def enter(self, transaction: TransactionMachine[Any]) -> None:
        """Count a transaction. Until :meth:`leave`, a stop waits for it, and checks of it are
        answered with "unknown".
        """
        transaction.is_active = True
        self.undecided[transaction.xid] = self.undecided.get(transaction.xid, 0) + 1
        self.count += 1
        self._idle.clear()

    def leave(self, transaction: TransactionMachine[Any]) -> None:
        """Count a transaction no more."""
        transaction.is_active = False
        others = self.undecided.pop(transaction.xid) - 1
        if others:
            self.undecided[transaction.xid] = others
        self.count -= 1
        if not self.count:
            self._idle.set()

    async def stop(self) -> None:
        """Stop the running work."""
        try:
            await self.tasks.stop()
        finally:
            self.threads.close()
