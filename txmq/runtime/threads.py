"""Daemon threads for blocking functions, so that the event loop does not wait for them.

A function that never returns blocks only its own thread: other functions still run, and the program
can end. An executor's threads would keep the program from ending.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol, TypeAlias

__all__ = ["Job", "Runner", "Threads", "run_job"]

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
        """One entry for each thread that has returned from a function since a job counted on it."""
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
        # A future cannot hold StopIteration: its awaiter would wait for ever.
        failure = _wrapped(error)
    except Exception as error:  # noqa: BLE001 - the awaiter gets it
        failure = error
    except BaseException as error:  # noqa: BLE001 - wrapped: it must not end the loop
        failure, interruption = _wrapped(error), error
    if free is not None:
        free.append(None)
    # A closed loop raises; it has no waiter left either.
    with suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(_resolve, future, result, failure)
    del failure  # Its traceback refers to this frame, which must not refer back to it.
    return interruption


def _wrapped(error: BaseException) -> RuntimeError:
    wrapped = RuntimeError(f"a function raised {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped


def _resolve(future: asyncio.Future[object], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
