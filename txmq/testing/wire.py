"""Paths between hosts, and one direction of a connection on a path.

A wire delivers packets with a delay and in order. While its path is closed it holds them, as TCP
does by sending again; after the path opens, they arrive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from enum import Enum

from txmq.testing.entropy import SeededEntropy
from txmq.testing.loop import SimulatedLoop

__all__ = ["Conditions", "Packet", "PacketMark", "Ways", "Wire"]


class PacketMark(Enum):
    """Packets that end a connection."""

    END = "end"
    """No more bytes will come."""
    RESET = "reset"
    """The connection is reset."""


Packet = bytes | int | PacketMark
"""Bytes, the number of acknowledged bytes of the other direction, or a mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The quality of the network.

    Attributes:
        latency_s: The minimum time of a packet in flight.
        jitter_s: The maximum additional time.
        spike_chance: The probability that a packet is late because it was lost and sent again.
        spike_s: The additional time of a late packet.
        window: The unread bytes in one direction after which the sender must wait.
        connect_timeout_s: The timeout of a connect to a host that does not answer.
        give_up_s: The time without an answer after which a connection is lost.
    """

    latency_s: float = 0.0002
    jitter_s: float = 0.0008
    spike_chance: float = 0.005
    spike_s: float = 0.2
    window: int = 65536
    connect_timeout_s: float = 30.0
    give_up_s: float = 120.0


class Ways:
    """The open paths between hosts, and their latencies."""

    def __init__(self, loop: SimulatedLoop, entropy: SeededEntropy, conditions: Conditions) -> None:
        self.loop = loop
        self.entropy = entropy
        self.conditions = conditions
        # Events between machines belong to no program, so that no crash stops them.
        self.context: Context = Context()
        self.closed: dict[tuple[str, str], None] = {}
        self.down: dict[str, None] = {}
        self.extra_s: dict[tuple[str, str], float] = {}

    def open(self, source: str, target: str) -> bool:
        """True if a packet sent now would arrive."""
        return (source, target) not in self.closed and target not in self.down

    def both_open(self, a: str, b: str) -> bool:
        """True if packets and their answers arrive."""
        return self.open(a, b) and self.open(b, a)

    def delay(self, source: str, target: str) -> float:
        """The travel time of one packet."""
        given = self.conditions
        delay = given.latency_s + given.jitter_s * self.entropy.fraction()
        if self.entropy.chance(given.spike_chance):
            delay += given.spike_s
        return delay + self.extra_s.get((source, target), 0.0)


class Wire:
    """One direction of a connection. A late packet delays those behind it."""

    __slots__ = ("_queue", "_timer", "_ways", "arrive", "source", "target")

    arrive: Callable[[Packet], None]
    """Called with each packet at the far end; set before the first packet is sent."""

    def __init__(self, ways: Ways, source: str, target: str) -> None:
        self.source: str = source
        self.target: str = target
        self._ways = ways
        self._queue: deque[tuple[float, Packet]] = deque()
        self._timer: object | None = None

    def is_open(self) -> bool:
        """True if packets and their answers arrive."""
        return self._ways.both_open(self.source, self.target)

    def is_idle(self) -> bool:
        """True if no packet is in flight."""
        return not self._queue

    def send(self, packet: Packet) -> None:
        """Send a packet."""
        due = self._ways.loop.time() + self._ways.delay(self.source, self.target)
        self._queue.append((due, packet))
        self._arm()

    def cut(self) -> None:
        """Lose all packets on the wire."""
        self._queue.clear()

    def resume(self) -> None:
        """Continue after the path reopened: send the held packets again."""
        held_up = self._queue and self._timer is None
        if not held_up or not self._ways.open(self.source, self.target):
            return
        now = self._ways.loop.time()
        held = max(0.0, now - self._queue[0][0])
        # The longer the path was closed, the longer TCP waits between its attempts.
        again = now + self._ways.delay(self.source, self.target)
        again += self._ways.entropy.fraction() * min(held, 5.0)
        self._queue = deque((max(due, again), packet) for due, packet in self._queue)
        self._arm()

    def _arm(self) -> None:
        if self._timer is None and self._queue:
            loop = self._ways.loop
            due = max(self._queue[0][0], loop.time())
            self._timer = loop.call_at(due, self._fire, context=self._ways.context)

    def _fire(self) -> None:
        self._timer = None
        now = self._ways.loop.time()
        if not self._ways.open(self.source, self.target):
            return
        while self._queue and self._queue[0][0] <= now:
            self.arrive(self._queue.popleft()[1])
        self._arm()
