"""Metrics and health pages over just enough HTTP for monitoring programs.

Each connection carries one request and its page. The number of concurrent pages, the size of a
request and the time of an exchange are bounded, so that the pages cost a server little. When too
many connections wait for their peers, the server closes the oldest: a peer that sends half a
request, or reads no answer, keeps nobody out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeAlias, cast

from txmq.limits import HTTP_ANSWERS_MAX, HTTP_REQUEST_BYTES_MAX, HTTP_WAITING_MAX
from txmq.runtime.network import Network, ServerSocket, SystemNetwork
from txmq.runtime.tasks import Tasks

__all__ = ["METRICS_TYPE", "HttpPage", "HttpServer", "Pages", "health_pages"]

log = logging.getLogger(__name__)

EXCHANGE_S: Final = 10.0
"""Longest time from opening a connection to the end of its answer."""

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_TEXT_TYPE: Final = "text/plain; charset=utf-8"
_HEAD_END: Final = b"\r\n\r\n"


class HttpPage(NamedTuple):
    """A page with its status."""

    text: str
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = _TEXT_TYPE


Pages: TypeAlias = Mapping[str, Callable[[], Awaitable[HttpPage]]]
"""The functions that make the pages, by path."""


def health_pages(objection: Callable[[], Awaitable[str]]) -> Pages:
    """The pages for liveness and readiness probes.

    Args:
        objection: Returns why the process cannot do its work now; an empty text if it can.
    """

    async def live() -> HttpPage:
        return HttpPage("alive\n")

    async def ready() -> HttpPage:
        reason = await objection()
        if reason:
            return HttpPage(f"not ready: {reason}\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return HttpPage("ready\n")

    return {"/health/live": live, "/health/ready": ready}


class HttpServer:
    """Serves pages inside its ``async with``.

    Args:
        pages: The functions that make the pages, by path.
        host: The address to listen on.
        port: The port; with 0 the system chooses one.

    Attributes:
        address: The host and port it listens on.
    """

    def __init__(
        self, pages: Pages, host: str, port: int, *, network: Network | None = None
    ) -> None:
        self._pages = pages
        self._wanted = host, port
        self._network: Network = network or SystemNetwork()
        self._tasks = Tasks()
        # Exchanges whose request is incomplete, whose page is being made, and whose peer has not
        # read the page. The dictionaries are ordered: the longest wait comes first.
        self._arriving: dict[HttpExchange, None] = {}
        self._made: set[HttpExchange] = set()
        self._unread: dict[HttpExchange, None] = {}
        self._socket: ServerSocket | None = None
        self.address = host, port

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            OSError: The address is taken, or not one of this machine.
        """
        self._socket = await self._network.listen(lambda: HttpExchange(self), *self._wanted)
        self.address = self._socket.address
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._socket is not None:
            self._socket.close()
        await self._tasks.stop()
        for exchange in (*self._arriving, *self._made, *self._unread):
            exchange.abort()

    # Called by exchanges

    def note_open(self, exchange: HttpExchange) -> None:
        """A connection waits for its request."""
        _append(self._arriving, exchange, HTTP_WAITING_MAX)

    def serve(self, exchange: HttpExchange, head: bytes) -> None:
        """Make the page that a request asks for."""
        self._arriving.pop(exchange, None)
        if len(self._made) >= HTTP_ANSWERS_MAX:
            reason = f"{HTTP_ANSWERS_MAX} pages are being made, which is the limit\n"
            exchange.send(HttpPage(reason, HTTPStatus.SERVICE_UNAVAILABLE))
            return
        self._made.add(exchange)
        self._tasks.start(self._serve(exchange, head), "page for monitoring")

    def note_lost(self, exchange: HttpExchange) -> None:
        """Forget a connection."""
        self._arriving.pop(exchange, None)
        self._made.discard(exchange)
        self._unread.pop(exchange, None)

    async def _serve(self, exchange: HttpExchange, head: bytes) -> None:
        verb, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("ascii", "replace")
        page = await self._page(verb, path)
        if exchange not in self._made:
            return  # Its peer has left.
        self._made.remove(exchange)
        # Twice the limit of pages being made: this loop iteration's answers are still unsent.
        _append(self._unread, exchange, 2 * HTTP_ANSWERS_MAX)
        exchange.send(page, has_body=verb != b"HEAD")

    async def _page(self, verb: bytes, path: str) -> HttpPage:
        if verb not in {b"GET", b"HEAD"}:
            return HttpPage("only GET and HEAD are served\n", HTTPStatus.METHOD_NOT_ALLOWED)
        make = self._pages.get(path)
        if make is None:
            return HttpPage("".join(f"GET {path}\n" for path in self._pages), HTTPStatus.NOT_FOUND)
        try:
            return await make()
        except Exception:
            log.exception("the page %s failed", path)
            return HttpPage(
                "the page failed; the log has the reason\n", HTTPStatus.INTERNAL_SERVER_ERROR
            )


def _append(waiting: dict[HttpExchange, None], exchange: HttpExchange, most: int) -> None:
    """Add a connection that waits for its peer; beyond ``most``, close the oldest."""
    waiting[exchange] = None
    if len(waiting) > most:
        oldest = next(iter(waiting))
        del waiting[oldest]
        oldest.abort()


class HttpExchange(asyncio.Protocol):
    """One connection with its request and answer."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._received = b""
        self._is_complete = False
        """Whether the request is complete or already refused."""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's class.
        self._transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(EXCHANGE_S, self.abort)
        self._server.note_open(self)

    def connection_lost(self, error: Exception | None) -> None:
        del error
        if self._timer is not None:
            self._timer.cancel()
        self._server.note_lost(self)

    def data_received(self, data: bytes) -> None:
        if self._is_complete:
            return
        self._received += data
        if _HEAD_END in self._received[:HTTP_REQUEST_BYTES_MAX]:
            self._is_complete = True
            self._server.serve(self, self._received)
        elif len(self._received) >= HTTP_REQUEST_BYTES_MAX:
            self._is_complete = True
            self.send(
                HttpPage(
                    f"a request has at most {HTTP_REQUEST_BYTES_MAX} bytes\n",
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                )
            )

    def send(self, page: HttpPage, *, has_body: bool = True) -> None:
        """Answer, and close the connection."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        body = page.text.encode()
        fields = {
            "Content-Type": page.content_type,
            "Content-Length": len(body),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Connection": "close",
        }
        if page.status == HTTPStatus.METHOD_NOT_ALLOWED:
            fields["Allow"] = "GET, HEAD"
        lines = [f"HTTP/1.1 {page.status.value} {page.status.phrase}"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        head = "\r\n".join(lines).encode() + _HEAD_END
        transport.write(head + body if has_body else head)
        transport.close()

    def abort(self) -> None:
        """Close the connection without waiting for the peer."""
        if self._transport is not None:
            self._transport.abort()
