"""The local part of a manager's transactions: functions and blocks that run behind the fence, each
within its time, and functions again after a serialization failure.

The state that the resource reports decides; an exception alone proves nothing.
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
from typing import Any, Final, Generic, NoReturn, TypeAlias, TypeVar

from txmq.errors import TransactionOverdue, UsageError
from txmq.message import Message
from txmq.runtime.backoff import Backoff
from txmq.runtime.clock import Clock
from txmq.runtime.deadlines import Deadline, Deadlines
from txmq.runtime.entropy import Entropy
from txmq.transaction.machine import Transaction, TransactionMachine
from txmq.transaction.resource import LocalTransaction, Resource
from txmq.transaction.settings import ManagerSettings
from txmq.transaction.state import LocalTransactionState
from txmq.transaction.story import note

__all__ = [
    "Attempts",
    "Call",
    "Entered",
    "LateMessage",
    "Work",
    "current",
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
class Entered:
    """While inside, a transaction is the current one, and has this session."""

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


def current() -> Transaction[Any] | None:
    """The transaction of this task or thread, or of the one that started it."""
    found = _CURRENT.get()
    # A task that began inside a transaction keeps its context, even if it outlives it.
    return None if found is None or found.is_over else found.transaction


def refuse_another() -> None:
    """Refuse a transaction inside a transaction.

    Raises:
        UsageError: One is running here.
    """
    found = current()
    if found is not None:
        raise UsageError(
            f"transaction {found.xid} runs here already, and transactions are not nested: write "
            "with its session, and further messages into an outbox, a table"
        )


# One local part


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
        self.deadline = self.deadline or self.clock.monotonic() + self.settings.local_timeout

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
        limit_s = self.settings.local_timeout
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


@dataclass(slots=True, eq=False)
class Work(Generic[S]):
    """The local part of one transaction: a call of a function, or a block of code."""

    transaction: TransactionMachine[S]
    resource: Resource[S]
    deadlines: Deadlines
    attempts: Attempts
    born_ms: int
    """When the transaction began."""
    call: Call | None = None
    late: LateMessage | None = None
    """Makes and sends the message, if the result makes it. Then the function runs once: another
    attempt has another result, and needs another half message under another id."""
    local: LocalTransaction[S] = field(init=False)
    """The local transaction of the last attempt."""
    has_begun: bool = False
    result: Any = None
    problem: BaseException | None = None

    def open(self) -> LocalTransaction[S]:
        """Begin an attempt."""
        xid = self.transaction.xid
        self.attempts.start(xid)
        self.local = self.resource.local(xid, self.transaction.group, self.born_ms)
        return self.local

    def deadline(self) -> Deadline:
        """While inside, a task is cancelled once it is too late to commit, and fails with that."""
        return self.deadlines.within(self.attempts.left_s, self.attempts.overdue)

    def run(self) -> LocalTransactionState:
        """Run the function of a resource that blocks; returns the state of its last attempt."""
        assert self.call is not None, "a block runs by itself"
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
                        if self.late is not None:
                            self.late.send(self, result)
                    self.attempts.check_time()
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
        assert self.call is not None, "a block runs by itself"
        function, args, kwargs = self.call
        self.has_begun = True
        while True:
            local = self.open()
            try:
                async with local as session:
                    with Entered(self.transaction, session), self.deadline():
                        result = await function(session, *args, **kwargs)
                        if self.late is not None:
                            await self.late.asend(self, result)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    self.transaction.left = local.state
                    raise
                # This task is not cancelled, but something that the function waited for.
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
        """Note the failure of an attempt; returns the pause before the next one, if any."""
        note(self.transaction.xid, "the local transaction ends with %r", error)
        pause_s = None if self.late is not None else self.pause_s(state, error)
        if pause_s is None:
            self.problem = error
        return pause_s

    def pause_s(self, state: LocalTransactionState, error: BaseException) -> float | None:
        """The pause before another attempt; ``None`` to give up."""
        is_undone = state is LocalTransactionState.ROLLBACK
        if is_undone and self.resource.may_retry(error):
            return self.attempts.pause_s(error)
        return None


def _refuse_awaitable(result: object) -> NoReturn:
    """Refuse the result of a plain function that nothing has awaited: its work is not done."""
    if inspect.iscoroutine(result):
        result.close()
    raise UsageError(f"the function returned {type(result).__name__}, which nothing awaits")


@dataclass(slots=True)
class LateMessage:
    """The message of a function whose result makes it. It cannot be stored before the function
    runs, so it is stored before the commit. If it is not stored safely, nothing is committed.
    """

    topic: str
    """Its topic, if that is known before."""
    make: Callable[[object], Message]
    """Makes the message from a result, in the function's thread or task."""
    begin: Callable[[TransactionMachine[Any], Message], Coroutine[Any, Any, None]]
    """Sends its half message, in the producer's loop."""

    def send(self, work: Work[Any], result: object) -> None:
        """Send the half message, while this thread waits.

        Raises:
            Exception: Why it is not stored; nothing may be committed then.
        """
        attempts = work.attempts
        work.local.flush()
        message = self.make(result)
        attempts.check_time()
        sending = self._sending(work.transaction, message)
        try:
            while not sending.done():
                attempts.check_time()
                # Ctrl-C may come just before this thread begins to wait, and would not wake it.
                with suppress(TimeoutError):
                    sending.exception(min(LOOK_S, max(0.0, attempts.left_s)))
            sending.result()
        except concurrent.futures.CancelledError as error:
            raise UsageError("the manager was closed meanwhile") from error
        finally:
            sending.cancel()

    def _sending(
        self, transaction: TransactionMachine[Any], message: Message
    ) -> concurrent.futures.Future[None]:
        steps = self.begin(transaction, message)
        try:
            return asyncio.run_coroutine_threadsafe(steps, transaction.active.loop)
        except RuntimeError as error:
            steps.close()
            raise UsageError("the manager was closed meanwhile") from error

    async def asend(self, work: Work[Any], result: object) -> None:
        """The same in the loop.

        Raises:
            Exception: Why it is not stored; nothing may be committed then.
        """
        await work.local.aflush()
        await self.begin(work.transaction, self.make(result))
        work.attempts.check_time()
