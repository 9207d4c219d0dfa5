"""What ends a command that goes on until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["at_signals"]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def at_signals(stopped: asyncio.Event) -> Iterator[None]:
    """While inside, Ctrl-C and SIGTERM set an event of the loop that runs."""
    loop = asyncio.get_running_loop()
    for each in _SIGNALS:
        loop.add_signal_handler(each, stopped.set)
    try:
        yield
    finally:
        # uvloop keeps them when it is closed, and Ctrl-C would not be heard any more.
        for each in _SIGNALS:
            loop.remove_signal_handler(each)
