"""Metrics over HTTP, for Prometheus to scrape; just enough HTTP for that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, cast

from txmq.runtime.network import SystemNetwork
from txmq.runtime.tasks import Tasks

__all__ = ["metrics_server"]

REQUEST_BYTES_MAX: Final = 8 * 1024
REQUEST_S: Final = 10.0
_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@asynccontextmanager
async def metrics_server(
    host: str, port: int, page: Callable[[], Awaitable[str]]
) -> AsyncIterator[tuple[str, int]]:
    """Serve a page at ``/metrics`` inside this context, which yields the address.

    Raises:
        OSError: The address is taken, or not one of this machine.
    """
    tasks = Tasks()
    listening = await SystemNetwork().listen(lambda: _ScrapeProtocol(page, tasks), host, port)
    try:
        yield listening.address
    finally:
        listening.close()
        await tasks.stop()


class _ScrapeProtocol(asyncio.Protocol):
    def __init__(self, page: Callable[[], Awaitable[str]], tasks: Tasks) -> None:
        self._page = page
        self._tasks = tasks
        self._asked = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's class.
        self._transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(REQUEST_S, self._transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        del error
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None, "it is connected"
        before, self._asked = self._asked, self._asked + data
        if len(self._asked) > REQUEST_BYTES_MAX:
            self._transport.abort()
        elif b"\r\n\r\n" in self._asked and b"\r\n\r\n" not in before:
            self._tasks.start(self._answer(self._transport), "metrics page")

    async def _answer(self, transport: asyncio.Transport) -> None:
        verb, _, rest = self._asked.partition(b" ")
        if verb == b"GET" and rest.partition(b" ")[0].partition(b"?")[0] in {b"/", b"/metrics"}:
            status, body = "200 OK", (await self._page()).encode()
        else:
            status, body = "404 Not Found", b"GET /metrics\n"
        head = f"HTTP/1.1 {status}\r\nContent-Type: {_TYPE}\r\nContent-Length: {len(body)}\r\n"
        transport.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        transport.close()
