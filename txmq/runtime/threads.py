"""Where plain functions run that the loop must not wait for: in threads.

The threads are daemons: a function that never returns keeps its thread and nothing else, neither
others from being run nor the program from ending. That is why they are not an executor's.
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
    """Whoever runs plain functions for the loop."""

    def run(self, work: Callable[[], object], /) -> asyncio.Future[object]:
        """Run a function in a thread. It runs to its end even if its caller is cancelled."""
        ...


class Threads:
    """Some threads, begun as they are needed and kept until the end.

    Args:
        name: What they are called.
        count: The most there may be; what is to be run beyond waits for one.
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
        """Let them end, each once its function returns."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            tell, _ = run_job(*job)
            call_in_loop(job[0], partial(self._returned, tell))
            del job, tell  # Nothing is kept while it waits for the next.

    def _returned(self, tell: Callable[[], None]) -> None:
        self._wanted -= 1
        tell()


def run_job(
    future: asyncio.Future[object], work: Callable[[], object]
) -> tuple[Callable[[], None], BaseException | None]:
    """How the future is to be told, and what ends more than the function."""
    try:
        return partial(_succeed, future, work()), None
    except StopIteration as error:
        # No future can hold it: whoever awaits it would wait for ever.
        return partial(set_error, future, _wrapped(error)), None
    except Exception as error:  # noqa: BLE001 - told to whoever waits
        return partial(set_error, future, error), None
    except BaseException as error:  # noqa: BLE001 - likewise; the loop itself shall not end of it
        return partial(set_error, future, _wrapped(error)), error


def _wrapped(error: BaseException) -> RuntimeError:
    wrapped = RuntimeError(f"a function raised {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped


def call_in_loop(future: asyncio.Future[object], tell: Callable[[], None]) -> None:
    """Have the future's loop call something, from whatever thread."""
    # Where the loop is closed nobody is left to be told.
    with suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(tell)


def _succeed(future: asyncio.Future[object], result: object) -> None:
    if not future.done():
        future.set_result(result)


def set_error(future: asyncio.Future[object], error: BaseException) -> None:
    """Tell the future, unless nobody waits for it any more."""
    if not future.done():
        future.set_exception(error)
