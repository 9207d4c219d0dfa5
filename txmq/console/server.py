"""Serves the console over HTTP until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from txmq.console.app import Console
from txmq.console.settings import ConsoleSettings
from txmq.http_server import HttpServer
from txmq.limits import CONSOLE_REQUESTS_MAX

__all__ = ["serve"]

STOP_S: Final = 5
"""How long a stop waits for pages that are being answered."""
REQUEST_S: Final = 10.0
"""How long the header of a request may take."""
IDLE_S: Final = 15
"""How long an idle connection of a browser stays open."""
HEADER_BYTES_MAX: Final = 64 * 1024


class _BoundedProtocol(H11Protocol):
    """Closes a connection whose request does not arrive in time.

    uvicorn itself waits for ever for the first request, and for the rest of one that has begun.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering:
            self._stop_watch()
        elif self._timer is None:
            self._timer = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _stop_watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _ConsoleServer(uvicorn.Server):
    """Calls a function when it listens. The caller handles signals, because uvicorn would end the
    process by the signal itself.
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
        OSError: The address of the metrics is taken, or not one of this machine.
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
        limit_concurrency=CONSOLE_REQUESTS_MAX,
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
