"""Accepts a server's connections, closes silent ones, and bounds the bytes held for all peers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from txmq.errors import RemoteProtocolError
from txmq.limits import OWED_BYTES_MAX, UNFINISHED_BYTES_MAX
from txmq.protocol.command import Command, Frame, decode
from txmq.remoting.connection import Connection, Service
from txmq.remoting.handshake import Handshake, ServerTls
from txmq.runtime.clock import Clock
from txmq.runtime.network import Network, ServerSocket
from txmq.text import RepeatedLines

__all__ = ["ByteBudget", "Listener"]

log = logging.getLogger(__name__)

IDLE_S: Final = 120.0
"""The time after which a silent connection is closed, and the limit for one frame to arrive."""

SWEEP_S: Final = 10.0

_TURNS_BETWEEN: Final = 2
"""Turns of the loop between two parts of long reads. The first reads and serves a short request,
the second writes its record; without them, each step would wait for a whole part."""


class TurnQueue:
    """Connections that continue in later turns of the loop, one at a time."""

    def __init__(self) -> None:
        self._waiting: deque[Connection] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, connection: Connection) -> None:
        """Add a connection at the end."""
        self._waiting.append(connection)
        if len(self._waiting) == 1:
            self._yield(_TURNS_BETWEEN)

    def _yield(self, turns: int) -> None:
        """Continue after a number of turns of the loop."""
        loop = asyncio.get_running_loop()
        if turns:
            loop.call_soon(self._yield, turns - 1)
        else:
            loop.call_soon(self._next)

    def _next(self) -> None:
        # Remove it afterwards: a connection that must wait again goes to the end.
        connection = self._waiting[0]
        connection.serve_rest()
        self._waiting.popleft()
        if self._waiting:
            self._yield(_TURNS_BETWEEN)


class Listener:
    """A listening socket and its connections."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        service: Service,
        *,
        connections_max: int,
        on_lost: Callable[[Connection], None] | None = None,
        decode: Callable[[Frame], Command] = decode,
        service_for: Callable[[str], Service] | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self._network = network
        self._clock = clock
        self._service = service
        self._connections_max = connections_max
        self._lost = on_lost
        self._decode = decode
        self._service_for = service_for
        self._tls = tls
        self._connections: dict[Connection, None] = {}
        self._handshakes: set[Handshake] = set()
        self._refusals = RepeatedLines()
        self._connections_refused = self._handshakes_refused = self._broken_frames = 0
        self._silent_until = 0.0
        self._turns, self._turns_of_long_headers = TurnQueue(), TurnQueue()
        self.unfinished: ByteBudget[Connection] = ByteBudget(
            UNFINISHED_BYTES_MAX, lambda connection: connection.held_bytes
        )
        """Bytes of unfinished frames."""
        self.owed: ByteBudget[Connection] = ByteBudget(
            OWED_BYTES_MAX, lambda connection: connection.unread_bytes
        )
        """Bytes of answers that peers have not read."""
        self._socket: ServerSocket | None = None
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The host and port it listens on."""
        assert self._socket is not None, "not listening"
        return self._socket.address

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    @property
    def _taken(self) -> int:
        """All connections, even if they have not sent a byte or finished their handshake."""
        return len(self._connections) + len(self._handshakes)

    def figures(self) -> dict[str, int]:
        """What the server holds for its peers, and what it has refused since it started."""
        return {
            "connections_open": self._taken,
            "connections_refused": self._connections_refused,
            "handshakes_refused": self._handshakes_refused,
            "broken_frames_cut": self._broken_frames,
            "unfinished_bytes": self.unfinished.total,
            "unfinished_frames_cut": self.unfinished.cut,
            "unread_bytes": self.owed.total,
            "unread_answers_cut": self.owed.cut,
        }

    async def open(self, host: str, port: int) -> None:
        """Accept connections at an address.

        Raises:
            OSError: The address is in use, or does not belong to this machine.
        """
        self._socket = await self._network.listen(self._take, host, port)
        self._schedule()

    def stop_listening(self) -> None:
        """Accept no further connections."""
        if self._socket is not None:
            self._socket.close()

    def close(self) -> None:
        """Accept no further connections and close the open ones."""
        self.stop_listening()
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._connections):
            connection.close()
        for handshake in list(self._handshakes):
            handshake.abort()

    def _take(self) -> asyncio.Protocol:
        if self._taken >= self._connections_max:
            self._connections_refused += 1
            self._warn(
                f"refusing connections: {self._connections_max} are open, which is the limit"
            )
            return _Refusal()
        if self._tls is None:
            return self._accept()
        handshake = Handshake(self._tls, self._accept, self._end_handshake)
        self._handshakes.add(handshake)
        return handshake

    def _accept(self) -> Connection:
        connection = Connection(
            self._clock,
            self._service,
            self._drop,
            decode=self._decode,
            service_for=self._service_for,
            server=self,
        )
        self._connections[connection] = None
        return connection

    def _end_handshake(self, handshake: Handshake, refusal: str) -> None:
        is_first = handshake in self._handshakes
        self._handshakes.discard(handshake)
        if not (refusal and is_first):
            return
        self._handshakes_refused += 1
        self._warn(f"refused a connection of {handshake.host}: {refusal}")

    def _warn(self, line: str, kind: str = "") -> None:
        """Log a line, but not every line of a flood; pass a kind if the peer chooses the text."""
        times = self._refusals.note(kind or line)
        if times is not None:
            log.warning("%s%s", line, times)

    def _drop(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self.unfinished.forget(connection)
        self.owed.forget(connection)
        if self._lost is not None:
            self._lost(connection)

    # Called by connections

    def holds(self, connection: Connection, size: int, /, *, is_new: bool) -> None:
        """Count unfinished frames; beyond the budget close the connections that began first."""
        if found := self.unfinished.note(connection, size, is_new=is_new):
            fault = f"unfinished frames of all connections exceed {UNFINISHED_BYTES_MAX} bytes"
            self._cut(found, fault, self.unfinished.cut)

    def owes(self, connection: Connection, size: int, /) -> None:
        """Count unread answers; beyond the budget close the connections with the oldest ones."""
        if found := self.owed.note(connection, size):
            fault = f"unread answers of all connections exceed {OWED_BYTES_MAX} bytes"
            self._cut(found, fault, self.owed.cut)

    def note_broken(self, connection: Connection, error: RemoteProtocolError, /) -> None:
        """Count a connection that closes because its peer breaks the protocol."""
        self._broken_frames += 1
        self._warn(f"closing {connection.address}: {error}", f"broken frame of {connection.host}")

    def note_unread(self, connection: Connection, /) -> None:
        """Count a connection that closes because its peer does not read."""
        del connection
        self.owed.cut += 1

    def _cut(self, connections: list[Connection], fault: str, total: int) -> None:
        # A flood must not also fill the log.
        if self._clock.monotonic() >= self._silent_until:
            self._silent_until = self._clock.monotonic() + SWEEP_S
            log.warning(
                "closing %s: %s, and it is the slowest; %d closed for this reason since the start",
                connections[0].address, fault, total,
            )  # fmt: skip
        for connection in connections:
            connection.abort()

    @property
    def is_busy(self) -> bool:
        """True if connections without long headers wait for a later turn of the loop."""
        return bool(self._turns)

    def wait(self, connection: Connection, /, *, is_long: bool) -> None:
        """Continue serving a connection in a later turn."""
        (self._turns_of_long_headers if is_long else self._turns).add(connection)

    def _schedule(self) -> None:
        self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._close_idle)

    def _close_idle(self) -> None:
        oldest = self._clock.monotonic() - IDLE_S
        for connection in list(self._connections):
            partial = connection.partial_since
            if connection.active_at < oldest or (partial is not None and partial < oldest):
                log.info("closing %s: silent for %d s", connection.address, int(IDLE_S))
                connection.abort()
        self._schedule()


class _Refusal(asyncio.Protocol):
    """Closes a connection that exceeds the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


