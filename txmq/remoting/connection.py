"""One end of a stream of requests and answers; clients and servers use the same class.

:class:`Connection` connects a transport, a service that answers the peer's requests, and the
:class:`Exchange`, which holds our own unanswered requests.

Serving a request is a series of plain calls on bytes: cut out the frame, decode it, call the
service, collect the answers to everything that arrived together, and write them at once. A service
may also answer later, with :meth:`Connection.send`.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import ssl
from collections.abc import Callable, Collection
from itertools import count
from types import FunctionType, MethodType
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from txmq.errors import (
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
from txmq.runtime.clock import Clock
from txmq.security.signatures import Credentials
from txmq.security.tls import PeerSubject, reason_of, subject_of

__all__ = [
    "Connection",
    "Exchange",
    "PendingResponse",
    "RunService",
    "Server",
    "Service",
    "Waiter",
    "no_service",
]

log = logging.getLogger(__name__)

Fields: TypeAlias = Header | dict[str, str] | None

W = TypeVar("W")

_OPAQUE_MAX: Final = 2**31 - 1
_STALE_DEADLINES_MAX: Final = 256
"""Deadlines of answered requests that may pile up before they are removed."""

_RUN_MAX: Final = 64
"""Requests of one code that a service may serve in one call; all other work waits for it."""

_FULL_READ_BYTES: Final = 250_000
"""A longer read filled the loop's buffer (256,000 bytes or 256 KiB), so more bytes may follow."""

_POSTED_PIECES_MAX: Final = 16
_POSTED_BYTES_MAX: Final = 32 * 1024
"""Bytes collected in one turn of the loop before an early write. The peer can work on them while we
write the rest; otherwise the two would take turns."""

_AT_ONCE_S: Final = 3.0
"""A server that accepts only TLS closes at the first byte, so a close within this time hints at
TLS. A frozen server may close much later."""


class Service(Protocol):
    """Answers the requests that arrive."""

    def __call__(self, connection: Connection, request: Command, /) -> bytes | None:
        """The answer as a frame, or ``None`` if it comes later or never."""
        ...


class RunService(Service, Protocol):
    """A service that also takes several requests at once."""

    @property
    def run_codes(self) -> Collection[int]:
        """The request codes that :meth:`serve_run` accepts; the collection may change."""
        ...

    def serve_run(
        self, connection: Connection, requests: list[Command], answers: list[bytes], /
    ) -> None:
        """Serve consecutive requests of one code, in their order.

        Args:
            connection: Their connection.
            requests: The requests.
            answers: Receives each answer, except those that come later. It is the connection's list
                of unwritten answers, so other calls to the connection may write and clear it.
        """
        ...


class Server(Protocol):
    """What the connections of one server share."""

    def holds(self, connection: Connection, size: int, /, *, is_new: bool) -> None:
        """Note how many bytes of an unfinished, perhaps new, frame the connection holds."""
        ...

    def owes(self, connection: Connection, size: int, /) -> None:
        """Note how many bytes of answers the connection's peer has not read yet."""
        ...

    def note_broken(self, connection: Connection, error: RemoteProtocolError, /) -> None:
        """Note that the connection closes because its peer breaks the protocol."""
        ...

    def note_unread(self, connection: Connection, /) -> None:
        """Note that the connection closes because its peer does not read."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether connections wait for a turn, apart from those with long headers. If so, a
        connection with several requests waits for its turn too; one with a single request does not.
        """
        ...

    def wait(self, connection: Connection, /, *, is_long: bool) -> None:
        """Call :meth:`Connection.serve_rest` in a later turn of the loop.

        Args:
            connection: The connection.
            is_long: Whether it has a long header; other connections do not wait for it.
        """
        ...


def _bound(service: Service) -> Service:
    """The service as a function or a method, because calling an object takes twice as long."""
    return service if isinstance(service, FunctionType | MethodType) else service.__call__


def no_service(connection: Connection, request: Command) -> bytes | None:
    """Answer every request with "not supported"."""
    del connection
    if request.is_oneway:
        return None
    remark = f" request type {int(request.code)} not supported"
    return commands.answer(request, 3, remark=remark)


class Waiter(Protocol):
    """Waits for the answer to one request; the connection calls one of its methods once."""

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


