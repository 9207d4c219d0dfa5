"""An event loop in a thread of its own, for programs that have none."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Generic, Protocol, TypeVar

from txmq.errors import UsageError

__all__ = ["Background"]

R = TypeVar("R")

LOOK_S: Final = 1.0
"""How soon Ctrl-C is noticed that came at a bad moment."""

END_S: Final = 10.0
"""How long a background loop may take to end once everything in it has been closed."""


class Here(Protocol):
    """A thread that runs what is wanted while it waits."""

    def serve(self) -> None:
        """Do so until there is nothing more to wait for."""
        ...

    def leave(self) -> None:
        """There is nothing more to wait for."""
        ...


class Background:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Let it run."""
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name="txmq-loop", daemon=True
        )
        self._thread.start()
        ready.result()

    def _run(self, ready: concurrent.futures.Future[None]) -> None:
        with asyncio.Runner(loop_factory=_fast_loop()) as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(ready.set_result, None)
            self._loop.run_forever()

    def stop(self) -> None:
        """End it, and whatever still runs in it."""
        loop, self._loop = self._loop, None
        thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(END_S)

    def wait(self, work: Coroutine[Any, Any, R], here: Here | None = None) -> R:
        """Run something there and wait for it; what it wants run here is run meanwhile.

        Raises:
            UsageError: The loop does not run, or an event loop would have to wait here.
        """
        loop = self._loop
        if loop is None:
            work.close()
            raise UsageError("this is not open; use it with 'with'")
        if _is_in_a_loop():
            work.close()
            raise UsageError("in an event loop use txmq itself; txmq.blocking would stall it")
        call = _Call(work)
        try:
            running = asyncio.run_coroutine_threadsafe(call.run(), loop)
            if here is not None:
                running.add_done_callback(lambda _: here.leave())
                here.serve()
            while not running.done():
                # Ctrl-C may come just before this thread falls asleep, and would not wake it.
                with suppress(TimeoutError):
                    running.exception(LOOK_S)
            return running.result()
        except BaseException:
            # Ctrl-C reaches whoever waits, also before it has begun to; what is waited for must
            # hear of it.
            with suppress(RuntimeError):  # The loop has ended, and with it all that ran there.
                loop.call_soon_threadsafe(call.cancel)
            raise


class _Call(Generic[R]):
    """Something that runs in the loop while another thread waits for it."""

    def __init__(self, work: Coroutine[Any, Any, R]) -> None:
        self._work = work
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    async def run(self) -> R:
        """Run it, unless that is not wanted any more."""
        if self._is_cancelled:
            self._work.close()
            raise asyncio.CancelledError
        task = self._task = asyncio.current_task()
        assert task is not None, "what runs in a loop is a task"
        # After Ctrl-C nobody is left who hears how it ends, and asyncio would complain of that.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await self._work

    def cancel(self) -> None:
        """Nobody waits any more."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
