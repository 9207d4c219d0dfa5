"""Background work with an owner that ends it: tasks of the event loop, whose failures are logged,
and daemon threads for blocking functions, so that they do not block the loop.

A function that never returns blocks only its own thread: other functions still run, and the program
can end. An executor's threads would keep the program from ending.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias

__all__ = ["Job", "Runner", "Tasks", "Threads", "resolve", "run_job", "until_first"]

log = logging.getLogger(__name__)


class Tasks:
    """The background tasks of one owner."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Any], None] = {}

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run a coroutine until it ends or :meth:`stop` cancels it; a failure is logged."""
        task = asyncio.create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        while self._running:
            tasks = list(self._running)
            for task in tasks:
                task.cancel()
            # Not gather: if this call is cancelled, the remaining tasks must stay registered.
            await asyncio.wait(tasks)


async def until_first(*works: Coroutine[Any, Any, Any]) -> None:
    """Run coroutines until the first of them ends, then cancel the others and wait for them.

    Raises:
        Exception: What one of them raised.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end


Job: TypeAlias = tuple[asyncio.Future[object], Callable[[], object]]


class Runner(Protocol):
    """Runs blocking functions for the event loop."""

    def run(self, work: Callable[[], object], /) -> asyncio.Future[object]:
        """Run a function in a thread. It runs to its end even if its caller is cancelled."""
        ...


class Threads:
    """A pool of threads, started when needed and kept until :meth:`close`.

    Args:
        name: The threads' name, before their number.
        count: The maximum number of threads; further functions wait for a free one.
    """

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._started = 0
        self._free: deque[None] = deque()
        """One entry for each idle thread that no queued job counts on."""
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()

    def run(self, work: Callable[[], object], /) -> asyncio.Future[object]:
        """See :meth:`Runner.run`."""
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        if self._free:
            self._free.pop()
        elif self._started < self._count:
            self._started += 1
            name = f"{self._name}-{self._started}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        self._jobs.put((future, work))
        return future

    def close(self) -> None:
        """End the threads, each after its current function returns."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            run_job(*job, self._free)
            del job  # A waiting thread must not keep the last result alive.


def run_job(
    future: asyncio.Future[object], work: Callable[[], object], free: deque[None] | None = None
) -> BaseException | None:
    """Run a job, and make the future's event loop resolve it.

    Returns an exception that must also end the caller, such as ``KeyboardInterrupt``. ``free`` gets
    an entry before the awaiter can know that this thread is free again.
    """
    result: object = None
    failure: BaseException | None = None
    interruption: BaseException | None = None
    try:
        result = work()
    except StopIteration as error:
        # A future cannot hold StopIteration: its awaiter would wait forever.
        failure = _wrapped(error)
    except Exception as error:  # noqa: BLE001 - the awaiter gets it
        failure = error
    except BaseException as error:  # noqa: BLE001 - wrapped: it must not end the loop
        failure, interruption = _wrapped(error), error
    if free is not None:
        free.append(None)
    # A closed loop raises; it has no waiter left either.
    with suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(resolve, future, result, failure)
    del failure  # Its traceback refers to this frame, which must not refer back to it.
    return interruption


def _wrapped(error: BaseException) -> RuntimeError:
    wrapped = RuntimeError(f"a function raised {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped


def resolve(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    """Give a future its result or its error, unless its waiter was cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
