"""The network: byte streams between addresses, in asyncio's own protocol and transport terms."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol, TypeVar

__all__ = ["Network", "ServerSocket", "SystemNetwork"]

P = TypeVar("P", bound=asyncio.Protocol)


class ServerSocket(Protocol):
    """An open door: connections arrive until it is closed."""

    @property
    def address(self) -> tuple[str, int]:
        """The host and port it listens on; the port is real even where 0 was asked for."""
        ...

    def close(self) -> None:
        """Take no further connections; those that are open stay so."""
        ...


class Network(Protocol):
    """Opens doors and walks through others'."""

    async def listen(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> ServerSocket:
        """Accept connections at an address, each served by one protocol object.

        Raises:
            OSError: The address is taken or not ours.
        """
        ...

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        """Open a stream to an address and return its protocol object, already connected.

        Raises:
            OSError: Nobody listens there, or the way is cut.
        """
        ...


class SystemNetwork:
    """TCP on this machine's running event loop."""

    async def listen(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> ServerSocket:
        """See :meth:`Network.listen`."""
        loop = asyncio.get_running_loop()
        return _Door(await loop.create_server(factory, host, port, backlog=1024))

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        """See :meth:`Network.connect`."""
        transport, protocol = await asyncio.get_running_loop().create_connection(
            factory, host, port
        )
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return protocol


class _Door:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        host, port = server.sockets[0].getsockname()[:2]
        self.address: tuple[str, int] = (host, port)

    def close(self) -> None:
        self._server.close()
