"""A network in memory: hosts, the connections between them, and their faults.

Addresses are strings as in ``connect``; a host may also be called by its name. Nothing is shared
with the real network, and time is the loop's.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import NamedTuple, TypeVar

from txmq.testing.entropy import SeededEntropy
from txmq.testing.failures import PowerCut
from txmq.testing.loop import SimulatedLoop
from txmq.testing.transport import SimulatedTransport
from txmq.testing.wire import Conditions, PacketMark, Ways, Wire

__all__ = ["HostNetwork", "SimulatedNetwork"]

P = TypeVar("P", bound=asyncio.Protocol)

_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  compared with, never bound
_HERE = ("127.0.0.1", "localhost", "::1")
_FIRST_PORT = 32768
"""The first port that the system chooses by itself, as on Linux."""


class _Connection(NamedTuple):
    client: SimulatedTransport
    server: SimulatedTransport
    hosts: frozenset[str]

    def ends(self) -> tuple[tuple[SimulatedTransport, str], ...]:
        """Both ends, each with its host."""
        return (
            (self.client, self.client.get_extra_info("sockname")[0]),
            (self.server, self.server.get_extra_info("sockname")[0]),
        )


class SimulatedNetwork:
    """All hosts, and the paths between them.

    Args:
        loop: The event loop that provides the time.
        entropy: Decides the latencies and the places at which the byte stream is cut.
        conditions: The quality of the network.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        entropy: SeededEntropy,
        conditions: Conditions | None = None,
    ) -> None:
        self.ways: Ways = Ways(loop, entropy, conditions or Conditions())
        self._trace = loop.trace
        self._hosts: dict[str, HostNetwork] = {}
        self._names: dict[str, str] = {}
        self._connections: dict[int, _Connection] = {}
        self._opened = 0

    def host(self, address: str, name: str | None = None) -> HostNetwork:
        """The :class:`txmq.runtime.Network` of one host; a new one after the host went down."""
        port = self._hosts.get(address)
        if port is None or not port.alive:
            port = self._hosts[address] = HostNetwork(self, address)
            self.ways.down.pop(address, None)
            self._reconsider()
        if name is not None:
            self._names[name] = address
        return port

    def resolve(self, host: str) -> str:
        """The address of a host, given by address or by name."""
        return self._names.get(host, host)

    # --- faults ---

    def partition(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Close the path from one host to another; unless ``one_way``, the path back too.

        Connections stay, but no packet arrives. Packets sent during the partition arrive after
        :meth:`heal`, unless the sender gives up first (``Conditions.give_up_s``).
        """
        a, b = self.resolve(a), self.resolve(b)
        self._trace.record("partition", a, b, one_way)
        self.ways.closed[a, b] = None
        if not one_way:
            self.ways.closed[b, a] = None
        self._reconsider()

    def isolate(self, host: str) -> None:
        """Partition a host from every other host that exists now."""
        host = self.resolve(host)
        for other in self._hosts:
            if other != host:
                self.partition(host, other)

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        """Open the paths between two hosts, all paths of one host, or all paths."""
        wanted = {self.resolve(host) for host in (a, b) if host is not None}
        self._trace.record("heal", *sorted(wanted))
        for way in [way for way in self.ways.closed if wanted <= set(way)]:
            del self.ways.closed[way]
        self._reconsider()

    def slow(self, a: str, b: str, extra_s: float) -> None:
        """Delay every packet between two hosts, in both directions."""
        a, b = self.resolve(a), self.resolve(b)
        self.ways.extra_s[a, b] = self.ways.extra_s[b, a] = extra_s

    def cut(self, a: str, b: str) -> None:
        """Reset all connections between two hosts; both sides notice it at once."""
        hosts = frozenset((self.resolve(a), self.resolve(b)))
        self._trace.record("cut", *sorted(hosts))
        for connection in list(self._connections.values()):
            if connection.hosts == hosts:
                for transport in (connection.client, connection.server):
                    transport.drop_packets()
                    transport.lose(errno.ECONNRESET)

    def crash(self, host: str, *, silently: bool = True) -> None:
        """Stop a host: its port is dead, and it loses its listeners and connections.

        Args:
            host: Its address or name.
            silently: Whether it stops as in a power cut: peers notice only when they send, and
                connects get no answer until :meth:`host` brings it back. Otherwise it stops as
                after ``kill -9``: the peers' connections end or are reset, and connects are
                refused.
        """
        address = self.resolve(host)
        self._trace.record("crash", address, silently)
        port = self._hosts.get(address)
        if port is None or not port.alive:
            return
        port.alive = False
        port.listeners.clear()
        if silently:
            self.ways.down[address] = None
        for connection in list(self._connections.values()):
            for transport, where in connection.ends():
                if where == address:
                    transport.vanish(None if silently else self._last_word())
        self._reconsider()

    def close(self) -> None:
        """Drop every host and connection, and their references to programs."""
        self._hosts.clear()
        self._connections.clear()

    # --- called by ports ---

    async def dial(self, port: HostNetwork, factory: Callable[[], P], host: str, number: int) -> P:
        """Connect a host to an address; see :meth:`txmq.runtime.Network.connect`.

        Raises:
            OSError: The connection is refused, or no answer comes within
                ``Conditions.connect_timeout_s``.
        """
        source = port.address
        target = source if host in _HERE else self.resolve(host)
        await self._shake_hands(source, target)
        port.check()
        listener = self._find_listener(target, number)
        if listener is None or (listener.is_local and target != source):
            raise ConnectionRefusedError(
                errno.ECONNREFUSED, f"{os.strerror(errno.ECONNREFUSED)}: {host}:{number}"
            )
        own = (source, port.free_port())
        connection = self._connect(copy_context(), own, (target, number), listener)
        protocol = factory()
        connection.client.attach(protocol)
        return protocol

    async def _shake_hands(self, source: str, target: str) -> None:
        loop = self.ways.loop
        deadline = loop.time() + self.ways.conditions.connect_timeout_s
        pause = 1.0  # TCP's: doubled every time
        while True:
            if self.ways.both_open(source, target):
                there_and_back = self.ways.delay(source, target) + self.ways.delay(target, source)
                await asyncio.sleep(there_and_back)
                if self.ways.both_open(source, target):
                    return
            left = deadline - loop.time()
            if left <= 0:
                raise TimeoutError(errno.ETIMEDOUT, f"{os.strerror(errno.ETIMEDOUT)}: {target}")
            await asyncio.sleep(min(pause, left))
            pause *= 2

    def _find_listener(self, target: str, number: int) -> _Listener | None:
        host = self._hosts.get(target)
        return host.listeners.get(number) if host is not None else None

    def _connect(
        self,
        context: Context,
        own: tuple[str, int],
        other: tuple[str, int],
        listener: _Listener,
    ) -> _Connection:
        there = Wire(self.ways, own[0], other[0])
        back = Wire(self.ways, other[0], own[0])
        accepting = listener.context.copy()
        client = SimulatedTransport(self.ways, there, (own, other), context)
        server = SimulatedTransport(self.ways, back, (other, own), accepting)
        there.arrive, back.arrive = server.arrived, client.arrived
        self._opened += 1
        number = self._opened
        connection = _Connection(client, server, frozenset((own[0], other[0])))
        self._connections[number] = connection

        def forget() -> None:
            if client.is_gone() and server.is_gone():
                self._connections.pop(number, None)

        client.on_gone = server.on_gone = forget
        self._trace.record("connect", number, *own, *other)
        self.ways.loop.call_soon(listener.accept, server, context=accepting)
        return connection

    def _last_word(self) -> PacketMark:
        # The kernel closes a killed process's sockets normally, or resets them if bytes are unread.
        return PacketMark.END if self.ways.entropy.chance(0.5) else PacketMark.RESET

    def _reconsider(self) -> None:
        for connection in list(self._connections.values()):
            for transport in (connection.client, connection.server):
                transport.way_closed()
                transport.way_opened()


class HostNetwork:
    """The :class:`txmq.runtime.Network` of one host, until the host goes down.

    Afterwards its methods raise ``PowerCut``; get the host's new port from the network.
    """

    def __init__(self, network: SimulatedNetwork, address: str) -> None:
        self.address = address
        self.alive = True
        self.listeners: dict[int, _Listener] = {}
        self._network = network
        self._next_port = _FIRST_PORT

    def check(self) -> None:
        """Raise if the host is down."""
        if not self.alive:
            raise PowerCut

    async def listen(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> _Listener:
        """See :meth:`txmq.runtime.Network.listen`."""
        self.check()
        if host not in (*_EVERYWHERE, *_HERE) and self._network.resolve(host) != self.address:
            raise OSError(errno.EADDRNOTAVAIL, f"{os.strerror(errno.EADDRNOTAVAIL)}: {host}")
        number = port or self.free_port()
        if number in self.listeners:
            raise OSError(errno.EADDRINUSE, f"{os.strerror(errno.EADDRINUSE)}: {host}:{number}")
        listener = self.listeners[number] = _Listener(self, factory, (host, number))
        return listener

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        """See :meth:`txmq.runtime.Network.connect`."""
        self.check()
        return await self._network.dial(self, factory, host, port)

    def is_loopback(self, host: str) -> bool:
        """Always true: all machines of a simulated world belong to one test."""
        del host
        return True

    def free_port(self) -> int:
        """A port number without a listener on this host."""
        while True:
            self._next_port += 1
            if self._next_port > 65535:
                self._next_port = _FIRST_PORT
            if self._next_port not in self.listeners:
                return self._next_port


class _Listener:
    def __init__(
        self, host: HostNetwork, factory: Callable[[], asyncio.Protocol], address: tuple[str, int]
    ) -> None:
        self.address = address
        self.is_local = address[0] in _HERE
        # Connections run in the context of the program that opened the listener, and die with it.
        self.context = copy_context()
        self._host = host
        self._factory = factory

    def accept(self, transport: SimulatedTransport) -> None:
        if self._host.listeners.get(self.address[1]) is not self:
            transport.abort()
        elif not transport.is_gone():
            transport.attach(self._factory())

    def close(self) -> None:
        if self._host.listeners.get(self.address[1]) is self:
            del self._host.listeners[self.address[1]]
