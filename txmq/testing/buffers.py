"""The bytes that one end of a connection has sent and received, with the system's buffers.

The receiving side acknowledges bytes when its protocol has taken them. The window limits the sent
and unacknowledged bytes; the rest waits in the sender's buffer, whose high-water mark pauses the
writer. So a reader that pauses slows the writer, as with TCP.
"""

from __future__ import annotations

from txmq.testing.wire import PacketMark, Ways, Wire

__all__ = ["HIGH_WATER", "ReceiveBuffer", "SendBuffer"]

HIGH_WATER = 64 * 1024
"""asyncio's own value."""


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
            # All sent bytes have arrived, and the reader has paused. A probe finds out whether the
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
