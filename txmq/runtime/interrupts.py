"""Make Ctrl-C end a program, quietly if it only waits."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType

__all__ = ["restore_interrupt", "until_stopped"]


def restore_interrupt() -> None:
    """Let SIGINT raise :class:`KeyboardInterrupt` again where the parent process ignores it.

    A shell script that starts a command with ``&`` makes it ignore SIGINT, and so do some
    supervisors. Python installs no handler then, and no later SIGINT ends the program.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _Interrupt:
    """Notes that Ctrl-C came, and lets the handler below do its work."""

    def __init__(self, below: Callable[[int, FrameType | None], object]) -> None:
        self._below = below
        self.has_come = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.has_come = True
        self._below(number, frame)


async def until_stopped(stopped: asyncio.Event) -> None:
    """Wait for an event. Ctrl-C ends the wait too, instead of cancelling the task that waits.

    So a program that does nothing but wait leaves its ``async with`` blocks in order, and
    :func:`asyncio.run` returns. Otherwise it would raise :class:`KeyboardInterrupt` at the end.
    """
    below = signal.getsignal(signal.SIGINT)
    if not callable(below) or threading.current_thread() is not threading.main_thread():
        await stopped.wait()
        return
    # Another task may wait in the same way.
    interrupt = below if isinstance(below, _Interrupt) else _Interrupt(below)
    signal.signal(signal.SIGINT, interrupt)
    try:
        await stopped.wait()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not interrupt.has_come or task is None or task.uncancel():
            raise
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, below)
