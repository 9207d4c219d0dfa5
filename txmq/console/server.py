"""Serves the console over HTTP until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import ClassVar, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from txmq.console.app import Console
from txmq.console.settings import ConsoleSettings
from txmq.limits import CONSOLE_REQUESTS_MAX, CONSOLE_WAITING_MAX
from txmq.metrics.http import HttpServer

__all__ = ["serve"]

STOP_S: Final = 5
"""How long a stop waits for pages that are being answered."""
REQUEST_S: Final = 10.0
"""How long a request may take to arrive."""
IDLE_S: Final = 15
"""How long an idle connection of a browser stays open."""
HEADER_BYTES_MAX: Final = 64 * 1024


_ARRIVING: Final = (h11.IDLE, h11.SEND_BODY)
"""The states of a peer whose request has not arrived completely."""


class _BoundedProtocol(H11Protocol):
    """Closes a connection whose request does not arrive in time, or the oldest of too many.

    uvicorn itself has no limit for the first request, or for the rest of a request.
    """

    waiting: ClassVar[dict[_BoundedProtocol, None]] = {}
    """The connections of this process that wait for a request, the oldest first."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.conn.their_state not in _ARRIVING:
            self._stop_watch()
            return
        self._wait()
        if self._timer is None:
            self._timer = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _wait(self) -> None:
        self.waiting[self] = None
        if len(self.waiting) > CONSOLE_WAITING_MAX:
            oldest = next(iter(self.waiting))
            del self.waiting[oldest]
            oldest.transport.abort()

    def _stop_watch(self) -> None:
        self.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _ConsoleServer(uvicorn.Server):
    """Calls a function when it listens, and leaves signals to the caller, because uvicorn would
    raise them again and so end the process.
    """

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    settings: ConsoleSettings,
    listening: socket.socket,
    stopped: asyncio.Event,
    ready: Callable[[str], None],
    http: tuple[str, int] | None = None,
) -> None:
    """Serve the console on an open socket.

    Args:
        settings: What the console shows, and to whom.
        listening: The socket; it is closed at the end.
        stopped: Ends the console, after the pages that are being answered.
        ready: Called when browsers can connect, with the address of the metrics, if there is one.
        http: Where to serve metrics and health; nowhere if left out.

    Raises:
        ConfigError: ``settings.names`` names no server.
        OSError: The address of the metrics is taken, or does not belong to this machine.
    """
    async with AsyncExitStack() as stack:
        console, address = Console(settings), ""
        if http is not None:
            server = HttpServer(console.monitoring(), *http)
            await stack.enter_async_context(server)
            address = "http://{}:{}/metrics".format(*server.address)
        await _serve(console, listening, stopped, lambda: ready(address))


async def _serve(
    console: Console, listening: socket.socket, stopped: asyncio.Event, ready: Callable[[], None]
) -> None:
    config = uvicorn.Config(
        console.app(),
        http=_BoundedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=CONSOLE_REQUESTS_MAX + CONSOLE_WAITING_MAX,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=STOP_S,
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
    )
    server = _ConsoleServer(config, ready)
    serving = asyncio.ensure_future(server.serve([listening]))
    stopping = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        console.stop()
        server.should_exit = True
        await serving
    finally:
        stopping.cancel()
        listening.close()
