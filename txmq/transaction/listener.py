"""The application's side of transactions: its listener, how its functions are called, and a thread
that runs them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from txmq.client.values import SendResult, SendStatus
from txmq.errors import RollBack, UsageError
from txmq.message import Message, ReceivedMessage
from txmq.runtime import background
from txmq.runtime.signatures import signature_of
from txmq.runtime.tasks import Job, Runner, run_job
from txmq.transaction.state import LocalTransactionState

__all__ = [
    "CallerThread",
    "HalfMessage",
    "LocalAnswer",
    "LocalState",
    "TransactionListener",
    "ask",
    "check_listener",
    "doubt_of",
    "is_async",
]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfMessage(Message):
    """A message that is stored and that no consumer sees yet; its transaction is not decided."""

    id: str
    """The transaction's id, ``xid``; a check names the same id. Store it with what the local
    transaction writes."""
    sent: SendResult

    @property
    def key(self) -> str:
        """The first of its keys, or its id if it has no key."""
        return self.keys[0] if self.keys else self.id

    def doubt(self) -> UsageError | None:
        """Why its local transaction must not commit; ``None`` if the message is stored safely."""
        return doubt_of(self.sent)


def doubt_of(sent: SendResult) -> UsageError | None:
    """See :meth:`HalfMessage.doubt`."""
    # As stock producers do: a message that the broker may lose with its memory is given up.
    if sent.status is SendStatus.OK:
        return None
    return UsageError(f"the half message is stored, but not safely: {sent.status.name}")


LocalState: TypeAlias = LocalTransactionState | Awaitable[LocalTransactionState]


class TransactionListener(Protocol):
    """Runs local transactions, and knows their outcome afterwards.

    Both methods may be ``async``. A plain one runs in a thread: in a thread of the producer, or for
    ``execute_local_transaction`` of a :class:`txmq.blocking.TransactionProducer` in the caller's.
    """

    @abstractmethod
    def execute_local_transaction(self, message: HalfMessage, arg: Any, /) -> LocalState:
        """Run the local transaction, and return its state.

        It runs once the half message is stored. Any exception leaves the outcome open, except
        :class:`txmq.errors.RollBack`, which means ``ROLLBACK``.

        Args:
            message: The message; its ``id`` belongs into what the local transaction writes.
            arg: The argument of ``send_in_transaction``.
        """
        ...

    @abstractmethod
    def check_local_transaction(self, message: ReceivedMessage, /) -> LocalState:
        """Return the state of a local transaction, perhaps of another process of the group.

        Look up what it has written under the message's ``id``. Before you return ``ROLLBACK``, make
        sure that it can no longer commit: it may still be running.
        """
        ...


class LocalAnswer(NamedTuple):
    """The state of a local transaction as the application gives it, and the exception it raised."""

    state: LocalTransactionState
    problem: Exception | None = None


def check_listener(listener: object) -> None:
    """Refuse a listener that cannot be called, before the first check needs it.

    Raises:
        UsageError: A method is missing, or takes other arguments.
    """
    for name, count in (("execute_local_transaction", 2), ("check_local_transaction", 1)):
        method = getattr(listener, name, None)
        if isinstance(listener, type) or not callable(method):
            raise UsageError(f"a TransactionListener has {name}; {listener!r} has none to call")
        try:
            signature_of(method).bind(*[object()] * count)
        except TypeError as error:
            raise UsageError(f"{name} is called with {count} arguments: {error}") from error
        except ValueError:
            continue  # Some built-in functions have no signature.


# Calling the application


def is_async(method: Callable[..., object]) -> bool:
    """Whether a method is ``async``, or an object whose call is."""
    call = getattr(method, "__call__", None)  # noqa: B004 - an object may have an async call
    return inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(call)


async def ask(xid: str, call: Callable[[], object], runner: Runner | None) -> LocalAnswer:
    """Call the application about a transaction; every result and exception becomes an answer.

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
            # The caller's context goes along, as with asyncio.to_thread: traces are in it.
            state = await runner.run(partial(copy_context().run, call))
            if inspect.isawaitable(state):
                state = await state  # A plain function may return what an async one returned.
    except asyncio.CancelledError:
        if task is not None and task.cancelling():
            raise
        # This task is not cancelled, but an operation that the application awaited.
        return _unknown(xid, RuntimeError("an operation that the listener awaited was cancelled"))
    except RollBack as error:
        return LocalAnswer(LocalTransactionState.ROLLBACK, error)
    except Exception as error:  # noqa: BLE001 - any exception leaves the outcome open
        return _unknown(xid, error)
    if task is not None and task.cancelling():
        # The application has swallowed its cancellation; its answer counts all the same.
        log.warning("the listener ignored its cancellation in transaction %s", xid)
    if isinstance(state, LocalTransactionState):
        return LocalAnswer(state)
    wrong = TypeError(f"a listener returns a LocalTransactionState, not {state!r}")
    log.error("the listener gave no valid answer for transaction %s: %s", xid, wrong)
    return LocalAnswer(LocalTransactionState.UNKNOWN, wrong)


def _unknown(xid: str, error: Exception) -> LocalAnswer:
    log.error("the listener failed with transaction %s", xid, exc_info=error)
    return LocalAnswer(LocalTransactionState.UNKNOWN, error)


class CallerThread(background.WaitingThread):
    """A thread that waits for the loop, and meanwhile runs plain functions for it."""

    def __init__(self) -> None:
        super().__init__()
        self._jobs: deque[Job] = deque()
        self._is_abandoned = False

    def run(self, work: Callable[[], object], /) -> asyncio.Future[object]:
        """See :meth:`Runner.run`."""
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._jobs.append((future, work))
        if self._is_abandoned:
            self.abandon()
        else:
            self._wake()
        return future

    def abandon(self) -> None:
        """Fail the functions that have not begun, as the thread no longer waits; for the loop."""
        self._is_abandoned = True
        while self._jobs:
            future, _ = self._jobs.popleft()
            if not future.done():
                text = "the thread that was to run a function was interrupted"
                future.set_exception(RuntimeError(text))

    def serve(self) -> None:
        """Run functions for the loop until the loop reports the end of the call.

        Ctrl-C, and whatever else is not an ``Exception``, ends it and is raised; the loop receives
        an error.
        """
        is_over = False
        while not is_over:
            self._sleep()
            is_over = self._is_over  # Read before the last look: a job that is there still runs.
            while self._jobs:
                # The job stays in the queue until its future is set: Ctrl-C may come at any moment.
                interruption = run_job(*self._jobs[0])
                if interruption is not None:
                    raise interruption
                self._jobs.popleft()
