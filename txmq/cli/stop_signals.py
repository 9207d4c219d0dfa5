"""The signals that end a command which runs until it is stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from txmq.cli.output import note

__all__ = ["stop_at_signals", "unless_stopped"]

T = TypeVar("T")

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_at_signals(stopped: asyncio.Event) -> Iterator[None]:
    """Inside this context, Ctrl-C and SIGTERM set an event of the running loop.

    A second Ctrl-C ends the process at once.
    """
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        stopped.set()
        # The system's default ends the process even while the loop is blocked.
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        note("stopping; press Ctrl-C again to end at once")

    # On Windows loops handle no signals, and Ctrl-C is a KeyboardInterrupt as always.
    with suppress(NotImplementedError):
        loop.add_signal_handler(signal.SIGTERM, stopped.set)
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        # uvloop keeps the handlers after it is closed, and Ctrl-C would have no effect any more.
        with suppress(NotImplementedError):
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
        signal.signal(signal.SIGINT, before)


async def unless_stopped(stopped: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Run some work; cancel it when the event is set."""
    task, stop = asyncio.ensure_future(work), asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        stop.cancel()
        task.cancel()
