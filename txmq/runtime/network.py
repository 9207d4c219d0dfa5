"""The network: byte streams between addresses, in asyncio's own protocol and transport terms."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from typing import Protocol, TypeVar

__all__ = ["Network", "ServerSocket", "SystemNetwork"]

P = TypeVar("P", bound=asyncio.Protocol)


class ServerSocket(Protocol):
    """A listening socket."""

    @property
    def address(self) -> tuple[str, int]:
        """The host and port it listens on; for port 0 the one that the system chose."""
        ...

    def close(self) -> None:
        """Accept no further connections; open ones stay open."""
        ...


class Network(Protocol):
    """Listens for streams and opens them."""

    async def listen(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> ServerSocket:
        """Accept connections at an address; each gets one protocol object.

        Raises:
            OSError: The address is in use, or does not belong to this machine.
        """
        ...

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        """Open a stream to an address and return its protocol object, already connected.

        Raises:
            OSError: No server listens there, or the network failed.
        """
        ...

    def is_loopback(self, host: str) -> bool:
        """Whether only programs on this machine can have this address."""
        ...


class SystemNetwork:
    """TCP on this machine's running event loop."""

    async def listen(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> ServerSocket:
        """See :meth:`Network.listen`."""
        loop = asyncio.get_running_loop()
        return _TcpSocket(await loop.create_server(factory, host, port, backlog=1024))

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        """See :meth:`Network.connect`."""
        transport, protocol = await asyncio.get_running_loop().create_connection(
            factory, host, port
        )
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return protocol

    def is_loopback(self, host: str) -> bool:
        """See :meth:`Network.is_loopback`."""
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return (mapped or address).is_loopback


class _TcpSocket:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        host, port = server.sockets[0].getsockname()[:2]
        self.address: tuple[str, int] = (host, port)

    def close(self) -> None:
        self._server.close()
