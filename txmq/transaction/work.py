"""The local transactions of a manager: functions that run behind the fence, within their time, and
again after a serialization failure.

The listener here belongs to the manager's producer. Its answer is the state that the
resource reports; an exception alone proves nothing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, NoReturn, TypeAlias, TypeVar

from txmq.errors import TransactionOverdue, UsageError
from txmq.message import Message, ReceivedMessage
from txmq.protocol import properties
from txmq.runtime.backoff import Backoff
from txmq.runtime.clock import Clock
from txmq.runtime.deadlines import Deadline, Deadlines
from txmq.runtime.entropy import Entropy
from txmq.transaction.listener import HalfMessage, TransactionListener
from txmq.transaction.resource import LocalTransaction, Resource
from txmq.transaction.run import TransactionRun
from txmq.transaction.settings import ManagerSettings
from txmq.transaction.state import LocalTransactionState, TransactionOutcome
from txmq.transaction.story import note

__all__ = [
    "Attempts",
    "Call",
    "Entered",
    "LateWork",
    "ResourceListener",
    "Transaction",
    "Work",
    "current",
    "listener_of",
    "refuse_another",
]

log = logging.getLogger(__name__)

S = TypeVar("S")
Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]
"""A function, and its arguments after the session."""

FIRST_PAUSE_S: Final = 0.01
LONGEST_PAUSE_S: Final = 0.5
LOOK_S: Final = 1.0
"""How soon a thread notices Ctrl-C that came just before it began to wait."""


# The current transaction


@dataclass(slots=True)
class Transaction(Generic[S]):
    """A transaction of a :class:`txmq.TransactionManager` whose local part runs."""

    run: TransactionRun
    session: S
    """The session of the local transaction; leave commit and rollback to the manager."""
    decided: TransactionOutcome | None = field(default=None, repr=False)
    is_over: bool = False

    @property
    def xid(self) -> str:
        """Its id."""
        return self.run.xid

    @property
    def message(self) -> HalfMessage:
        """Its message, which no consumer sees yet.

        Raises:
            UsageError: It has no message yet: the function's result makes it.
        """
        half = self.run.half
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

    @property
    def group(self) -> str:
        """The producer group that answers for it."""
        return self.run.runs.group


_CURRENT: Final[ContextVar[Transaction[Any] | None]] = ContextVar("txmq_transaction", default=None)


def current() -> Transaction[Any] | None:
    """The transaction of this task or thread, or of the one that started it."""
    found = _CURRENT.get()
    # A task that began inside a transaction keeps its context, even if it outlives it.
    return None if found is None or found.is_over else found


@dataclass(slots=True)
class Entered:
    """While inside, a transaction is the current one."""

    transaction: Transaction[Any]

    def __enter__(self) -> None:
        _CURRENT.set(self.transaction)

    def __exit__(self, *_: object) -> None:
        self.transaction.is_over = True
        _CURRENT.set(None)


def refuse_another() -> None:
    """Refuse a transaction inside a transaction.

    Raises:
        UsageError: One is running here.
    """
    found = _CURRENT.get()
    if found is not None and not found.is_over:
        raise UsageError(
            f"transaction {found.xid} runs here already, and transactions are not nested: write "
            "with its session, and further messages into an outbox, a table"
        )


# One call of a function


@dataclass(slots=True)
class Attempts:
    """How many attempts a local transaction has left, and how much time."""

    settings: ManagerSettings
    clock: Clock
    entropy: Entropy
    """Spreads the pauses between attempts."""
    xid: str = ""
    """The transaction of the present attempt."""
    deadline: float = 0.0
    failures: int = 0
    backoff: Backoff | None = None

    def start(self, xid: str) -> None:
        """Begin an attempt; the first one starts the time."""
        self.xid = xid
        self.deadline = self.deadline or self.clock.monotonic() + self.settings.local_timeout_s

    @property
    def left_s(self) -> float:
        """The seconds left."""
        return self.deadline - self.clock.monotonic()

    def check_time(self) -> None:
        """Raise if it is too late to commit.

        Raises:
            TransactionOverdue: The time is over.
        """
        if self.clock.monotonic() >= self.deadline:
            raise self.overdue()

    def overdue(self) -> TransactionOverdue:
        """The error of a transaction that takes too long."""
        limit_s = self.settings.local_timeout_s
        return TransactionOverdue(
            f"the local transaction of {self.xid} took longer than {limit_s} s"
        )

    def pause_s(self, error: BaseException) -> float | None:
        """How long to wait before the next attempt; ``None`` to give up."""
        self.failures += 1
        if self.backoff is None:
            self.backoff = Backoff(self.entropy, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        pause_s = self.backoff.next_pause()
        if self.failures >= self.settings.local_attempts or pause_s >= self.left_s:
            return None
        log.info("the local transaction of %s is run again: %s", self.xid, error)
        return pause_s


@dataclass(slots=True)
class Work(Generic[S]):
    """One call of a function, as the local transaction of a run."""

    run: TransactionRun
    function: Callable[..., Any]
    args: tuple[Any, ...]
    """Its arguments after the session."""
    kwargs: Mapping[str, Any]
    born_ms: int
    """When the transaction began."""
    attempts: Attempts
    has_begun: bool = False
    result: Any = None
    problem: BaseException | None = None


@dataclass(slots=True, kw_only=True)
class LateWork(Work[S]):
    """One call of a function whose result makes the message. Such a message cannot be stored before
    the function runs, so it is stored before the commit. If it is not stored safely, nothing is
    committed.

    It runs once under its id: another attempt has another result, and needs another half message.
    """

    make: Callable[[object], Message]
    """Makes the message from a result, in the function's thread or task."""
    send: Callable[[TransactionRun, Message], Coroutine[Any, Any, None]]
    """Sends it, in the loop that runs now."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def finish(self, local: LocalTransaction[S], result: object) -> None:
        """Send the half message, while this thread waits.

        Raises:
            Exception: Why it is not stored; nothing may be committed then.
        """
        local.flush()
        message = self.make(result)
        self.attempts.check_time()
        sending = self._sending(message)
        try:
            while not sending.done():
                self.attempts.check_time()
                # Ctrl-C may come just before this thread begins to wait, and would not wake it.
                with suppress(TimeoutError):
                    sending.exception(min(LOOK_S, max(0.0, self.attempts.left_s)))
            sending.result()
        except concurrent.futures.CancelledError as error:
            raise UsageError("the manager was closed meanwhile") from error
        finally:
            sending.cancel()

    def _sending(self, message: Message) -> concurrent.futures.Future[None]:
        work = self.send(self.run, message)
        try:
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError as error:
            work.close()
            raise UsageError("the manager was closed meanwhile") from error

    async def afinish(self, local: LocalTransaction[S], result: object) -> None:
        """The same in the loop.

        Raises:
            Exception: Why it is not stored; nothing may be committed then.
        """
        await local.aflush()
        await self.send(self.run, self.make(result))
        self.attempts.check_time()


# The listener


class ResourceListener(TransactionListener, Generic[S]):
    """Runs functions in local transactions of a resource, and lets its fence answer checks.

    Args:
        group: The producer group.
        resource: The database, or several.
    """

    reads_half: ClassVar[bool] = False
    """Whether it looks at the half message; functions find theirs in their transaction."""

    def __init__(self, group: str, resource: Resource[S]) -> None:
        self._group = group
        self._resource = resource
        self._deadlines = Deadlines()

    def deadline(self, attempts: Attempts) -> Deadline:
        """While inside, a task is cancelled once it is too late to commit, and fails with that."""
        return self._deadlines.within(attempts.left_s, attempts.overdue)

    def pause_s(
        self, state: LocalTransactionState, attempts: Attempts, error: BaseException
    ) -> float | None:
        """How long to wait before a local transaction runs again; ``None`` if it does not."""
        is_undone = state is LocalTransactionState.ROLLBACK
        if is_undone and self._resource.may_retry(error):
            return attempts.pause_s(error)
        return None

    def _failed(
        self, work: Work[S], state: LocalTransactionState, error: Exception
    ) -> float | None:
        note(work.run.xid, "the local transaction ends with %r", error)
        pause_s = None if isinstance(work, LateWork) else self.pause_s(state, work.attempts, error)
        if pause_s is None:
            work.problem = error
        return pause_s

    async def check_local_transaction(self, message: ReceivedMessage) -> LocalTransactionState:
        """Ask the fence; see :class:`TransactionListener`."""
        identity = message.properties.get(properties.FENCE, "")
        if not identity:
            # The sender does not use a fence, so a missing row proves nothing.
            log.warning("transaction %s was begun by no manager of %s", message.id, self._group)
            return LocalTransactionState.UNKNOWN
        return await self._resource.check(
            message.id, self._group, message.born_ms, identity=identity
        )


class _BlockingListener(ResourceListener[S]):
    def execute_local_transaction(
        self, message: HalfMessage, arg: Work[S]
    ) -> LocalTransactionState:
        del message
        arg.has_begun = True
        while True:
            arg.attempts.start(arg.run.xid)
            local = self._resource.local(arg.run.xid, self._group, arg.born_ms)
            try:
                with local as session:
                    with Entered(Transaction(arg.run, session)):
                        result = arg.function(session, *arg.args, **arg.kwargs)
                        if inspect.isawaitable(result):
                            _refuse_awaitable(result)
                        if isinstance(arg, LateWork):
                            arg.finish(local, result)
                    arg.attempts.check_time()
            except Exception as error:  # noqa: BLE001 - the resource knows what it means
                pause_s = self._failed(arg, local.state, error)
                if pause_s is None:
                    return local.state
            else:
                arg.result = result
                return local.state
            threading.Event().wait(pause_s)


def _refuse_awaitable(result: object) -> NoReturn:
    """Refuse the result of a plain function that nothing has awaited: its work is not done."""
    if inspect.iscoroutine(result):
        result.close()
    raise UsageError(f"the function returned {type(result).__name__}, which nothing awaits")


class _AsyncListener(ResourceListener[S]):
    async def execute_local_transaction(
        self, message: HalfMessage, arg: Work[S]
    ) -> LocalTransactionState:
        del message
        run, attempts = arg.run, arg.attempts
        arg.has_begun = True
        while True:
            attempts.start(run.xid)
            local = self._resource.local(run.xid, self._group, arg.born_ms)
            try:
                async with local as session:
                    left_s = attempts.deadline - attempts.clock.monotonic()
                    deadline = self._deadlines.within(left_s, attempts.overdue)
                    with Entered(Transaction(run, session)), deadline:
                        result = await arg.function(session, *arg.args, **arg.kwargs)
                        if isinstance(arg, LateWork):
                            await arg.afinish(local, result)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    run.left = local.state
                    raise
                # This task is not cancelled, but something that the function waited for.
                arg.problem = error
                return local.state
            except Exception as error:  # noqa: BLE001 - the resource knows what it means
                pause_s = self._failed(arg, local.state, error)
                if pause_s is None:
                    return local.state
            else:
                arg.result = result
                return local.state
            run.left = local.state
            await asyncio.sleep(pause_s)


def listener_of(group: str, resource: Resource[S]) -> ResourceListener[S]:
    """The listener for a resource."""
    kind = _BlockingListener if resource.is_blocking else _AsyncListener
    return kind(group, resource)
