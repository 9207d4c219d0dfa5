"""One end of a simulated connection: an asyncio transport over two wires.

Packets arrive outside the context of any program, as in a kernel. Calls to a protocol run in the
context of the program that owns it, and die with that program.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from contextvars import Context
from enum import Enum

from txmq.testing.wire import Packet, PacketMark, Ways, Wire

__all__ = ["HIGH_WATER", "Address", "ReceiveBuffer", "SendBuffer", "SimulatedTransport"]

Address = tuple[str, int]

_READ_MAX = 256 * 1024
"""The most bytes in one ``data_received`` call, as in asyncio."""


class _State(Enum):
    OPEN = "open"
    CLOSING = "closing"  # Closed by the program; bytes still wait for the window.
    GONE = "gone"


class SimulatedTransport(asyncio.Transport):
    """See :class:`asyncio.Transport`. Networks make these."""

    def __init__(
        self, ways: Ways, wire: Wire, ends: tuple[Address, Address], context: Context
    ) -> None:
        super().__init__({"sockname": ends[0], "peername": ends[1]})
        self.on_gone: Callable[[], None] = _nothing
        self._ways = ways
        self._context = context
        self._outgoing = SendBuffer(ways, wire)
        self._incoming = ReceiveBuffer()
        self._state = _State.OPEN
        self._protocol: asyncio.BaseProtocol | None = None
        self._giving_up: asyncio.TimerHandle | None = None

    # --- called by protocols ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See :meth:`asyncio.WriteTransport.write`.

        Raises:
            TypeError: The data is not bytes.
            RuntimeError: ``write_eof`` was called before.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes, not {type(data).__name__}")
        if self._state is not _State.OPEN:
            return
        if self._outgoing.ending:
            raise RuntimeError("Cannot call write() after write_eof()")
        self._outgoing.waiting += data
        self._push()
        self._pause_if_full()

    def write_eof(self) -> None:
        """See :meth:`asyncio.WriteTransport.write_eof`."""
        if self._state is _State.OPEN:
            self._outgoing.ending = True
            self._push()

    def can_write_eof(self) -> bool:
        """See :meth:`asyncio.WriteTransport.can_write_eof`."""
        return True

    def get_write_buffer_size(self) -> int:
        """See :meth:`asyncio.WriteTransport.get_write_buffer_size`."""
        return len(self._outgoing.waiting)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """See :meth:`asyncio.WriteTransport.get_write_buffer_limits`."""
        return self._outgoing.low, self._outgoing.high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See :meth:`asyncio.WriteTransport.set_write_buffer_limits`.

        Raises:
            ValueError: A limit is negative, or ``low`` is above ``high``.
        """
        if high is None:
            high = HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._outgoing.high, self._outgoing.low = high, low
        self._pause_if_full()

    def pause_reading(self) -> None:
        """See :meth:`asyncio.ReadTransport.pause_reading`."""
        self._incoming.paused = True

    def resume_reading(self) -> None:
        """See :meth:`asyncio.ReadTransport.resume_reading`."""
        self._incoming.paused = False
        self._schedule()

    def is_reading(self) -> bool:
        """See :meth:`asyncio.ReadTransport.is_reading`."""
        return self._state is _State.OPEN and not self._incoming.paused

    def is_closing(self) -> bool:
        """See :meth:`asyncio.BaseTransport.is_closing`."""
        return self._state is not _State.OPEN

    def close(self) -> None:
        """See :meth:`asyncio.BaseTransport.close`."""
        if self._state is _State.OPEN:
            self._state = _State.CLOSING
            self._finish_if_empty()

    def abort(self) -> None:
        """See :meth:`asyncio.WriteTransport.abort`."""
        if self._state is not _State.GONE:
            self._outgoing.wire.send(PacketMark.RESET)
            self._end(None)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See :meth:`asyncio.BaseTransport.set_protocol`."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See :meth:`asyncio.BaseTransport.get_protocol`."""
        assert self._protocol is not None
        return self._protocol

    # --- called by the network ---

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        """Give the connection to the program that opened or accepted it."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._schedule()

    def arrived(self, packet: Packet) -> None:
        """Receive a packet from the wire."""
        if self._state is _State.GONE:
            if isinstance(packet, bytes):
                self._outgoing.wire.send(PacketMark.RESET)
        elif isinstance(packet, bytes):
            self._incoming.received += packet
            self._schedule()
        elif isinstance(packet, int):
            self._outgoing.travelling -= packet
            if self._outgoing.waiting or self._outgoing.paused:
                self._ways.loop.call_soon(self._progress, context=self._context)
        elif packet is PacketMark.END:
            self._incoming.ended = True
            self._schedule()
        else:
            self.lose(errno.ECONNRESET)

    def lose(self, error: int) -> None:
        """End the connection with an error, on this side only."""
        if self._state is not _State.GONE:
            # OSError picks its subclass by number: ConnectionResetError, TimeoutError, ...
            self._end(OSError(error, os.strerror(error)))

    def drop_packets(self) -> None:
        """Lose the packets that this end has sent."""
        self._outgoing.wire.cut()

    def vanish(self, last: PacketMark | None) -> None:
        """End without calling the program, which is dead; the peer may receive a last packet."""
        if self._state is not _State.GONE:
            self._leave()
            if last is not None:
                self._outgoing.wire.send(last)

    def is_gone(self) -> bool:
        """True if this end is closed for good."""
        return self._state is _State.GONE

    def way_closed(self) -> None:
        """Start the timeout if bytes are in flight and the path is closed."""
        if (
            self._giving_up is None
            and self._outgoing.travelling
            and not self._outgoing.wire.is_open()
        ):
            self._giving_up = self._ways.loop.call_later(
                self._ways.conditions.give_up_s, self._give_up, context=self._ways.context
            )

    def way_opened(self) -> None:
        """Send the held bytes again."""
        if self._outgoing.wire.is_open() and self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        self._outgoing.wire.resume()

    # --- inside ---

    def _push(self) -> None:
        self._outgoing.push()
        self.way_closed()

    def _pause_if_full(self) -> None:
        if len(self._outgoing.waiting) > self._outgoing.high and not self._outgoing.paused:
            self._outgoing.paused = True
            self.get_protocol().pause_writing()

    def _progress(self) -> None:
        if self._state is _State.GONE:
            return
        self._push()
        if self._outgoing.paused and len(self._outgoing.waiting) <= self._outgoing.low:
            self._outgoing.paused = False
            self.get_protocol().resume_writing()
        self._finish_if_empty()

    def _finish_if_empty(self) -> None:
        if self._state is not _State.CLOSING or self._outgoing.waiting:
            return
        if self._incoming.received:
            # Closing with unread bytes is a reset, as on Linux.
            self._outgoing.wire.send(PacketMark.RESET)
        else:
            self._outgoing.ending = True
            self._outgoing.push()
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._protocol is not None:
            lost = self._protocol.connection_lost
            self._ways.loop.call_soon(lost, error, context=self._context)
        self._leave()

    def _leave(self) -> None:
        self._state = _State.GONE
        self._outgoing.waiting.clear()
        self._incoming.received.clear()
        if self._giving_up is not None:
            self._giving_up.cancel()
        self.on_gone()

    def _give_up(self) -> None:
        self._giving_up = None
        if self._outgoing.travelling:
            self.lose(errno.ETIMEDOUT)

    def _schedule(self) -> None:
        incoming = self._incoming
        idle = incoming.paused or incoming.scheduled or not (incoming.received or incoming.ended)
        if idle or self._state is not _State.OPEN or self._protocol is None:
            return
        incoming.scheduled = True
        self._ways.loop.call_soon(self._deliver, context=self._context)

    def _deliver(self) -> None:
        incoming = self._incoming
        incoming.scheduled = False
        if self._state is not _State.OPEN or incoming.paused:
            return
        if incoming.received:
            data = bytes(incoming.received[:_READ_MAX])
            del incoming.received[:_READ_MAX]
            self._outgoing.wire.send(len(data))
            _feed(self.get_protocol(), data)
            self._schedule()
        elif incoming.ended and not incoming.is_end_delivered:
            incoming.is_end_delivered = True
            protocol = self.get_protocol()
            assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
            if not protocol.eof_received():
                self.close()


def _feed(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    if isinstance(protocol, asyncio.BufferedProtocol):
        while data:
            buffer = memoryview(protocol.get_buffer(len(data)))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            protocol.buffer_updated(size)
            data = data[size:]
    else:
        assert isinstance(protocol, asyncio.Protocol)
        protocol.data_received(data)


def _nothing() -> None:
    pass


HIGH_WATER = 64 * 1024
"""The default limit of a write buffer, as in asyncio."""


class SendBuffer:
    """The sending half of one end."""

    __slots__ = (
        "_ended",
        "_ways",
        "ending",
        "high",
        "low",
        "paused",
        "travelling",
        "waiting",
        "wire",
    )

    def __init__(self, ways: Ways, wire: Wire) -> None:
        self.wire: Wire = wire
        self.waiting: bytearray = bytearray()
        self.travelling: int = 0
        self.ending: bool = False
        self.paused: bool = False
        self.high: int = HIGH_WATER
        self.low: int = HIGH_WATER // 4
        self._ways = ways
        self._ended = False

    def push(self) -> None:
        """Send as many bytes as the window allows, cut into pieces at arbitrary places."""
        window = self._ways.conditions.window
        while self.waiting and self.travelling < window:
            size = min(self._piece(), len(self.waiting), window - self.travelling)
            piece = bytes(self.waiting[:size])
            del self.waiting[:size]
            self.travelling += size
            self.wire.send(piece)
        if self.waiting and self.wire.is_idle():
            # All sent bytes have arrived, but the reader has paused. A probe checks whether the
            # peer still exists: a restarted host does not know this connection.
            self.wire.send(b"")
        if self.ending and not self.waiting and not self._ended:
            self._ended = True
            self.wire.send(PacketMark.END)

    def _piece(self) -> int:
        limit = (64, 1460, 16384, 65536)[self._ways.entropy.below(4)]
        return 1 + self._ways.entropy.below(limit)


class ReceiveBuffer:
    """The receiving half of one end."""

    __slots__ = ("ended", "is_end_delivered", "paused", "received", "scheduled")

    def __init__(self) -> None:
        self.received: bytearray = bytearray()
        self.ended: bool = False
        self.is_end_delivered: bool = False
        self.paused: bool = False
        self.scheduled: bool = False
