"""The connections of a client: one per address, opened when first needed, opened again when
lost.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from txmq.errors import ConfigError, ConnectFailed
from txmq.remoting.connection import Connection, Service, no_service
from txmq.runtime.clock import Clock
from txmq.runtime.network import Network

__all__ = ["NO_SERVER", "ConnectionPool", "split_address"]

CONNECT_TIMEOUT_S: Final = 3.0
"""How long a connection may take to open, as in stock clients."""

NO_SERVER: Final = "nobody listens there"
"""Why an address could not be reached that refuses connections."""


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``, where an IPv6 host may stand in brackets.

    Raises:
        ConfigError: It is not of that form.
    """
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{text!r} is no address; write host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _why(error: Exception) -> str:
    """Why nothing was reached, for whoever wrote the address."""
    if isinstance(error, ConnectionRefusedError):
        return NO_SERVER
    if isinstance(error, socket.gaierror | UnicodeError):
        said = getattr(error, "strerror", None) or error
        return f"{said}; write host:port, several separated by ';'"
    return str(error) or f"no answer within {CONNECT_TIMEOUT_S:g} s"


class ConnectionPool:
    """Shared connections by address.

    Args:
        network: Where streams come from.
        clock: Where the time comes from.
        service: Who answers what the other side asks.
        on_open: Who hears of every connection that was opened, and to which address.
    """

    def __init__(
        self,
        network: Network,
        clock: Clock,
        service: Service = no_service,
        on_open: Callable[[str, Connection], None] | None = None,
    ) -> None:
        self._network = network
        self._clock = clock
        self._service = service
        self._on_open = on_open
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._open: dict[str, Connection] = {}

    def ready(self, address: str) -> Connection | None:
        """The connection to an address, where one is open now."""
        found = self._open.get(address)
        return found if found is not None and found.is_open else None

    async def connection(self, address: str) -> Connection:
        """An open connection to an address.

        Raises:
            ConnectFailed: Nobody listens there, or the way is cut. Nothing was sent.
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
        # Shielded: one impatient caller must not take the connection from the others.
        return await asyncio.shield(opening)

    async def _connect(self, address: str) -> Connection:
        host, port = split_address(address)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                made = await self._network.connect(
                    lambda: Connection(self._clock, self._service), host, port
                )
        except (OSError, TimeoutError, UnicodeError) as error:
            # UnicodeError: what resolves names has an error of its own for what can be none.
            raise ConnectFailed(f"cannot connect to {address}: {_why(error)}") from error
        self._open[address] = made
        if self._on_open is not None:
            self._on_open(address, made)
        return made

    def _settle(self, address: str, task: asyncio.Task[Connection]) -> None:
        del self._opening[address]
        if not task.cancelled():
            task.exception()  # Looked at, for the case that every caller has gone away.

    def opened(self) -> list[Connection]:
        """The connections that are open now."""
        return [connection for connection in self._open.values() if connection.is_open]

    async def close(self) -> None:
        """Close them all."""
        for opening in list(self._opening.values()):
            opening.cancel()
        for connection in self._open.values():
            connection.close()
        self._open.clear()
