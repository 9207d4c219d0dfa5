"""An event loop in its own thread, for programs without one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from txmq.errors import UsageError
from txmq.runtime.process import OwnerProcess

__all__ = ["Background", "fast_loop"]

R = TypeVar("R")

LOOK_S: Final = 1.0
"""Longest delay before a badly timed Ctrl-C is noticed."""

END_S: Final = 10.0
"""How long a background loop may take to end once everything in it is closed."""


class WaitingThread:
    """A thread that waits for the loop.

    Its lock is held while it has no work; only the loop releases it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._is_over = False

    def leave(self) -> None:
        """End the wait; called by the loop."""
        self._is_over = True
        self._wake()

    def serve(self) -> None:
        """Wait until the loop ends the wait."""
        while not self._is_over:
            self._sleep()

    def abandon(self) -> None:
        """Mark the wait as abandoned: the caller was interrupted; called by the loop."""

    def _wake(self) -> None:
        # Release at the end of the loop's turn: a thread that wakes earlier would only wait again,
        # for the interpreter lock, which the loop holds.
        asyncio.get_running_loop().call_soon(self._release)

    def _release(self) -> None:
        if self._lock.locked():
            self._lock.release()

    def _sleep(self) -> None:
        # The timeout is for a Ctrl-C that comes just before this call and would not end the wait.
        self._lock.acquire(timeout=LOOK_S)


class Background:
    """An event loop in its own thread.

    Args:
        noun: The name that errors use for the object it runs for.
    """

    def __init__(self, noun: str = "client") -> None:
        self.noun = noun
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._owner = OwnerProcess("client")

    @property
    def is_running(self) -> bool:
        """True if it runs in this process."""
        return self._loop is not None and self._owner.is_current

    def start(self) -> None:
        """Start the thread and its loop."""
        self._owner = OwnerProcess("client")
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name="txmq-loop", daemon=True
        )
        self._thread.start()
        ready.result()

    def _run(self, ready: concurrent.futures.Future[None]) -> None:
        with asyncio.Runner(loop_factory=fast_loop()) as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(ready.set_result, None)
            self._loop.run_forever()

    def stop(self) -> None:
        """Stop the loop and cancel its tasks."""
        is_running = self.is_running
        loop, self._loop = self._loop, None
        thread, self._thread = self._thread, None
        if is_running and loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(END_S)

    def wait(self, work: Coroutine[Any, Any, R], here: WaitingThread | None = None) -> R:
        """Run a coroutine in the loop and wait for it; calls that it sends to this thread run here.

        Raises:
            UsageError: The loop does not run, or runs in the parent process of a fork, or this
                thread runs an event loop.
        """
        loop = self._loop
        if loop is None:
            work.close()
            raise UsageError(
                f"this {self.noun} is not open; use it with 'with', or call its start()"
            )
        if not self._owner.is_current:
            work.close()
            self._owner.check()
        if _is_in_a_loop():
            work.close()
            raise UsageError("in an event loop use txmq itself; txmq.blocking would stall it")
        call = _Call(work, here or WaitingThread())
        try:
            loop.call_soon_threadsafe(call.start)
            call.here.serve()
        except BaseException:
            # Ctrl-C may hit the waiting thread, even before it begins to wait; the work in the
            # loop must be cancelled too.
            with suppress(RuntimeError):  # The loop has ended, and all its tasks with it.
                loop.call_soon_threadsafe(call.cancel)
            raise
        return call.result()


class _Call(Generic[R]):
    """A coroutine that runs in the loop while another thread waits for it."""

    def __init__(self, work: Coroutine[Any, Any, R], here: WaitingThread) -> None:
        self.here = here
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._has_begun = self._is_cancelled = False
        self._found: list[R] = []
        self._problem: BaseException | None = None

    def start(self) -> None:
        """Run it."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        if self._is_cancelled:
            self._work.close()
            return
        self._has_begun = True
        try:
            self._found.append(await self._work)
        except asyncio.CancelledError:
            self._problem = concurrent.futures.CancelledError()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._problem = error
        # Wake the caller here: the task's own callbacks would run one turn of the loop later.
        self.here.leave()

    def cancel(self) -> None:
        """Cancel the coroutine: the caller no longer waits."""
        self.here.abandon()
        self._is_cancelled = True
        if self._task is None:
            self._work.close()
        elif self._has_begun:
            self._task.cancel()

    def result(self) -> R:
        """Return its result, or raise its error."""
        if (error := self._problem) is None:
            return self._found[0]
        try:
            raise error
        finally:
            del error, self._problem  # The error's traceback refers to this frame.


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop factory of uvloop, if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
