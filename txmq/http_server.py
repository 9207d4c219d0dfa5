"""Pages over HTTP for monitoring programs: metrics and health. Just enough HTTP for that.

A connection brings one request and gets one page. The number of connections, the size of a request
and the time of an exchange are bounded, so that the pages cost a server little.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeAlias, cast

from txmq.limits import HTTP_CONNECTIONS_MAX, HTTP_REQUEST_BYTES_MAX
from txmq.runtime.network import Network, ServerSocket, SystemNetwork
from txmq.runtime.tasks import Tasks

__all__ = ["METRICS_TYPE", "HttpPage", "HttpServer", "Pages", "health_pages"]

log = logging.getLogger(__name__)

EXCHANGE_S: Final = 10.0
"""The longest from a connection's first moment to the end of its answer."""

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_TEXT_TYPE: Final = "text/plain; charset=utf-8"
_HEAD_END: Final = b"\r\n\r\n"


class HttpPage(NamedTuple):
    """An answer."""

    text: str
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = _TEXT_TYPE


Pages: TypeAlias = Mapping[str, Callable[[], Awaitable[HttpPage]]]
"""The functions that make the pages, by path."""


def health_pages(objection: Callable[[], Awaitable[str]]) -> Pages:
    """The pages that probes ask for.

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
        pages: The pages.
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
        self._exchanges: set[HttpExchange] = set()
        self._socket: ServerSocket | None = None
        self.address = host, port

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            OSError: The address is taken, or not one of this machine.
        """
        self._socket = await self._network.listen(self._take, *self._wanted)
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
        for exchange in list(self._exchanges):
            exchange.abort()

    def _take(self) -> HttpExchange:
        exchange = HttpExchange(self._answer, self._exchanges.discard)
        if len(self._exchanges) >= HTTP_CONNECTIONS_MAX:
            exchange.refusal = HttpPage(
                f"{HTTP_CONNECTIONS_MAX} connections are open, which is the limit\n",
                HTTPStatus.SERVICE_UNAVAILABLE,
            )
        self._exchanges.add(exchange)
        return exchange

    def _answer(self, exchange: HttpExchange, head: bytes) -> None:
        self._tasks.start(self._serve(exchange, head), "page for monitoring")

    async def _serve(self, exchange: HttpExchange, head: bytes) -> None:
        verb, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("ascii", "replace")
        exchange.send(await self._page(verb, path), has_body=verb != b"HEAD")

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


class HttpExchange(asyncio.Protocol):
    """One connection: a request, and its answer."""

    def __init__(
        self,
        answer: Callable[[HttpExchange, bytes], None],
        ended: Callable[[HttpExchange], None],
    ) -> None:
        self._answer = answer
        self._ended = ended
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.refusal: HttpPage | None = None
        """The answer, whatever the request is."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's class.
        self._transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(EXCHANGE_S, self.abort)
        if self.refusal is not None:
            self.send(self.refusal)

    def connection_lost(self, error: Exception | None) -> None:
        del error
        if self._timer is not None:
            self._timer.cancel()
        self._ended(self)

    def data_received(self, data: bytes) -> None:
        if self.refusal is not None or _HEAD_END in self._received:
            return
        self._received += data
        if _HEAD_END in self._received[:HTTP_REQUEST_BYTES_MAX]:
            self._answer(self, self._received)
        elif len(self._received) >= HTTP_REQUEST_BYTES_MAX:
            self.refusal = HttpPage(
                f"a request has at most {HTTP_REQUEST_BYTES_MAX} bytes\n",
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            )
            self.send(self.refusal)

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
        """Close the connection, whatever it lacks."""
        if self._transport is not None:
            self._transport.abort()
