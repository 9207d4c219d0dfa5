"""The link between a supervisor and a child process: a socket pair with one JSON object per line.

The child's end closes with the child, and the supervisor's with the supervisor. So each side
notices the other's death at once, even after ``kill -9``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias

import msgspec

__all__ = [
    "LINE_BYTES_MAX",
    "AskOrder",
    "ChildNotice",
    "ContentNotice",
    "FailedNotice",
    "FailureKind",
    "LoadedNotice",
    "Order",
    "ParentLink",
    "ReadyNotice",
    "ReportNotice",
    "StartOrder",
    "StopOrder",
]

LINE_BYTES_MAX: Final = 8 * 1024 * 1024
"""One line; the figures of a thousand series take half a megabyte."""

WATCH_S: Final = 1.0
"""How soon a child whose loop is blocked notices that its supervisor is gone."""

FailureKind: TypeAlias = Literal["refused", "unavailable"]
"""Whether the same start would fail again, or may succeed once a server is back."""


class StartOrder(msgspec.Struct, tag="start", frozen=True):
    """The first line to a child."""

    number: int
    """The child's number among the supervisor's processes, from 1 on."""
    plan: msgspec.Raw
    """Data for the program; the supervisor does not read it."""


class StopOrder(msgspec.Struct, tag="stop", frozen=True):
    """Asks the child to finish its work and end."""


class AskOrder(msgspec.Struct, tag="ask", frozen=True):
    """Asks the child for a report."""

    serial: int


class LoadedNotice(msgspec.Struct, tag="loaded", frozen=True):
    """The child has read its program without an error."""

    description: str


class ReadyNotice(msgspec.Struct, tag="ready", frozen=True):
    """The child works."""


class FailedNotice(msgspec.Struct, tag="failed", frozen=True):
    """The child could not start, and ends."""

    kind: FailureKind
    reason: str


class ReportNotice(msgspec.Struct, tag="report", frozen=True):
    """The answer to :class:`AskOrder`."""

    serial: int
    content: msgspec.Raw


class ContentNotice(msgspec.Struct, tag="content", frozen=True):
    """Content that only the program reads."""

    content: msgspec.Raw


Order: TypeAlias = StartOrder | StopOrder | AskOrder
"""The lines that a supervisor sends."""

ChildNotice: TypeAlias = LoadedNotice | ReadyNotice | FailedNotice | ReportNotice | ContentNotice
"""The lines that a child sends."""

_PIECE_BYTES: Final = 65_536

_DECODE_ORDER: Final = msgspec.json.Decoder(Order)


def _watch(parent: int, grace_s: float) -> None:
    never = threading.Event()
    while os.getppid() == parent:
        never.wait(WATCH_S)
    never.wait(grace_s)
    os._exit(1)


class ParentLink:
    """The child's end. Create it before the event loop runs; it works inside its ``async with``.

    Args:
        descriptor: The number of the socket's file descriptor.
        report: Makes the content of a report.

    Attributes:
        stopped: Set when the child must finish its work: the supervisor asked for it, or is gone.
        is_orphan: Whether the supervisor is gone.
    """

    def __init__(self, descriptor: int, report: Callable[[], bytes | Awaitable[bytes]]) -> None:
        # Programs that this one starts must not hold the socket open.
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._report = report
        self._reader: asyncio.Task[None] | None = None
        self._reporter: asyncio.Task[None] | None = None
        self._asked = 0
        self._writer: asyncio.StreamWriter | None = None
        self.stopped = asyncio.Event()
        self.is_orphan = False

    def read_start(self) -> StartOrder:
        """Read the first line, before the loop runs.

        Raises:
            ConnectionError: The supervisor is gone already.
        """
        line = b""
        while not line.endswith(b"\n"):
            piece = self._socket.recv(_PIECE_BYTES, socket.MSG_PEEK)
            # Further lines stay in the socket for the loop.
            taken = self._socket.recv(piece.find(b"\n") + 1 or len(piece)) if piece else b""
            if not taken:
                raise ConnectionError("the supervisor of this process is gone")
            line += taken
        order = _DECODE_ORDER.decode(line)
        assert isinstance(order, StartOrder), "the first line starts the child"
        return order

    def end_after_parent(self, grace_s: float) -> None:
        """End this process some seconds after its supervisor at the latest, even if a function
        blocks the event loop.
        """
        name = "txmq-parent-watch"
        threading.Thread(
            target=_watch, args=(os.getppid(), grace_s), name=name, daemon=True
        ).start()

    async def __aenter__(self) -> Self:
        reader, self._writer = await asyncio.open_connection(
            sock=self._socket, limit=LINE_BYTES_MAX
        )
        self._reader = asyncio.create_task(self._read(reader), name="supervisor's orders")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in (self._reader, self._reporter):
            if task is not None:
                task.cancel()
        if self._writer is not None:
            self._writer.close()

    def drain_at_sigterm(self) -> None:
        """Let SIGTERM set :attr:`stopped` for this child alone; a second one ends it at once."""
        loop = asyncio.get_running_loop()

        def stop() -> None:
            self.stopped.set()
            loop.remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

        loop.add_signal_handler(signal.SIGTERM, stop)

    def send(self, notice: ChildNotice) -> None:
        """Send a line, unless the supervisor is gone; works before the loop runs, too."""
        line = msgspec.json.encode(notice) + b"\n"
        if self._writer is None:
            with suppress(OSError):
                self._socket.sendall(line)
        elif not self._writer.is_closing():
            self._writer.write(line)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):  # The supervisor was killed.
            while line := await reader.readline():
                order = _DECODE_ORDER.decode(line)
                if isinstance(order, StopOrder):
                    self.stopped.set()
                elif isinstance(order, AskOrder):
                    self._ask(order.serial)
        self.is_orphan = True
        self.stopped.set()

    def _ask(self, serial: int) -> None:
        self._asked = serial
        if self._reporter is not None and not self._reporter.done():
            return  # The report in progress answers this order as well.
        found = self._report()
        if isinstance(found, bytes):
            self._send_report(found)
        else:
            self._reporter = asyncio.create_task(self._wait_for(found), name="report")

    async def _wait_for(self, report: Awaitable[bytes]) -> None:
        self._send_report(await report)

    def _send_report(self, content: bytes) -> None:
        self.send(ReportNotice(self._asked, msgspec.Raw(content)))
