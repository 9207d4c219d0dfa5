"""One transaction from beginning to end: begin, work, decide, settle.

The broker stores the half message, the local transaction runs, the broker receives the decision as
an END, and the outcome follows from the broker's reply. :data:`txmq.transaction.state.TRANSITIONS`
says which step may follow which. A decision reaches the broker even if the caller stops waiting: a
task decides and settles, and stopping the producer waits for that task.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

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
from txmq.protocol.properties import id_in_transaction
from txmq.protocol.record import position_in
from txmq.runtime.tasks import Runner, Tasks, Threads
from txmq.transaction.ends import EndAnswer, EndSender
from txmq.transaction.resource import Resource
from txmq.transaction.settings import TransactionSettings
from txmq.transaction.state import (
    OUTCOMES,
    SPELLINGS,
    TRANSITIONS,
    EndReply,
    HalfMessage,
    LocalTransactionState,
    Phase,
    TransactionOutcome,
    TransactionTally,
    Verb,
    check_count,
    doubt_of,
    half_message,
)
from txmq.transaction.story import Step, Stories, note

__all__ = [
    "LocalAnswer",
    "ProducerContext",
    "Transaction",
    "ask",
]

log = logging.getLogger(__name__)

S = TypeVar("S")
Outcome: TypeAlias = TransactionOutcome | None
"""``None`` if no half message was sent."""

_UNKNOWN: Final = LocalTransactionState.UNKNOWN
_UNFOLLOWED: Final = nullcontext()
_CLOSED: Final = "this producer was closed before the transaction was settled"
_IF_STORED: Final = "if it is stored, the broker will ask;"
_NOT_CONFIRMED: Final = "transaction %s is %s, but its broker has not confirmed it, and may ask: %s"


@dataclass(slots=True, eq=False)
class Transaction(Generic[S]):
    """One transaction of a producer.

    A block of :meth:`txmq.TransactionManager.transaction` receives one: write with
    :attr:`session`, read :attr:`message`, and read :attr:`outcome` after the block. The manager
    calls all other methods; do not call them yourself.
    """

    group: str
    """The producer group that answers its checks."""
    xid: str
    """Its id."""
    context: ProducerContext = field(repr=False)
    is_followed: bool = field(repr=False)
    """Whether a watch or the log receives its steps."""
    to_send: tuple[Message, ...] = field(default=(), repr=False)
    """The messages to send before its local transaction begins."""
    stored: tuple[Message, ...] = field(default=(), repr=False)
    """The messages whose half messages are stored."""
    sent: tuple[SendResult, ...] = field(default=(), repr=False)
    """The brokers' answers to them."""
    known_halves: tuple[HalfMessage, ...] = field(default=(), repr=False)
    """The cached value of :attr:`halves`."""
    added: list[Message] = field(default_factory=list, repr=False)
    """The messages to send before its local transaction commits."""
    numbered: int = field(default=0, repr=False)
    """How many of its messages have an id."""
    phase: Phase = Phase.NEW
    session: S = field(init=False, repr=False)
    """The session of the local transaction; leave commit and rollback to the manager."""
    answer: LocalAnswer | None = field(default=None, init=False, repr=False)
    """How its local transaction ended."""
    left: LocalTransactionState = field(default=_UNKNOWN, init=False, repr=False)
    """The state of its local transaction to report if the caller is cancelled now."""
    decided: Outcome = field(default=None, init=False, repr=False)
    """Its outcome, once its block has ended."""
    is_active: bool = field(default=False, init=False, repr=False)
    task: asyncio.Task[Outcome] | None = field(default=None, init=False, repr=False)
    """The task that takes the last steps, even if the caller is cancelled."""
    waiting: asyncio.Future[Outcome] | None = field(default=None, init=False, repr=False)
    """The future that the caller awaits; it may be set before the task ends."""

    @property
    def message(self) -> HalfMessage:
        """Its message, or the first of them, which no consumer sees yet.

        Raises:
            UsageError: It has no message yet; the function's result will make it.
        """
        if not self.sent:
            raise UsageError(
                f"transaction {self.xid} has no message yet: its function must return first"
            )
        first, *others = self.halves
        return replace(first, others=tuple(others)) if others else first

    @property
    def halves(self) -> tuple[HalfMessage, ...]:
        """All its messages that are stored, which no consumer sees yet."""
        # Built on demand: most functions never read it.
        if len(self.known_halves) != len(self.sent):
            self.known_halves = tuple(
                half_message(self.context.half_of(message, sent.id, self.xid), sent)
                for message, sent in zip(self.stored, self.sent, strict=True)
            )
        return self.known_halves

    def add(self, message: Message) -> None:
        """Add a message, to any topic and broker. It is stored after the function or block has run
        and before the commit, and becomes visible if, and only if, the transaction commits.

        Raises:
            UsageError: The transaction's function or block is not running.
            LimitExceeded: The transaction has too many messages.
            LocalProtocolError: The message cannot be sent in a transaction.
        """
        if self.phase not in (Phase.WORKING, Phase.UNSENT):
            raise UsageError(f"transaction {self.xid} {self.phase}, and takes no more messages")
        self.context.check_half(message)
        check_count(self.numbered + len(self.added) + 1)
        self.added.append(message)

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

    async def run(self, call: Callable[[], object], runner: Runner | None) -> Outcome:
        """Run the whole transaction.

        Args:
            call: The local transaction; it returns its state.
            runner: Where it runs; ``None`` if it is ``async``.

        Raises:
            TransactionConflict: The transaction was already decided the other way.
            OutcomeUnknown: The producer was closed first; a broker will ask.
            TxmqError: The half message was not stored, or its broker did not answer.
        """
        self.enter()
        try:
            if self.to_send:
                await self.begin(self.to_send)
            if runner is None:
                return await self.work(call, None)
            # A thread cannot be cancelled, so a task waits for it.
            return await self._see_through(self.work(call, runner))
        finally:
            self.leave()

    def enter(self) -> None:
        """Count the transaction as active until :meth:`leave`: stopping the producer waits for it,
        and its checks are answered with "unknown".
        """
        if not self.is_active:
            self.is_active = True
            undecided = self.context.undecided
            undecided[self.xid] = undecided.get(self.xid, 0) + 1
            self.context.idle.clear()

    def leave(self) -> None:
        """Stop counting it, unless a task still takes its last steps; harmless to repeat."""
        if self.is_active and self.task is None:
            self.is_active = False
            undecided = self.context.undecided
            others = undecided.pop(self.xid) - 1
            if others:
                undecided[self.xid] = others
            if not undecided:
                self.context.idle.set()

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
        """Report a step to the watches and the log, if they follow this transaction."""
        if self.is_followed:
            self.context.stories.tell(self.xid, step, detail)

    def inside(self) -> AbstractContextManager[None]:
        """A context in which spans and notes of this task or thread belong to the current step."""
        return self.context.stories.inside(self.xid) if self.is_followed else _UNFOLLOWED

    # Begin

    async def begin(self, messages: Sequence[Message]) -> None:
        """Send half messages, before the local transaction begins, or during it if it makes them.

        Raises:
            TxmqError: As for :meth:`TransactionProducer.send_in_transaction`. A local transaction
                that is already running must roll back.
        """
        stories, xid = self.context.stories, self.xid
        is_late = self.after(Verb.BEGIN) is Phase.WORKING  # Refused before anything is sent.
        if self.is_followed and not is_late:
            stories.open(xid, messages[0].topic, self.group)
        ids = [self._next_id() for _ in messages]
        try:
            if len(messages) == 1:
                sent = [await self._send(messages[0], ids[0])]
            else:
                sent = await self._send_all(messages, ids)
            # Check again: stopping the producer may have decided a late one.
            self.phase = self.after(Verb.BEGIN)
        except BaseException as error:
            if not is_late:
                stories.end(xid, error=error)
            raise
        self.stored += tuple(messages)
        self.sent += tuple(sent)
        if is_late and (doubt := doubt_of(sent)) is not None:
            raise doubt

    def _next_id(self) -> str:
        number, self.numbered = self.numbered, self.numbered + 1
        return id_in_transaction(self.xid, number)

    async def _send(self, message: Message, message_id: str) -> SendResult:
        self.tell(Step.SENT, message.topic)
        try:
            sent = await self.context.send_half(message, message_id, self.xid)
            try:
                position_in(sent.offset_id)
            except RemoteProtocolError as error:
                error.effect = Effect.MAYBE
                raise
        except TxmqError as error:
            stored = "it is not stored, and" if error.effect is Effect.NONE else _IF_STORED
            error.add_note(
                f"it was the half message of transaction {self.xid}: {stored} nothing is committed"
            )
            raise
        self.tell(Step.STORED, sent.offset_id)
        self.tell(Step.REPORTED, sent.status)
        return sent

    async def _send_all(self, messages: Sequence[Message], ids: Sequence[str]) -> list[SendResult]:
        """Send several half messages at once. If one fails, those stored are rolled back.

        Raises:
            TxmqError: One is not stored.
        """
        steps = map(self._send, messages, ids)
        answers = await asyncio.gather(*steps, return_exceptions=True)
        sent = [answer for answer in answers if isinstance(answer, SendResult)]
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if not errors:
            return sent
        if sent and not self.context.is_stopped:
            ends = self.context.ends.send(sent, LocalTransactionState.ROLLBACK)
            self.context.tasks.start(ends, f"rollback of transaction {self.xid}")
        raise errors[0]

    async def prepare(self) -> HalfMessage:
        """Begin a transaction whose local part runs elsewhere, or later. It stays active until
        :meth:`leave`, because a check may arrive before the answer to the half message if this
        process was suspended.

        Raises:
            TxmqError: As for :meth:`begin`.
        """
        self.enter()
        try:
            await self.begin(self.to_send)
        except BaseException:
            self.leave()
            raise
        return self.message

    # Work

    async def work(self, call: Callable[[], object], runner: Runner | None) -> Outcome:
        """Run the local transaction, unless the half message was stored unsafely; then decide."""
        if (doubt := doubt_of(self.sent)) is not None:
            answer = LocalAnswer(LocalTransactionState.ROLLBACK, doubt)
            self.tell(Step.RECEIVED, answer.state)
        else:
            self.work_begins()
            try:
                with self.inside():
                    answer = await ask(self.xid, call, runner)
            except asyncio.CancelledError:
                if runner is None:
                    self.decide_alone(LocalAnswer(self.left))
                    raise
                # The producer is stopping, and leaves the thread behind.
                answer = LocalAnswer(_UNKNOWN, OutcomeUnknown(_CLOSED))
                self.tell(Step.RECEIVED, _UNKNOWN)
            else:
                self.work_ends(answer.state, answer.problem)
        steps = self._decide(answer)
        return await (self._see_through(steps) if runner is None else steps)

    def work_begins(self) -> None:
        """Note that the local transaction begins, here or in a block of the application's code."""
        self.phase = self.after(Verb.WORK)
        self.tell(Step.CALLED)

    def work_ends(self, state: LocalTransactionState, problem: BaseException | None) -> None:
        """Note that the local transaction has ended."""
        if problem is not None:
            with self.inside():
                note(self.xid, "the local transaction ends with %r", problem)
        self.tell(Step.RETURNED, state)
        self.tell(Step.RECEIVED, state)

    # Decide

    async def decide(self, answer: LocalAnswer) -> Outcome:
        """Decide and settle. Once begun, this continues even if the caller is cancelled.

        Raises:
            TransactionConflict: The transaction was already decided the other way.
            OutcomeUnknown: The producer was closed first; a broker will ask.
        """
        return await self._see_through(self._decide(answer))

    def decide_alone(self, answer: LocalAnswer) -> None:
        """Decide and settle in the background; stopping the producer waits for it."""
        if not self.context.is_stopped:
            self._see_through(self._decide(answer))
            self.waiting = None  # No caller waits. The task has not run yet: no task is eager.

    def _see_through(self, steps: Coroutine[Any, Any, Outcome]) -> Awaitable[Outcome]:
        """Take the last steps in a task, so that they continue even if the caller is cancelled."""
        if self.context.is_stopped:
            return steps  # A new task would be cancelled at once.
        self.enter()
        self.waiting = asyncio.get_running_loop().create_future()
        self.task = self.context.tasks.start(steps, f"transaction {self.xid}")
        self.task.add_done_callback(self._wake)
        return self.waiting

    def _wake(self, task: asyncio.Task[Outcome]) -> None:
        """Release the caller: the last steps have ended, or were cancelled before they began."""
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

    async def _decide(self, answer: LocalAnswer) -> Outcome:
        """Send the END, then settle. The decision stands whatever the broker replies."""
        context, xid, sent, state = self.context, self.xid, self.sent, answer.state
        self.phase = self.after(Verb.DECIDE)
        self.answer = answer
        taken = EndAnswer(EndReply.NONE)
        if not sent:
            with self.inside():
                note(xid, "no half message is certainly stored, so no broker receives a decision")
            return await self.settle(answer, taken)
        waiting = self.waiting
        if waiting is not None and not (context.awaits_end or waiting.done()):
            # The caller does not wait for the END: the state is already certain.
            known, _ = OUTCOMES[state, EndReply.NONE]
            waiting.set_result(
                TransactionOutcome(
                    state=known, xid=xid, sent=sent, is_acknowledged=False, problem=answer.problem
                )
            )
        if state is _UNKNOWN:
            self.tell(Step.DECIDED, "no decision, and will ask")
            return await self.settle(answer, taken)
        self.tell(Step.DECIDED, state)
        ended = self._watch_ends(state) if self.is_followed else ()
        taken = EndAnswer(EndReply.NONE, UsageError(_CLOSED))
        try:
            taken = await context.ends.send(sent, state)
        except asyncio.CancelledError:  # The producer stops; the local state is known anyway.
            log.info("it is not known whether the broker received the END of %s", xid)
        finally:
            for report in ended:
                report(taken.reply.value)
        return await self.settle(answer, taken)

    def _watch_ends(self, state: LocalTransactionState) -> list[Callable[[str], None]]:
        watches = self.context.stories.look()
        if watches is None:
            return []
        spelling, reports = SPELLINGS[state], []
        with self.inside():
            for half in self.halves:
                place, broker = half.sent.offset_id, half.sent.queue.broker
                ending = TransactionEnd(half, self.xid, place, broker, spelling, False)
                reports.append(watches.before_end(ending))
        return reports

    # Settle

    async def settle(self, answer: LocalAnswer, taken: EndAnswer) -> Outcome:
        """Let the resource carry out the decision, derive the outcome, and count it.

        Raises:
            TransactionConflict: The broker's reply contradicts the local transaction.
        """
        context, xid, problem = self.context, self.xid, answer.problem
        self.phase = self.after(Verb.SETTLE)
        if not self.sent:
            state, _ = OUTCOMES[answer.state, EndReply.NONE]
            context.stories.end(xid, state.name, error=problem)
            return None
        known = OUTCOMES.get((answer.state, taken.reply))
        if known is not None and self.is_followed:
            by_broker = "confirmed" if known[1] else "not confirmed"
            self.tell(Step.CONFIRMED, f"{known[0].value}, {by_broker} by the broker")
        left = None
        if context.second_phase is not None:
            with self.inside():
                try:
                    await context.second_phase.confirm(xid, answer.state)
                except ResourceError as error:
                    log.warning("%s", error)
                    left = error
        if known is None:
            context.tally.conflicts += 1
            conflict = TransactionConflict(xid, answer.state.name, taken.reply.value)
            context.stories.end(xid, error=conflict)
            raise conflict from taken.error
        state, is_confirmed = known
        # If a check decided first, the broker refuses the END, which confirms the decision.
        unconfirmed = None if is_confirmed else taken.error
        if unconfirmed is not None:
            log.warning(_NOT_CONFIRMED, xid, state.value, unconfirmed)
        context.tally.add(state, is_confirmed)
        if self.is_followed:
            wrong = None if isinstance(problem, RollBack) else problem
            context.stories.end(xid, state.name, is_acknowledged=is_confirmed, error=wrong or left)
        return TransactionOutcome(
            state=state, xid=xid, sent=self.sent, is_acknowledged=is_confirmed,
            problem=problem or unconfirmed or left,
        )  # fmt: skip


