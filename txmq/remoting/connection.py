"""One end of a stream, which reads and writes requests and answers; and a client's pool of them.

:class:`~txmq.remoting.exchange.Exchange` is the pure table of unanswered requests;
:class:`Connection` moves bytes between that table, a transport and the service.
:class:`ConnectionPool` has one connection for each address, opened on demand and
reopened after a loss.

A request takes plain calls on bytes: cut the frame, decode it, call the service, collect the
answers to everything that arrived together, write them in one go. A service may also answer later,
with :meth:`Connection.send`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeAlias, cast

from txmq.errors import (
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    RemoteProtocolError,
    RequestTimeout,
    TransportError,
    refusal,
)
from txmq.limits import (
    CONNECTION_BACKLOG_BYTES,
    OWED_BYTES_SPARED,
    PUSH_BACKLOG_BYTES,
    TURN_S,
)
from txmq.protocol import command as commands
from txmq.protocol.codes import SUCCESS
from txmq.protocol.command import Command, Frame, FrameReader
from txmq.protocol.headers import Header
from txmq.protocol.record import host_bytes
from txmq.protocol.signature import Credentials
from txmq.remoting.exchange import Exchange
from txmq.runtime.clock import Clock
from txmq.runtime.network import Network

__all__ = [
    "NO_SERVER",
    "Connection",
    "ConnectionPool",
    "PendingResponse",
    "Server",
    "Service",
    "Waiter",
    "no_service",
    "split_address",
]

log = logging.getLogger(__name__)

Fields: TypeAlias = Header | dict[str, str] | None

_POSTED_PIECES_MAX: Final = 16
_POSTED_BYTES_MAX: Final = 32 * 1024
"""What one turn of the loop collects before an early write. The peer can then work on it while we
write the rest; otherwise the two would take turns."""


class Service(Protocol):
    """Answers the requests that arrive."""

    def __call__(self, connection: Connection, request: Command, /) -> bytes | None:
        """The answer as a frame, or ``None`` if it comes later or never."""
        ...


class Server(Protocol):
    """Shares one server among its connections."""

    def holds(self, connection: Connection, size: int, /, *, is_new: bool) -> None:
        """The connection keeps so many bytes of an unfinished frame, maybe of a new one."""
        ...

    def owes(self, connection: Connection, size: int, /) -> None:
        """The connection's peer has so many bytes of answers to read."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether connections wait. One with several requests then waits too; a single request is
        served at once.
        """
        ...

    def wait(self, connection: Connection, /) -> None:
        """Call :meth:`Connection.serve_rest` in a later turn of the loop."""
        ...


class Waiter(Protocol):
    """Waits for the answer to one request; the connection calls one of its methods, once."""

    def answered(self, answer: Command, /) -> None:
        """The answer came, with any code."""
        ...

    def failed(self, error: TransportError, /) -> None:
        """No answer will come."""
        ...


class PendingResponse(NamedTuple):
    """A waiter that resolves a future."""

    future: asyncio.Future[Command]

    def answered(self, answer: Command) -> None:
        """See :meth:`Waiter.answered`."""
        if not self.future.done():
            self.future.set_result(answer)

    def failed(self, error: TransportError) -> None:
        """See :meth:`Waiter.failed`."""
        if not self.future.done():
            self.future.set_exception(error)


def no_service(connection: Connection, request: Command) -> bytes | None:
    """Answer every request with "not supported"."""
    del connection
    if request.is_oneway:
        return None
    remark = f" request type {int(request.code)} not supported"
    return commands.answer(request, 3, remark=remark)


class Connection(asyncio.Protocol):
    """An asyncio protocol that is one end of a remoting stream."""

    def __init__(
        self,
        clock: Clock,
        service: Service = no_service,
        on_lost: Callable[[Connection], None] | None = None,
        *,
        decode: Callable[[Frame], Command] = commands.decode,
        credentials: Credentials | None = None,
        server: Server | None = None,
    ) -> None:
        self._server = server
        self._clock = clock
        self._service = service
        self._on_lost = on_lost
        self._decode = decode
        self._credentials = credentials
        self._reader = FrameReader()
        self._out: list[bytes] = []
        self._exchange: Exchange[Waiter] = Exchange()
        self.number = self._exchange.number
        """Returns the number for the next posted request."""
        # A caller of post() limits its open requests itself, and has a deadline.
        self._is_posted_to = False
        self._posted_bytes = 0
        self._caught_up: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._transport: asyncio.Transport | None = None
        self._unread = False
        self._unserved: list[Frame] = []
        self.address = ""
        self.born_host = b"\0" * 8
        self.active_at = clock.monotonic()
        self.partial_since: float | None = None

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport and its peer's address."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=CONNECTION_BACKLOG_BYTES)
        peer = transport.get_extra_info("peername")
        if peer:
            self.address = f"{peer[0]}:{peer[1]}"
            self.born_host = host_bytes(peer[0], peer[1])

    def data_received(self, data: bytes) -> None:
        """Serve all complete frames, and write their answers in one go."""
        self.active_at = self._clock.monotonic()
        try:
            parts = self._reader.feed(data)
        except RemoteProtocolError as error:
            self._give_up(error)
            return
        if not self._reader.held:
            if self.partial_since is not None and self._server is not None:
                self._server.holds(self, 0, is_new=False)
            self.partial_since = None
        else:
            is_new = bool(parts) or self.partial_since is None
            if is_new:
                self.partial_since = self.active_at
            if self._server is not None:
                self._server.holds(self, self.held_bytes, is_new=is_new)
        if self._unserved:
            self._unserved += parts
        elif len(parts) > 1 and self._server is not None and self._server.is_busy:
            self._wait(parts)
        else:
            self._serve(parts, self.active_at + TURN_S)

    def _wait(self, parts: list[Frame]) -> None:
        """Serve these requests in a later turn, and read no more until then."""
        self._unserved = parts
        if self._server is not None and self._transport is not None:
            self._transport.pause_reading()
            self._server.wait(self)

    def serve_rest(self) -> None:
        """Serve the requests that had to wait for another turn of the loop."""
        if self._unread or not self.is_open:
            return
        parts, self._unserved = self._unserved, []
        self._serve(parts, self._clock.monotonic() + TURN_S)
        if self._transport is not None and self.is_open and not (self._unread or self._unserved):
            self._transport.resume_reading()

    def _serve(self, parts: list[Frame], until: float) -> None:
        out, collected = self._out, 0
        server, now, last = self._server, self._clock.monotonic, len(parts)
        try:
            for at, part in enumerate(parts, 1):
                command = self._decode(part)
                if command.flag & 1:
                    waiter = self._exchange.waiting.pop(command.opaque, None)
                    if waiter is not None:
                        waiter.answered(command)
                    continue
                answer = self._service(self, command)
                if answer is not None:
                    out.append(answer)
                    collected += len(answer)
                    if collected > CONNECTION_BACKLOG_BYTES:
                        # One read may hold requests for more answers than a peer takes in at once.
                        self.send()
                        collected = 0
                        if self._unread:
                            self._unserved = parts[at:]
                            return
                if server is not None and at < last and now() > until:
                    self._wait(parts[at:])
                    break
        except RemoteProtocolError as error:
            self._give_up(error)
            return
        if out:
            self.send()

    def _give_up(self, error: RemoteProtocolError) -> None:
        log.warning("closing %s: %s", self.address, error)
        self.close()

    def eof_received(self) -> bool:
        """The peer will send no more; close our side too."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all requests that still wait for an answer."""
        del exc
        self._transport = None
        self._reader = FrameReader()
        self._out.clear()
        self._unserved.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tell_caught_up()
        for waiter in self._exchange.close():
            waiter.failed(ConnectionLost(f"{self.address} closed the connection"))
        if self._on_lost is not None:
            self._on_lost(self)

    def pause_writing(self) -> None:
        """Stop reading requests, because the peer reads our answers too slowly.

        While we wait for answers we keep reading: if both ends wrote much and read nothing, they
        would wait for each other for ever.
        """
        self._unread = True
        if self._transport is not None and not self._exchange.waiting:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Serve requests again, because the peer has caught up."""
        self._unread = False
        self._tell_caught_up()
        if self._transport is None or self._transport.is_closing():
            return
        self.serve_rest()

    # Called by txmq

    @property
    def is_open(self) -> bool:
        """Whether the connection still accepts writes."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_backed_up(self) -> bool:
        """Whether the peer reads so slowly that pushes to it should stop."""
        return self._unread

    def send(self, *frames: bytes) -> None:
        """Write what waits to be written, then these frames, in one go."""
        out, transport = self._out, self._transport
        if transport is not None and (frames or out):
            out += frames
            if self._posted_bytes > _POSTED_BYTES_MAX:
                # Joining this much would copy it once more; writelines may avoid that.
                transport.writelines(out)
            else:
                transport.write(out[0] if len(out) == 1 else b"".join(out))
            out.clear()
            self._posted_bytes = 0
        if self._unread and not self._is_posted_to and self.unread_bytes > PUSH_BACKLOG_BYTES:
            log.warning("closing %s: it has left %d bytes unread", self.address, self.unread_bytes)
            self.abort()
        elif self._server is not None and self.unread_bytes > OWED_BYTES_SPARED:
            self._server.owes(self, self.unread_bytes)

    def _tell_caught_up(self) -> None:
        waiting, self._caught_up = self._caught_up, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    @property
    def held_bytes(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._reader.held)

    @property
    def unread_bytes(self) -> int:
        """Bytes that were written and are still in the transport's buffer."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Close after sending everything written; harmless when repeated."""
        if self._transport is not None:
            self.send()
            self._transport.close()

    def abort(self) -> None:
        """Close at once; unsent bytes are lost."""
        if self._transport is not None:
            self._transport.abort()

    def oneway(self, code: int, header: Header | None = None, *, body: bytes = b"") -> None:
        """Send a request that gets no answer.

        Raises:
            ConnectionLost: The connection is closed; nothing was sent.
        """
        if not self.is_open:
            raise ConnectionLost(f"{self.address} is closed")
        fields = self._signed(header, body)
        self.send(commands.encode(code, self.number(), fields, body=body, flag=commands.ONEWAY))

    def _signed(self, header: Fields, body: bytes) -> Fields:
        if self._credentials is None:
            return header
        fields = (
            header if isinstance(header, dict) else commands.fields_of(header) if header else {}
        )
        return self._credentials.sign(fields, body)

    async def ask(
        self,
        code: int,
        header: Fields = None,
        *,
        body: bytes = b"",
        timeout_s: float,
        is_urgent: bool = True,
    ) -> Command:
        """Send a request and return its answer, with any code.

        Args:
            code: The request code.
            header: The fields.
            body: The body.
            timeout_s: How long the answer may take.
            is_urgent: Whether to write it now, not together with the turn's other requests.

        Raises:
            ConnectionLost: The stream broke before the answer came.
            RequestTimeout: No answer came in time.
        """
        opaque = self.number()
        frame = commands.encode(code, opaque, self._signed(header, body), body=body)
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        try:
            self.post(
                opaque, PendingResponse(future), self._clock.monotonic() + timeout_s, frame,
                is_urgent=is_urgent,
            )  # fmt: skip
            return await future
        finally:
            self._exchange.waiting.pop(opaque, None)

    def post(
        self,
        opaque: int,
        waiter: Waiter | None,
        deadline: float,
        *pieces: bytes,
        is_urgent: bool = False,
    ) -> None:
        """Send an encoded request, together with the turn's other requests.

        Args:
            opaque: Its number, from :attr:`number` in the same turn.
            waiter: Receives the answer or the failure, unless :meth:`break_off` comes first;
                ``None`` for a one-way request.
            deadline: The latest time for an answer, in the clock's monotonic time.
            pieces: The frame, in pieces.
            is_urgent: Whether to write it now.

        Raises:
            ConnectionLost: The connection is closed; nothing was sent.
        """
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLost(f"{self.address} is closed")
        if waiter is not None:
            self._exchange.add(opaque, waiter, deadline)
            if self._timer is None or deadline < self._timer_at:
                self._watch()
        if not (self._out or is_urgent):
            asyncio.get_running_loop().call_soon(self.send)
        self._out += pieces
        if is_urgent:
            self.send()
            return
        self._posted_bytes += len(pieces[-1])
        self._is_posted_to = True
        if self._posted_bytes > _POSTED_BYTES_MAX or len(self._out) > _POSTED_PIECES_MAX:
            self.send()

    async def writable(self) -> None:
        """Wait until the peer has taken in what was written, or the connection is lost."""
        while self._unread and self.is_open:
            if self._caught_up is None:
                self._caught_up = asyncio.get_running_loop().create_future()
            # Shielded: all waiters share this future.
            await asyncio.shield(self._caught_up)

    def break_off(self, opaque: int) -> None:
        """Forget the waiter of a request; a late answer is dropped."""
        self._exchange.waiting.pop(opaque, None)

    async def request(
        self,
        code: int,
        header: Fields = None,
        *,
        body: bytes = b"",
        timeout_s: float,
        is_urgent: bool = True,
    ) -> Command:
        """Send a request and return its successful answer; see :meth:`ask`.

        Raises:
            ConnectionLost: The stream broke before the answer came.
            RequestTimeout: No answer came in time.
            BrokerRefused: The answer has an error code; the subclass says which.
        """
        found = await self.ask(code, header, body=body, timeout_s=timeout_s, is_urgent=is_urgent)
        if found.code != SUCCESS:
            raise refusal(found.code, found.remark or "")
        return found

    # Deadlines

    def _watch(self) -> None:
        deadline = self._exchange.next_deadline()
        if deadline is None or (self._timer is not None and self._timer_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.0, deadline - self._clock.monotonic())
        self._timer_at = deadline
        self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for waiter in self._exchange.expired(self._clock.monotonic()):
            waiter.failed(RequestTimeout(f"{self.address} did not answer in time"))
        self._watch()


