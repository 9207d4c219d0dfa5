"""The transaction manager: runs functions in transactions that span a database and a message.

The broker stores the half message, the function runs in a database transaction with a fence row,
and the broker receives the state that the resource reports; an exception alone proves nothing.
Every process with an open manager of the group answers checks by reading the fence.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MethodType, TracebackType
from typing import (
    Any,
    Concatenate,
    Final,
    Generic,
    NoReturn,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    Unpack,
    overload,
)

from txmq.client.client import Client
from txmq.client.lifecycle import Lifecycle
from txmq.errors import (
    ConfigError,
    OutcomeUnknown,
    RollBack,
    TransactionConflict,
    TransactionOverdue,
    UsageError,
)
from txmq.limits import LATE_SECONDS_MAX
from txmq.message import Message, ReceivedMessage
from txmq.protocol import properties
from txmq.runtime.backoff import Backoff
from txmq.runtime.clock import Clock
from txmq.runtime.deadlines import Deadline, Deadlines
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network
from txmq.runtime.signatures import object_parameter, signature_of
from txmq.runtime.tasks import Runner
from txmq.settings.values import settings_or
from txmq.transaction.machine import LocalAnswer, Transaction
from txmq.transaction.message import (
    FunctionMessages,
    MessageParts,
    MessageTemplate,
    chosen,
)
from txmq.transaction.producer import HalfMessageProducer
from txmq.transaction.resource import LocalTransaction, Resource
from txmq.transaction.settings import ManagerSettings
from txmq.transaction.state import (
    LocalTransactionState,
    TransactionOutcome,
    TransactionState,
    TransactionTally,
    check_count,
)
from txmq.transaction.story import note

__all__ = ["Entered", "TransactionManager", "Work", "signed"]

log = logging.getLogger(__name__)

P = ParamSpec("P")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
Owner = TypeVar("Owner")

Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]
"""A function, and its arguments after the session."""

FIRST_PAUSE_S: Final = 0.01
LONGEST_PAUSE_S: Final = 0.5
LOOK_S: Final = 1.0
"""Longest delay before a thread notices Ctrl-C that came just before it began to wait."""

_ROLLBACK: Final = LocalTransactionState.ROLLBACK
_NO_SESSION: Final = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
_MARK: Final = "__txmq_transaction__"
"""The attribute that marks a decorated function."""


# The local part of a transaction


@dataclass(slots=True)
class Entered:
    """A context in which a transaction is the current one and has this session."""

    transaction: Transaction[Any]
    session: object
    is_over: bool = False

    def __enter__(self) -> None:
        self.transaction.session = self.session
        _CURRENT.set(self)

    def __exit__(self, *_: object) -> None:
        self.is_over = True
        _CURRENT.set(None)


_CURRENT: Final[ContextVar[Entered | None]] = ContextVar("txmq_transaction", default=None)


def _current() -> Transaction[Any] | None:
    """The transaction of this task or thread, or of the one that started it."""
    found = _CURRENT.get()
    # A task started inside a transaction keeps its context, even after the transaction's end.
    return None if found is None or found.is_over else found.transaction


@dataclass(slots=True, eq=False)
class Work(Generic[S]):
    """The local part of a transaction: a function call behind the fence, or a block of code.

    A function is retried after a serialization failure until its time is up.
    """

    transaction: Transaction[S]
    born_ms: int
    """When the transaction began."""
    resource: Resource[S]
    settings: ManagerSettings
    deadlines: Deadlines
    clock: Clock
    entropy: Entropy
    """Spreads the pauses between attempts."""
    call: Call | None
    late: FunctionMessages | None
    """Makes messages from the result, if there are such."""
    begin: Callable[[Transaction[Any], Sequence[Message]], Coroutine[Any, Any, None]]
    """Sends half messages, in the producer's loop."""
    deadline: float = 0.0
    failures: int = 0
    backoff: Backoff | None = None
    has_begun: bool = False
    has_sent: bool = False
    """Whether it has sent messages. An attempt after that is a separate transaction, because it
    makes its own ones."""
    result: Any = None
    problem: BaseException | None = None
    local: LocalTransaction[S] = field(init=False)
    """The local transaction of the last attempt."""

    def open(self) -> LocalTransaction[S]:
        """Begin an attempt; the first one starts the clock."""
        if not self.deadline:
            self.deadline = self.clock.monotonic() + self.settings.local_timeout
        transaction = self.transaction
        transaction.added.clear()
        self.local = self.resource.local(transaction.xid, transaction.group, self.born_ms)
        return self.local

    def run(self) -> LocalTransactionState:
        """Run the function of a blocking resource; returns the state of its last attempt."""
        assert self.call is not None, "blocks do not run here"
        function, args, kwargs = self.call
        self.has_begun = True
        while True:
            local = self.open()
            try:
                with local as session:
                    with Entered(self.transaction, session):
                        result = function(session, *args, **kwargs)
                        if inspect.isawaitable(result):
                            _refuse_awaitable(result)
                        self.send(result)
                    self.check_time()
            except Exception as error:  # noqa: BLE001 - the resource knows what it means
                pause_s = self.failed(local.state, error)
                if pause_s is None:
                    return local.state
            else:
                self.result = result
                return local.state
            threading.Event().wait(pause_s)

    async def arun(self) -> LocalTransactionState:
        """Run the function of an asyncio resource; returns the state of its last attempt."""
        assert self.call is not None, "blocks do not run here"
        function, args, kwargs = self.call
        self.has_begun = True
        while True:
            local = self.open()
            try:
                async with local as session:
                    with Entered(self.transaction, session), self.time_limit():
                        result = await function(session, *args, **kwargs)
                        await self.asend(result)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    self.transaction.left = local.state
                    raise
                # The function awaited an operation that was cancelled; this task was not.
                self.problem = error
                return local.state
            except Exception as error:  # noqa: BLE001 - the resource knows what it means
                pause_s = self.failed(local.state, error)
                if pause_s is None:
                    return local.state
            else:
                self.result = result
                return local.state
            self.transaction.left = local.state
            await asyncio.sleep(pause_s)

    def failed(self, state: LocalTransactionState, error: Exception) -> float | None:
        """Note a failed attempt; returns the pause before the next one, if any."""
        note(self.transaction.xid, "the local transaction ends with %r", error)
        pause_s = None if self.has_sent else self.pause_s(state, error)
        if pause_s is None:
            self.problem = error
        return pause_s

    def pause_s(self, state: LocalTransactionState, error: BaseException) -> float | None:
        """The pause before another attempt; ``None`` to give up."""
        if state is not _ROLLBACK or not self.resource.may_retry(error):
            return None
        self.failures += 1
        if self.backoff is None:
            self.backoff = Backoff(self.entropy, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        pause_s = self.backoff.next_pause()
        if self.failures >= self.settings.local_attempts or pause_s >= self.left_s:
            return None
        log.info("the local transaction of %s is run again: %s", self.transaction.xid, error)
        return pause_s

    # Messages that the local transaction makes

    def send(self, result: object = None) -> None:
        """Send the half messages of messages that were added, or are made from the result, while
        this thread waits.

        Raises:
            Exception: One is not stored safely, and nothing may be committed.
        """
        if self.late is None and not self.transaction.added:
            return
        self.local.flush()
        messages = self.made_of(result)
        self.check_time()
        steps = self.begin(self.transaction, messages)
        try:
            loop = self.transaction.context.loop
            sending = asyncio.run_coroutine_threadsafe(steps, loop)
        except RuntimeError as error:
            steps.close()
            raise UsageError("the manager was closed before the message was sent") from error
        try:
            while not sending.done():
                self.check_time()
                # A Ctrl-C just before this thread begins to wait would not wake it.
                with suppress(TimeoutError):
                    sending.exception(min(LOOK_S, max(0.0, self.left_s)))
            sending.result()
        except concurrent.futures.CancelledError as error:
            raise UsageError("the manager was closed before the message was stored") from error
        finally:
            sending.cancel()

    async def asend(self, result: object = None) -> None:
        """See :meth:`send`; in the loop.

        Raises:
            Exception: One is not stored safely, and nothing may be committed.
        """
        if self.late is None and not self.transaction.added:
            return
        await self.local.aflush()
        await self.begin(self.transaction, self.made_of(result))
        self.check_time()

    def made_of(self, result: object) -> Sequence[Message]:
        """The messages that an attempt has made: from its result, and those that it added."""
        check_lateness(self.settings)
        made = [] if self.late is None else self.late.late(result)
        made += self.transaction.added
        check_count(self.transaction.numbered + len(made))
        self.has_sent = True
        return made

    # Time

    @property
    def left_s(self) -> float:
        """The seconds left."""
        return self.deadline - self.clock.monotonic()

    def check_time(self) -> None:
        """Raise if it is too late to commit.

        Raises:
            TransactionOverdue: The time is up.
        """
        if self.clock.monotonic() >= self.deadline:
            raise self.overdue()

    def time_limit(self) -> Deadline:
        """A context that cancels its task, which then fails, once it is too late to commit."""
        return self.deadlines.within(self.left_s, self.overdue)

    def overdue(self) -> TransactionOverdue:
        """The error of a transaction that takes too long."""
        return TransactionOverdue(
            f"the local transaction of {self.transaction.xid} took longer than "
            f"{self.settings.local_timeout} s"
        )


def _refuse_awaitable(result: object) -> NoReturn:
    """Refuse an awaitable result: nothing awaits it, so its work would never run."""
    if inspect.iscoroutine(result):
        result.close()
    raise UsageError(f"the function returned {type(result).__name__}, which nothing awaits")


def check_lateness(settings: ManagerSettings) -> None:
    """Check that messages which local transactions make are sent in time.

    Raises:
        ConfigError: Local transactions may take too long.
    """
    limit_s = settings.local_timeout
    if limit_s > LATE_SECONDS_MAX:
        # The fence row could be cleaned up before a check arrives.
        raise ConfigError(
            f"local_timeout is {limit_s}, but a message that is added, or made from a result, must "
            f"be sent within {LATE_SECONDS_MAX} s"
        )


# The manager


class TransactionDecorator(Protocol[S_co]):
    """Decorates functions that begin with a session, and methods with one after ``self``."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[S_co, P], Any], /
    ) -> Callable[P, Coroutine[Any, Any, TransactionOutcome]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Owner, S_co, P], Any], /
    ) -> Callable[Concatenate[Owner, P], Coroutine[Any, Any, TransactionOutcome]]: ...


class TransactionManager(Lifecycle, Generic[S]):
    """Makes a message visible if, and only if, a database transaction commits.

    ::

        tm = TransactionManager("icbc", names, SQLResource(engine))

        @tm.transactional(topic="transfer", keys=lambda order: order.id)
        def transfer_out(session: Session, order: Transfer) -> None: ...

        async with tm:
            outcome = await transfer_out(order)

    Keep one open in every process that can answer for the group's transactions, all with the same
    database. Opening it verifies the resource; closing it leaves the resource open.

    Args:
        group: The producer group, whose members answer for each other.
        names: The name servers, ``host:port`` separated by ``;``, or a client to share.
        resource: The database.
        settings: The settings.
        network: Opens streams; a shared client has its own.
        clock: Gives the time; a shared client has its own.
        entropy: Gives randomness; a shared client has its own.

    Raises:
        ConfigError: ``names`` is empty or holds an invalid address, or ``resource`` is not a
            resource.
        LocalProtocolError: The group's name has an invalid character.
        LimitExceeded: The group's name is too long.
    """

    def __init__(
        self,
        group: str,
        names: str | Client,
        resource: Resource[S],
        settings: ManagerSettings | None = None,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self._settings = settings_or(ManagerSettings, settings)
        if not hasattr(resource, "is_blocking"):
            wrong = type(resource).__name__
            raise ConfigError(f"give it a resource, such as SQLResource(engine), not {wrong}")
        self._resource = resource
        self._producer = HalfMessageProducer(
            group, names, self._check, self._settings, resource=resource,
            network=network, clock=clock, entropy=entropy,
        )  # fmt: skip
        self._deadlines = Deadlines()

    @property
    def group(self) -> str:
        """The producer group."""
        return self._producer.group

    @property
    def tally(self) -> TransactionTally:
        """Its counters since it was opened."""
        return self._producer.tally

    async def __aenter__(self) -> Self:
        """Verify the resource, and register with the brokers.

        Raises:
            ResourceError: The database cannot take part, or does not answer.
            UsageError: It is open already.
        """
        # Verify first, because a broker may send checks at once.
        await self._resource.verify()
        await self._producer.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for transactions and checks in progress, up to ``stop_timeout``."""
        await self._producer.__aexit__(kind, problem, trace)

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return self._producer.is_open

    @property
    def needs(self) -> Sequence[Lifecycle]:
        """The client, if it is shared."""
        return self._producer.needs

    # Decorated functions

    def transactional(
        self,
        *templates: MessageTemplate,
        **parts: Unpack[MessageParts],
    ) -> TransactionDecorator[S]:
        """Turn a function into a transaction. Its first argument is the session; the caller passes
        the others, and awaits the outcome. In a method, the session comes after ``self``, which is
        not part of the message.

        The message is made from the arguments, before the function runs. Each part is a constant or
        a function of the arguments. An asyncio resource needs an ``async`` function; a blocking one
        needs a plain function, which runs in a thread.

        A message made from the result is sent after the function has run and before the commit,
        while the local transaction keeps its locks. Each part is a constant or a function of the
        result.

        A transaction may have several messages, for any topics and brokers, which become visible
        if, and only if, the function commits: give each as a :class:`txmq.MessageTemplate`, or let
        the function add them with ``tm.add(message)``.

        An exception in the function rolls back both sides and is raised to the caller. A
        :class:`txmq.errors.RollBack` also rolls back, but becomes the outcome's ``problem`` instead
        of being raised.

        Args:
            templates: The messages.
            parts: For a single message, its ``topic`` and the other arguments of
                :class:`txmq.MessageTemplate`, instead of ``templates``.

        Raises:
            UsageError: The function does not fit the resource, or a part of a message is invalid.
            LimitExceeded: There are too many messages.
        """
        messages = chosen(templates, parts)

        def decorate(
            function: Callable[..., Any],
        ) -> Callable[..., Coroutine[Any, Any, TransactionOutcome]]:
            of_function = self.messages_of(function, messages)

            @functools.wraps(function)
            async def call(*args: Any, **kwargs: Any) -> TransactionOutcome:
                return await self.called(of_function, function, args, kwargs)

            return signed(call, of_function.shown)

        return decorate

    def messages_of(
        self, function: Callable[..., Any], templates: Sequence[MessageTemplate]
    ) -> FunctionMessages:
        """How the messages of a function are made; see :meth:`transactional`.

        Raises:
            ConfigError: Local transactions may take too long for a message made from a result.
            UsageError: As for :meth:`transactional`.
        """
        name = getattr(function, "__qualname__", repr(function))
        if any(template.made_from == "result" for template in templates):
            check_lateness(self._settings)
        if _MARK in getattr(function, "__dict__", {}):
            raise UsageError(
                f"{name} is already a transaction; to send several messages in it, give a "
                "MessageTemplate for each"
            )
        if inspect.iscoroutinefunction(function) is self._resource.is_blocking:
            if self._resource.is_blocking:
                raise UsageError(f"a blocking resource needs a plain function; {name} is async")
            raise UsageError(f"an asyncio resource needs an async function; {name} is not async")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(f"{name} is a generator; its body would run after the transaction")
        signature = signature_of(function)
        arguments = list(signature.parameters.values())
        owner = object_parameter(signature)
        if owner is not None:
            del arguments[0]
        if not arguments or arguments[0].kind in _NO_SESSION:
            place = "first argument" if owner is None else f"argument after {owner.name}"
            raise UsageError(f"{name} takes no session: its {place} must be one")
        if arguments[0].kind is not inspect.Parameter.VAR_POSITIONAL:
            del arguments[0]  # *args take the session and everything after it.
        return FunctionMessages(
            name=name,
            signature=signature.replace(parameters=arguments),
            templates=templates,
            owner=owner,
        )

    def called(
        self,
        messages: FunctionMessages,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        runner: Runner | None = None,
    ) -> Coroutine[Any, Any, TransactionOutcome]:
        """One call of a decorated function, to be awaited. Messages made from the arguments are
        made at once, in the caller's thread.

        Raises:
            TypeError: The function does not take these arguments.
            LocalProtocolError: The arguments do not make a valid message.
            Exception: Any exception of the functions that make its parts.
        """
        if messages.owner is not None:
            if not args:
                raise TypeError(f"{messages.name} is a method: call it on an object")
            function, args = MethodType(function, args[0]), args[1:]
        late = messages if messages.from_result else None
        return self.run(messages.early(args, kwargs), late, (function, args, kwargs), runner)

    async def run(
        self,
        early: Sequence[Message],
        late: FunctionMessages | None,
        call: Call,
        runner: Runner | None = None,
    ) -> TransactionOutcome:
        """Run a function in a transaction; see :meth:`transactional`. If it makes messages while it
        runs, each attempt is a separate transaction.

        Args:
            early: The messages to send before it runs.
            late: Makes messages from its result.
            call: The function, and its arguments after the session.
            runner: Where a plain function runs; by default in a thread of the producer.

        Raises:
            TransactionOverdue: It took too long.
            RolledBackByCheck: It began too late: a check had already rolled it back.
            TxmqError: As for :meth:`txmq.TransactionProducer.send_in_transaction`.
            Exception: What the function raised, or why the database refused the commit.
        """
        work = self._new(early, late, call)
        while True:
            transaction = work.transaction
            try:
                if self._resource.is_blocking:
                    threads = runner or transaction.context.threads
                    outcome = await transaction.run(work.run, threads)
                else:
                    outcome = await transaction.run(work.arun, None)
            except TransactionConflict as conflict:
                _explain(conflict, work.problem)
                raise
            answer, pause_s = transaction.answer, None
            assert answer is not None, "it is decided"
            if work.has_sent and work.problem is not None:
                pause_s = work.pause_s(answer.state, work.problem)
            if pause_s is None:
                break
            await asyncio.sleep(pause_s)
            work = self._new(early, late, call, work)
        if outcome is None:
            return self._without_message(transaction.xid, answer, work.problem)
        if not work.has_begun:
            raise outcome.problem or UsageError("its local transaction was not run")
        return _result(outcome, work.problem, work.result)

    def _new(
        self,
        early: Sequence[Message],
        late: FunctionMessages | None = None,
        call: Call | None = None,
        failed: Work[S] | None = None,
    ) -> Work[S]:
        """The local part of a new transaction.

        Args:
            early: The messages to send before it runs.
            late: Makes messages from its result.
            call: The function; ``None`` for a block.
            failed: The previous attempt, which was a separate transaction.

        Raises:
            UsageError: A transaction is already open here.
        """
        running = None if failed is not None else _current()
        if running is not None:
            raise UsageError(
                f"transaction {running.xid} is open here, and transactions cannot be nested: use "
                "its session, and add further messages to it"
            )
        session = self._producer.client.session
        born_ms = session.clock.wall_ms()
        transaction = self._producer.new(early)
        if not early and transaction.is_followed and late is not None:
            self._producer.stories.open(transaction.xid, late.first_topic, self.group)
        if failed is not None:  # Keep counting its time and its failures.
            return replace(
                failed, transaction=transaction, born_ms=born_ms, has_begun=False, has_sent=False,
                problem=None,
            )  # fmt: skip
        work = Work(
            transaction, born_ms, self._resource, self._settings, self._deadlines,
            session.clock, session.entropy, call, late, self._begin_late,
        )  # fmt: skip
        if late is not None:
            work.deadline = session.clock.monotonic() + self._settings.local_timeout
        return work

    async def _begin_late(self, transaction: Transaction[Any], messages: Sequence[Message]) -> None:
        """Send half messages of a running local transaction, even while the producer is closing: it
        finishes the transactions that have begun.

        Raises:
            TxmqError: As for :meth:`run`; that transaction must not commit.
        """
        for message in messages:
            self._producer.check_half(message)
        await transaction.begin(messages)

    def _without_message(
        self, xid: str, answer: LocalAnswer, problem: BaseException | None
    ) -> TransactionOutcome:
        """The outcome of a function that ended before its result made a message."""
        problem = problem or answer.problem
        if answer.state is not _ROLLBACK:
            raise OutcomeUnknown(
                f"local transaction {xid} was interrupted, or ended by its function, before it had "
                "a message; no message is sent, and its own outcome is not known"
            ) from problem
        assert problem is not None, "a function that returns sends a message"
        # There is no half message, so no broker needs to confirm the rollback.
        outcome = TransactionOutcome(
            state=TransactionState.ROLLED_BACK, xid=xid, is_acknowledged=True
        )
        self.tally.add(outcome.state, is_acknowledged=True)
        return _result(outcome, problem, None)

    # A block of code

    @asynccontextmanager
    async def transaction(self, *messages: Message) -> AsyncIterator[Transaction[S]]:
        """Run a block of code in a transaction. Its end commits; an exception rolls back.

        ::

            async with tm.transaction(message) as transaction:
                transaction.session.add(...)
            print(transaction.outcome)

        It may have several messages, and the block may add more with ``transaction.add``.

        A block is not retried: after a serialization failure both sides are rolled back, and the
        error reaches the caller. The resource must be an asyncio one. A blocking one would stall
        the loop; use it with decorated functions or :mod:`txmq.blocking`.

        Raises:
            TxmqError: As for :meth:`run`.
            Exception: What the code raised, or why the database refused the commit.
        """
        if self._resource.is_blocking:
            raise UsageError(
                "this resource blocks, and would stall the loop: decorate a plain function"
            )
        block = await self.begin(messages)
        transaction, is_entered = block.transaction, False
        problem: BaseException | None = None
        try:
            with transaction.inside():
                async with block.local as session:
                    with Entered(transaction, session), block.time_limit():
                        is_entered = True
                        yield transaction
                        await block.asend()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - raised below
            problem = error
        except BaseException:
            await self.leave(block)
            raise
        outcome = await self.end(block, problem)
        if problem is not None and not is_entered:
            raise problem  # The block did not run, so it cannot receive the outcome.
        transaction.decided = outcome

    async def begin(self, messages: Sequence[Message]) -> Work[S]:
        """Open a transaction, the first part of :meth:`transaction`.

        Raises:
            TxmqError: As for :meth:`run`.
        """
        if not messages:
            raise UsageError("a transaction needs a message before its block begins")
        block = self._new(messages)
        transaction = block.transaction
        half = await transaction.prepare()
        with ExitStack() as unless_begun:
            unless_begun.callback(transaction.leave)
            if (doubt := half.doubt()) is not None:
                await transaction.decide(LocalAnswer(_ROLLBACK))
                raise doubt
            if transaction.context.is_stopped:
                raise UsageError("this manager was closed; a broker will ask")
            block.open()
            transaction.work_begins()
            unless_begun.pop_all()
        return block

    async def end(self, block: Work[S], problem: BaseException | None) -> TransactionOutcome:
        """Decide a transaction, the last part of :meth:`transaction`.

        Raises:
            TxmqError: As for :meth:`run`.
            BaseException: What the code raised, as for :meth:`run`.
        """
        transaction, answer = block.transaction, LocalAnswer(block.local.state)
        transaction.work_ends(answer.state, problem)
        try:
            if isinstance(problem, asyncio.CancelledError):
                transaction.decide_alone(answer)
                raise problem
            outcome = await transaction.decide(answer)
        except TransactionConflict as conflict:
            _explain(conflict, problem)
            raise
        finally:
            transaction.leave()
        assert outcome is not None, "its half message was sent"
        return _result(outcome, problem, None)

    async def leave(self, block: Work[S]) -> None:
        """Leave the decision to checks: this process no longer decides or reports it."""
        block.transaction.leave()
        self._producer.stories.end(block.transaction.xid)

    def current(self) -> Transaction[S] | None:
        """This manager's transaction in this task or thread, if any."""
        found = _current()
        return found if found is not None and found.group == self.group else None

    def add(self, message: Message) -> None:
        """Add a message to this manager's transaction in this task or thread; see
        :meth:`txmq.Transaction.add`.

        Raises:
            UsageError: None runs here.
            TxmqError: As for :meth:`txmq.Transaction.add`.
        """
        running = self.current()
        if running is None:
            raise UsageError(f"no transaction of {self.group} runs here")
        running.add(message)

    # Checks

    async def _check(self, message: ReceivedMessage) -> LocalTransactionState:
        """The state of a local transaction, as the fence records it."""
        identity = message.properties.get(properties.FENCE, "")
        if not identity:
            # The sender does not use a fence, so a missing row proves nothing.
            log.warning("transaction %s was begun by no manager of %s", message.id, self.group)
            return LocalTransactionState.UNKNOWN
        return await self._resource.check(
            message.xid, self.group, message.born_ms, identity=identity
        )


def _explain(conflict: TransactionConflict, problem: BaseException | None) -> None:
    """Add the local transaction's exception as a note, because the conflict would hide it."""
    if problem is not None:
        conflict.add_note(f"its local transaction raised {problem!r}")


def _result(
    outcome: TransactionOutcome, problem: BaseException | None, result: object
) -> TransactionOutcome:
    """Return the outcome for the caller, or raise the exception."""
    if problem is None:
        return outcome if result is None else replace(outcome, result=result)
    if outcome.state is TransactionState.ROLLED_BACK and not isinstance(problem, RollBack):
        problem.add_note(f"transaction {outcome.xid} is rolled back")
        raise problem
    known = problem if isinstance(problem, Exception) else None
    return replace(outcome, problem=known)


def signed(call: Callable[P, Any], signature: inspect.Signature) -> Callable[P, Any]:
    """Show frameworks the arguments that callers pass, and mark the function as decorated."""
    vars(call)["__signature__"] = signature
    vars(call)[_MARK] = True
    return call
