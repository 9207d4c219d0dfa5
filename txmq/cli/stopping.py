"""What ends a command that goes on until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from txmq.cli.output import note

__all__ = ["at_signals"]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def at_signals(stopped: asyncio.Event) -> Iterator[None]:
    """While inside, Ctrl-C and SIGTERM set an event of the loop that runs.

    A second Ctrl-C ends the process at once, whatever it is doing.
    """
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        stopped.set()
        # The system's own default: it ends the process also where the loop does not run.
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
        # uvloop keeps them when it is closed, and Ctrl-C would not be heard any more.
        with suppress(NotImplementedError):
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
        signal.signal(signal.SIGINT, before)