class ProducerContext:
    """What the transactions of an open producer share.

    Args:
        client: The connections to the brokers.
        group: The producer group.
        settings: The settings of the producer.
        tally: The producer's counters.
        stories: Reports the steps of transactions.
        send_half: Sends a message as a half message through the producer.
        half_of: Adds the marks of a half message to a message.
        check_half: Checks a message for a transaction.
        resource: Carries out decisions, if that is a separate step.
    """

    def __init__(
        self,
        client: ClusterClient,
        group: str,
        settings: TransactionSettings,
        tally: TransactionTally,
        stories: Stories,
        send_half: Callable[[Message, str, str], Awaitable[SendResult]],
        half_of: Callable[[Message, str, str], Message],
        check_half: Callable[[Message], str | None],
        resource: Resource[Any] | None,
    ) -> None:
        self.tally = tally
        self.stories = stories
        self.send_half = send_half
        self.half_of = half_of
        self.check_half = check_half
        has_second_phase = resource is not None and getattr(resource, "has_second_phase", True)
        self.second_phase: Resource[Any] | None = resource if has_second_phase else None
        self.awaits_end: bool = settings.awaits_end or self.second_phase is not None
        self.ends: EndSender = EndSender(client, group, settings)
        self.undecided: dict[str, int] = {}
        """How many transactions are active under each id: a message may be sent twice."""
        self.idle: asyncio.Event = asyncio.Event()
        """Set while no transaction is active."""
        self.idle.set()
        self.is_closing = self.is_stopped = False
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.threads: Threads = Threads(f"txmq-{group}-local", settings.local_threads)
        self.tasks: Tasks = Tasks()

    async def stop(self) -> None:
        """Stop the running work."""
        try:
            await self.tasks.stop()
        finally:
            self.threads.close()