H = TypeVar("H")


class ByteBudget(Generic[H]):
    """A limit on the bytes of all holders; beyond it the oldest holders are cut off.

    Args:
        limit: The maximum of all holders' bytes together.
        size_of: Returns the bytes a holder has now; noted sizes may be out of date.

    Attributes:
        total: The noted bytes.
        cut: The number of holders that were removed because the budget was exceeded.
    """

    def __init__(self, limit: int, size_of: Callable[[H], int]) -> None:
        self._limit = limit
        self._size_of = size_of
        self._sizes: dict[H, int] = {}
        self.total: int = 0
        self.cut: int = 0

    def note(self, holder: H, size: int, *, is_new: bool = False) -> list[H]:
        """Set a holder's bytes; returns the holders to cut off, which are forgotten.

        Args:
            holder: The holder.
            size: Its bytes; 0 forgets it.
            is_new: Whether it starts over, and so becomes the youngest.
        """
        if is_new or not size:
            self.forget(holder)
        if size:
            self.total += size - self._sizes.get(holder, 0)
            self._sizes[holder] = size
        return self._oldest() if self.total > self._limit else []

    def forget(self, holder: H) -> None:
        """Forget a holder; harmless if it is unknown."""
        self.total -= self._sizes.pop(holder, 0)

    def _oldest(self) -> list[H]:
        for holder, noted in list(self._sizes.items()):
            size = self._size_of(holder)
            if size:
                self.total += size - noted
                self._sizes[holder] = size
            else:
                self.forget(holder)
        found: list[H] = []
        for holder in list(self._sizes):
            if self.total <= self._limit:
                break
            self.forget(holder)
            found.append(holder)
        self.cut += len(found)
        return found