CONNECT_TIMEOUT_S: Final = 3.0
"""How long a connection may take to open, as in stock clients."""

NO_SERVER: Final = "no server listens there"
"""The error text for a refused connection."""


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``; an IPv6 host may be in brackets.

    Raises:
        ConfigError: The text does not have that form.
    """
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{text!r} is not an address; write host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _why(error: Exception) -> str:
    """Why the connection failed, in words for the author of the address."""
    if isinstance(error, ConnectionRefusedError):
        return NO_SERVER
    if isinstance(error, socket.gaierror | UnicodeError):
        cause = getattr(error, "strerror", None) or error
        return f"{cause}; write host:port, several separated by ';'"
    return str(error) or f"no answer within {CONNECT_TIMEOUT_S:g} s"


class ConnectionPool:
    """Shared connections by address.

    Args:
        network: Opens the streams.
        clock: The source of time.
        service: Answers requests from the other side.
        on_open: Called with the address and the connection after each opening.
        credentials: What requests are signed with.
    """

    def __init__(
        self,
        network: Network,
        clock: Clock,
        service: Service = no_service,
        on_open: Callable[[str, Connection], None] | None = None,
        *,
        credentials: Credentials | None = None,
    ) -> None:
        self._network = network
        self._clock = clock
        self._service = service
        self._on_open = on_open
        self._credentials = credentials
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._open: dict[str, Connection] = {}

    def ready(self, address: str) -> Connection | None:
        """The connection to an address, if one is open."""
        found = self._open.get(address)
        return found if found is not None and found.is_open else None

    async def connection(self, address: str) -> Connection:
        """An open connection to an address.

        Raises:
            ConnectFailed: No server listens there, or the network failed. Nothing was sent.
            ConfigError: The address is malformed.
        """
        found = self.ready(address)
        if found is not None:
            return found
        opening = self._opening.get(address)
        if opening is None:
            opening = asyncio.ensure_future(self._connect(address))
            self._opening[address] = opening
            opening.add_done_callback(lambda task: self._settle(address, task))
        # Shielded: one cancelled caller must not cancel the connection for the others.
        return await asyncio.shield(opening)

    async def _connect(self, address: str) -> Connection:
        host, port = split_address(address)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                made = await self._network.connect(
                    lambda: Connection(self._clock, self._service, credentials=self._credentials),
                    host,
                    port,
                )
        except (OSError, TimeoutError, UnicodeError) as error:
            # UnicodeError: the name resolver raises it for an invalid host name.
            raise ConnectFailed(f"cannot connect to {address}: {_why(error)}") from error
        self._open[address] = made
        if self._on_open is not None:
            self._on_open(address, made)
        return made

    def _settle(self, address: str, task: asyncio.Task[Connection]) -> None:
        del self._opening[address]
        if not task.cancelled():
            task.exception()  # Retrieved, in case every caller was cancelled.

    def opened(self) -> list[Connection]:
        """The open connections."""
        return [connection for connection in self._open.values() if connection.is_open]

    async def close(self) -> None:
        """Close all connections."""
        for opening in list(self._opening.values()):
            opening.cancel()
        for connection in self._open.values():
            connection.close()
        self._open.clear()
