"""Daemon threads for blocking functions, so that the event loop does not wait for them.

A function that never returns blocks only its own thread: other functions still run, and the program
can end. An executor's threads would keep the program from ending.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Protocol, TypeAlias

__all__ = ["Job", "Runner", "Threads", "call_in_loop", "run_job", "set_error"]

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
        self._wanted = 0
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()

    def run(self, work: Callable[[], object], /) -> asyncio.Future[object]:
        """See :meth:`Runner.run`."""
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._wanted += 1
        if self._wanted > self._started and self._started < self._count:
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
            deliver, _ = run_job(*job)
            call_in_loop(job[0], partial(self._returned, deliver))
            del job, deliver  # A waiting thread must not keep the last result alive.

    def _returned(self, deliver: Callable[[], None]) -> None:
        self._wanted -= 1
        deliver()


def run_job(
    future: asyncio.Future[object], work: Callable[[], object]
) -> tuple[Callable[[], None], BaseException | None]:
    """Run a job, and return the call that resolves its future.

    The second value is an exception that must also end the caller, such as ``KeyboardInterrupt``.
    """
    try:
        return partial(_succeed, future, work()), None
    except StopIteration as error:
        # A future cannot hold StopIteration: its awaiter would wait for ever.
        return partial(set_error, future, _wrapped(error)), None
    except Exception as error:  # noqa: BLE001 - the awaiter gets it
        return partial(set_error, future, error), None
    except BaseException as error:  # noqa: BLE001 - wrapped: it must not end the loop
        return partial(set_error, future, _wrapped(error)), error


def _wrapped(error: BaseException) -> RuntimeError:
    wrapped = RuntimeError(f"a function raised {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped


def call_in_loop(future: asyncio.Future[object], callback: Callable[[], None]) -> None:
    """Call a function in the future's event loop, from any thread."""
    # A closed loop raises; it has no waiter left either.
    with suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(callback)


def _succeed(future: asyncio.Future[object], result: object) -> None:
    if not future.done():
        future.set_result(result)


def set_error(future: asyncio.Future[object], error: BaseException) -> None:
    """Fail the future, unless it is done or cancelled."""
    if not future.done():
        future.set_exception(error)
