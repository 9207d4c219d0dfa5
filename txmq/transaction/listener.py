"""The application's listener, and the blocking caller's thread that runs its functions."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from txmq.errors import UsageError
from txmq.message import ReceivedMessage
from txmq.runtime import background
from txmq.runtime.signatures import signature_of
from txmq.runtime.tasks import Job, run_job
from txmq.transaction.state import HalfMessage, LocalTransactionState

__all__ = ["CallerThread", "LocalState", "TransactionListener", "check_listener"]


LocalState: TypeAlias = LocalTransactionState | Awaitable[LocalTransactionState]


class TransactionListener(Protocol):
    """Runs local transactions, and reports their outcome afterwards.

    Both methods may be ``async``. Plain methods run in the producer's threads, except that
    :class:`txmq.blocking.TransactionProducer` runs ``execute_local_transaction`` in the caller's.
    """

    @abstractmethod
    def execute_local_transaction(self, message: HalfMessage, arg: Any, /) -> LocalState:
        """Run the local transaction, and return its state.

        It runs once the half message is stored. Any exception leaves the outcome open, except
        :class:`txmq.errors.RollBack`, which means ``ROLLBACK``.

        Args:
            message: The message, or the first of several; store its ``id`` with the writes of the
                local transaction.
            arg: The argument of ``send_in_transaction``.
        """
        ...

    @abstractmethod
    def check_local_transaction(self, message: ReceivedMessage, /) -> LocalState:
        """Return the state of a local transaction, which may have run in another process.

        Look up its writes by the message's ``xid``. Before you return ``ROLLBACK``, make sure that
        it can no longer commit: it may still be running.
        """
        ...


def check_listener(listener: object) -> None:
    """Refuse an unusable listener before the first check needs it.

    Raises:
        UsageError: A method is missing, or takes other arguments.
    """
    for name, count in (("execute_local_transaction", 2), ("check_local_transaction", 1)):
        method = getattr(listener, name, None)
        if isinstance(listener, type) or not callable(method):
            raise UsageError(
                f"a TransactionListener needs a method {name}; {listener!r} has none to call"
            )
        try:
            signature_of(method).bind(*[object()] * count)
        except TypeError as error:
            raise UsageError(f"{name} is called with {count} arguments: {error}") from error
        except ValueError:
            continue  # Some built-in functions have no signature.


class CallerThread(background.WaitingThread):
    """A thread that runs plain functions for the event loop while it waits for the loop."""

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
        """Fail the functions that have not begun: the thread no longer waits. The loop calls it."""
        self._is_abandoned = True
        while self._jobs:
            future, _ = self._jobs.popleft()
            if not future.done():
                text = "the thread that was to run this function was interrupted"
                future.set_exception(RuntimeError(text))

    def serve(self) -> None:
        """Run functions for the loop until the loop reports the end of the call.

        Ctrl-C, or any other ``BaseException`` that is not an ``Exception``, ends the wait and is
        raised here; the loop receives an error.
        """
        is_over = False
        while not is_over:
            self._sleep()
            is_over = self._is_over  # Read this before the queue, so that queued jobs still run.
            while self._jobs:
                # The job stays in the queue until its future is set: Ctrl-C may come at any moment.
                interruption = run_job(*self._jobs[0])
                if interruption is not None:
                    raise interruption
                self._jobs.popleft()