class Exchange(Generic[W]):
    """The unanswered requests of one connection: their numbers, waiters and deadlines. Pure."""

    def __init__(self, first: int = 0) -> None:
        self.waiting: dict[int, W] = {}
        """The waiters by number, in the order of their requests."""
        self._deadlines: list[tuple[float, int]] = []
        # Numbers may wrap: 2**31 requests take hours, and no waiter lasts that long.
        self.number: Callable[[], int] = map(_OPAQUE_MAX.__and__, count(first)).__next__
        """Returns the number of the next request; one-way requests have one too."""

    def add(self, opaque: int, waiter: W, deadline: float) -> None:
        """Add the waiter of a request under its :attr:`number`."""
        self.waiting[opaque] = waiter
        heapq.heappush(self._deadlines, (deadline, opaque))
        if len(self._deadlines) > 2 * len(self.waiting) + _STALE_DEADLINES_MAX:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self.waiting]
            heapq.heapify(self._deadlines)

    def expired(self, now: float) -> list[W]:
        """Remove and return the waiters whose deadline has passed, earliest first."""
        late: list[W] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            waiter = self.waiting.pop(heapq.heappop(self._deadlines)[1], None)
            if waiter is not None:
                late.append(waiter)
        return late

    def next_deadline(self) -> float | None:
        """The earliest deadline, or ``None`` without waiters."""
        while self._deadlines and self._deadlines[0][1] not in self.waiting:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def close(self) -> list[W]:
        """Remove and return all waiters, in the order of their requests."""
        waiters = list(self.waiting.values())
        self.waiting.clear()
        self._deadlines.clear()
        return waiters


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
        service_for: Callable[[str], Service] | None = None,
        server: Server | None = None,
    ) -> None:
        self._server = server
        self._clock = clock
        self._take(service)
        self._service_for = service_for
        self._on_lost = on_lost
        self._decode = decode
        self._credentials = credentials
        self._reader = FrameReader()
        self._out: list[bytes] = []
        self._exchange: Exchange[Waiter] = Exchange()
        self.number: Callable[[], int] = self._exchange.number
        """Returns the number for the next posted request."""
        # Callers of post() limit their open requests themselves, and have deadlines.
        self._is_posted_to = False
        self._posted_bytes = 0
        self._caught_up: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._transport: asyncio.Transport | None = None
        self._tls_error: ssl.SSLError | None = None
        self._is_closed_here = False
        self._unread = False
        self._unserved: list[Frame] = []
        self._turn_end: float | None = None
        """When this connection's turn ends, if its last read filled the buffer."""
        self.address: str = ""
        self.host: str = ""
        """The address without the port."""
        self.born_host: bytes = b"\0" * 8
        self.subject: PeerSubject | None = None
        """The subject of the peer's certificate, if TLS verified one."""
        self.active_at: float = clock.monotonic()
        self._opened_at = self.active_at
        self.partial_since: float | None = None

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport and its peer's address."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=CONNECTION_BACKLOG_BYTES)
        peer = transport.get_extra_info("peername")
        if peer:
            self.host = peer[0]
            self.address = f"{peer[0]}:{peer[1]}"
            self.born_host = host_bytes(peer[0], peer[1])
        if self._service_for is not None:
            self._take(self._service_for(self.host))
        self.subject = subject_of(transport.get_extra_info("peercert"))

    def _take(self, service: Service) -> None:
        self._service = _bound(service)
        self._serve_run: Callable[[Connection, list[Command], list[bytes]], None] | None
        self._serve_run = getattr(service, "serve_run", None)
        can_run = self._serve_run is not None
        self._run_codes: Collection[int] = getattr(service, "run_codes", ()) if can_run else ()

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
        elif self._server is not None and (
            self._reader.has_long_header or (len(parts) > 1 and self._server.is_busy)
        ):
            # A long header waits even alone, or several strangers' would share one turn.
            self._wait(parts)
        else:
            # After a full read the loop reads on at once, up to 32 times.
            until = self._turn_end or self.active_at + TURN_S
            self._turn_end = until if len(data) >= _FULL_READ_BYTES else None
            self._serve(parts, until)

    def _wait(self, parts: list[Frame]) -> None:
        """Serve these requests in a later turn, and read no more until then."""
        self._unserved = parts
        if self._server is not None and self._transport is not None:
            self._transport.pause_reading()
            self._server.wait(self, is_long=self._reader.has_long_header)

    def serve_rest(self) -> None:
        """Serve the requests that had to wait for another turn of the loop."""
        if self._unread or not self.is_open:
            return
        parts, self._unserved = self._unserved, []
        self._turn_end = None
        self._serve(parts, self._clock.monotonic() + TURN_S)
        if self._transport is not None and self.is_open and not (self._unread or self._unserved):
            self._reader.has_long_header = False
            self._transport.resume_reading()

    def _serve(  # noqa: C901  the hot path
        self, parts: list[Frame], until: float
    ) -> None:
        out, collected = self._out, 0
        decode, serve, now = self._decode, self._service, self._clock.monotonic
        codes, serve_run, at, end = self._run_codes, self._serve_run, 0, len(parts)
        # Check the time only while parts remain, or if a full read means that more will follow.
        last = 0 if self._server is None else end + (self._turn_end is not None)
        try:
            while at < end:
                if codes:
                    requests = commands.decode_run(parts, at, _RUN_MAX, codes)
                    command = requests[0]
                    at += len(requests)
                else:
                    command = decode(parts[at])
                    at += 1
                if command.flag & 1:
                    waiter = self._exchange.waiting.pop(command.opaque, None)
                    if waiter is not None:
                        waiter.answered(command)
                    continue
                if codes and serve_run is not None and len(requests) > 1:
                    before = len(out)
                    serve_run(self, requests, out)
                    collected += sum(map(len, out[before:]))
                elif (answer := serve(self, command)) is not None:
                    out.append(answer)
                    collected += len(answer)
                if collected > CONNECTION_BACKLOG_BYTES:
                    # One read may request more answers than the peer can take in at once.
                    self.send()
                    collected = 0
                    if self._unread:
                        self._unserved = parts[at:]
                        return
                if at < last and now() > until:
                    self._wait(parts[at:])
                    break
        except RemoteProtocolError as error:
            self._give_up(error)
            return
        if out:
            self._posted_bytes += collected
            self.send()

    def _give_up(self, error: RemoteProtocolError) -> None:
        if self._server is None:
            log.warning("closing %s: %s", self.address, error)
        else:
            self._server.note_broken(self, error)
        self.close()

    def eof_received(self) -> bool:
        """The peer will send no more; close our side too."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all requests that still wait for an answer."""
        self._transport = None
        self._tls_error = exc if isinstance(exc, ssl.SSLError) else None
        self._reader = FrameReader()
        self._out.clear()
        self._unserved.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tell_caught_up()
        if self._is_closed_here:
            text = f"the connection to {self.address} was closed here{self._why()}"
        else:
            text = f"{self.address} closed the connection{self._why()}"
            if exc is None and self.subject is None and self._has_ended_at_once:
                text += " before its first answer; perhaps it accepts only TLS (set TXMQ_TLS=on)"
        for waiter in self._exchange.close():
            waiter.failed(ConnectionLost(text))
        if self._on_lost is not None:
            self._on_lost(self)

    @property
    def _has_ended_at_once(self) -> bool:
        """Whether the peer closed before it sent anything, as a server that expects TLS does."""
        age_s = self._clock.monotonic() - self._opened_at
        return self.active_at == self._opened_at and age_s < _AT_ONCE_S

    def pause_writing(self) -> None:
        """Stop reading requests, because the peer reads our answers too slowly.

        While we wait for answers we keep reading: if both ends wrote much and read nothing, they
        would wait for each other forever.
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
        """Write all queued bytes, then these frames, in one go."""
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
            if self._server is not None:
                self._server.note_unread(self)
            self.abort()
        elif self._server is not None and self.unread_bytes > OWED_BYTES_SPARED:
            self._server.owes(self, self.unread_bytes)

    def _closed(self) -> ConnectionLost:
        if self._transport is not None:
            self._tls_error = self._transport.get_extra_info("tls_error")
        return ConnectionLost(f"{self.address} is closed{self._why()}")

    def _why(self) -> str:
        return "" if self._tls_error is None else f": {reason_of(self._tls_error)}"

    def _tell_caught_up(self) -> None:
        waiting, self._caught_up = self._caught_up, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    @property
    def held_bytes(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._reader.held)

    @property
    def unread_bytes(self) -> int:
        """Written bytes that are still in the transport's buffer."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Close after sending everything written; harmless when repeated."""
        if self._transport is not None:
            self._is_closed_here = True
            self.send()
            self._transport.close()

    def abort(self) -> None:
        """Close at once; unsent bytes are lost."""
        if self._transport is not None:
            self._is_closed_here = True
            self._transport.abort()

    def oneway(self, code: int, header: Header | None = None, *, body: bytes = b"") -> None:
        """Send a request that gets no answer.

        Raises:
            ConnectionLost: The connection is closed; nothing was sent.
        """
        if not self.is_open:
            raise self._closed()
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
            is_urgent: Whether to write it now instead of together with the turn's other requests.

        Raises:
            ConnectionLost: The stream broke before the answer came.
            RequestTimeout: No answer came in time.
        """
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        opaque, deadline = self.number(), self._clock.monotonic() + timeout_s
        frame = commands.encode(code, opaque, self._signed(header, body), body=body)
        self.post(opaque, PendingResponse(future), deadline, frame, is_urgent=is_urgent)
        try:
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
            raise self._closed()
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
