"""The common parts of the tour's programs: the command line, and the end of consumers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from txmq import TxmqError

__all__ = ["Until", "run_consumer", "run_producer"]


class Until:
    """The end of a consumer: at Ctrl-C, or after a number of messages."""

    def __init__(self, count: int | None) -> None:
        self._left = count
        self._over = asyncio.Event()

    def saw(self, messages: int) -> None:
        """Count messages."""
        if self._left is not None:
            self._left -= messages
            if self._left <= 0:
                self._over.set()

    @property
    def is_over(self) -> bool:
        """True if it is time to end."""
        return self._over.is_set()

    async def over(self) -> None:
        """Return when it is time to end."""
        await self._over.wait()

    def listen(self) -> None:
        """Let Ctrl-C stop the consumer; a second Ctrl-C ends the program at once."""
        loop = asyncio.get_running_loop()

        def interrupt() -> None:
            self._over.set()
            loop.remove_signal_handler(signal.SIGINT)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            print("stopping; press Ctrl-C again to end at once", file=sys.stderr)

        loop.add_signal_handler(signal.SIGINT, interrupt)
        loop.add_signal_handler(signal.SIGTERM, self._over.set)


def run_producer(produce: Callable[[str], Coroutine[Any, Any, None]]) -> None:
    """Run a program that ends by itself: ``--names`` says where."""
    # A shell that starts this with `&` makes it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asked = _command_line().parse_args()
    _run(produce(asked.names))


def run_consumer(consume: Callable[[str, Until], Awaitable[None]]) -> None:
    """Run a program that goes on until Ctrl-C, or until it has seen ``--count`` messages."""
    command_line = _command_line()
    command_line.add_argument("--count", type=int, help="end after so many messages")
    asked = command_line.parse_args()

    async def main() -> None:
        until = Until(asked.count)
        until.listen()
        await consume(asked.names, until)

    _run(main())


def _command_line() -> ArgumentParser:
    known = os.environ.get("TXMQ_NAMES", "127.0.0.1:9876")
    command_line = ArgumentParser(description=sys.modules["__main__"].__doc__)
    command_line.add_argument("--names", default=known, help="name servers, host:port;host:port")
    return command_line


def _run(main: Coroutine[Any, Any, None]) -> None:
    # Print each result at once, even if the output is not a terminal.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        asyncio.run(main)
    except TxmqError as error:
        sys.exit(f"{type(error).__name__}: {error}")
