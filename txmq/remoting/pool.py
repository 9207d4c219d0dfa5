"""A client's connections: one for each address, opened on demand and reopened after a loss."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from txmq.errors import ConfigError, ConnectFailed
from txmq.remoting.connection import Connection, Service, no_service
from txmq.remoting.tls_stream import TlsStream
from txmq.runtime.clock import Clock
from txmq.runtime.network import Network
from txmq.security.signatures import Credentials
from txmq.security.tls import ClientContext

__all__ = ["NO_SERVER", "ConnectionPool", "split_address"]

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
    """Why the connection failed, worded for the person who wrote the address."""
    if isinstance(error, ConnectionRefusedError):
        return NO_SERVER
    if isinstance(error, socket.gaierror | ValueError):
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
        credentials: The credentials that sign requests.
        tls: Encrypts the connections, and checks the servers.
    """

    def __init__(
        self,
        network: Network,
        clock: Clock,
        service: Service = no_service,
        on_open: Callable[[str, Connection], None] | None = None,
        *,
        credentials: Credentials | None = None,
        tls: ClientContext | None = None,
    ) -> None:
        self._tls = tls
        self._network = network
        self._clock = clock
        self._service = service
        self._on_open = on_open
        self._credentials = credentials
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self.connections: dict[str, Connection] = {}
        """The latest connection to each address; it may have closed."""

    def ready(self, address: str) -> Connection | None:
        """The connection to an address, if one is open."""
        found = self.connections.get(address)
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
                made = await self._open_stream(host, port)
        except (OSError, TimeoutError, ValueError) as error:
            # ValueError: the name resolver and TLS raise it for an invalid host name.
            raise ConnectFailed(f"cannot connect to {address}: {_why(error)}") from error
        self.connections[address] = made
        if self._on_open is not None:
            self._on_open(address, made)
        return made

    async def _open_stream(self, host: str, port: int) -> Connection:
        made = Connection(self._clock, self._service, credentials=self._credentials)
        if self._tls is None:
            return await self._network.connect(lambda: made, host, port)
        self._tls.refresh()
        context, name = self._tls.value, self._tls.server_name(host)
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def end(why: str) -> None:
            if not ended.done():
                ended.set_result(why)

        stream = await self._network.connect(
            lambda: TlsStream(context, lambda: made, end, server_name=name), host, port
        )
        try:
            why = await ended
        except BaseException:
            stream.abort()
            raise
        if why:
            raise ConnectionError(f"TLS: {why}")
        return made

    def _settle(self, address: str, task: asyncio.Task[Connection]) -> None:
        del self._opening[address]
        if not task.cancelled():
            task.exception()  # Retrieved, in case every caller was cancelled.

    def opened(self) -> list[Connection]:
        """The open connections."""
        return [connection for connection in self.connections.values() if connection.is_open]

    async def close(self) -> None:
        """Close all connections."""
        for opening in list(self._opening.values()):
            opening.cancel()
        for connection in self.connections.values():
            connection.close()
        self.connections.clear()