# Calling the application


class LocalAnswer(NamedTuple):
    """The state of a local transaction, as the application reports it, and its exception."""

    state: LocalTransactionState
    problem: Exception | None = None


async def ask(xid: str, call: Callable[[], object], runner: Runner | None) -> LocalAnswer:
    """Call the application, and turn any result or exception into an answer.

    Args:
        xid: The transaction's id.
        call: The function.
        runner: Where it runs; ``None`` for an ``async`` function, which is awaited here.
    """
    task = asyncio.current_task()
    try:
        if runner is None:
            state = await cast("Awaitable[object]", call())
        else:
            # Copy the context, which carries traces, as asyncio.to_thread does.
            state = await runner.run(partial(copy_context().run, call))
            if inspect.isawaitable(state):
                state = await state  # A plain function may return a coroutine.
    except asyncio.CancelledError:
        if task is not None and task.cancelling():
            raise
        # The application awaited an operation that was cancelled; this task was not.
        return _unknown(xid, RuntimeError("an operation that the listener awaited was cancelled"))
    except RollBack as error:
        return LocalAnswer(LocalTransactionState.ROLLBACK, error)
    except Exception as error:  # noqa: BLE001 - any exception leaves the outcome open
        return _unknown(xid, error)
    if task is not None and task.cancelling():
        # The application swallowed the cancellation; its answer still counts.
        log.warning("the listener ignored its cancellation in transaction %s", xid)
    if isinstance(state, LocalTransactionState):
        return LocalAnswer(state)
    wrong = TypeError(f"a listener returns a LocalTransactionState, not {state!r}")
    log.error("the listener gave no valid answer for transaction %s: %s", xid, wrong)
    return LocalAnswer(LocalTransactionState.UNKNOWN, wrong)


def _unknown(xid: str, error: Exception) -> LocalAnswer:
    log.error("the listener failed with transaction %s", xid, exc_info=error)
    return LocalAnswer(LocalTransactionState.UNKNOWN, error)
