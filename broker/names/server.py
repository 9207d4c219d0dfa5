"""A running name server: a door, a sweep for brokers that fell silent, and two small files."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

from broker.names.handlers import NameHandlers
from broker.names.key_values import KeyValues
from broker.names.options import NameOptions, OptionTable
from broker.names.routes import Replica, RouteTable
from txmq.errors import BrokerRefused, ConfigError, ProtocolError, UsageError, WriteFailed
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Dispatcher, Handler
from txmq.remoting.listener import Listener
from txmq.runtime.clock import Clock
from txmq.runtime.disk import Disk
from txmq.runtime.network import Network

__all__ = ["NameServer"]

log = logging.getLogger(__name__)

SWEEP_S: Final = 5.0
"""How often brokers that fell silent are looked for, as in RocketMQ 5."""

_VALUES: Final = "config/kv.json"
_OPTIONS: Final = "config/names.properties"


class NameServer:
    """Tells clients where topics live. What operators note is kept where there is a disk."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        disk: Disk | None = None,
        *,
        options: NameOptions | None = None,
        connections_max: int = 10_000,
    ) -> None:
        self._network = network
        self._clock = clock
        self._disk = disk
        self._chosen = options or NameOptions()
        self._connections_max = connections_max
        self._dispatch = Dispatcher({})
        self._listener: Listener | None = None
        self._options: OptionTable | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self.routes = RouteTable()
        """What it knows of brokers and topics."""

    async def __aenter__(self) -> Self:
        """Read what was kept; requests come once :meth:`open` was called.

        Raises:
            ConfigError: What was kept is damaged.
            OSError: The disk cannot be read.
        """
        values = KeyValues(self._saver(_VALUES), self._read(_VALUES))
        try:
            self._options = OptionTable(self._chosen, self._saver(_OPTIONS), self._read(_OPTIONS))
        except (BrokerRefused, ProtocolError) as problem:
            raise ConfigError(f"{_OPTIONS}: {problem}") from problem
        # Upstream's name, and its unit, for something operators look at but cannot change.
        self._options.facts["scanNotActiveBrokerInterval"] = int(SWEEP_S * 1000)
        handlers = NameHandlers(self.routes, values, self._options, self._clock)
        self._dispatch.serve(handlers.table())
        self._listener = Listener(
            self._network,
            self._clock,
            self._dispatch,
            connections_max=self._connections_max,
            on_lost=self._forget,
        )
        self._schedule()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the door and every connection."""
        if self._sweep is not None:
            self._sweep.cancel()
        if self._listener is not None:
            self._listener.close()

    async def open(self, host: str, port: int) -> None:
        """Take connections at an address.

        Raises:
            UsageError: It was not entered with ``async with``.
            OSError: The address is taken or not ours.
        """
        if self._listener is None or self._options is None:
            raise UsageError("a name server is entered with `async with` before it is opened")
        await self._listener.open(host, port)
        self._options.facts["listenPort"] = self.address[1]
        log.info("name server at %s:%d", *self.address)

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that are open."""
        assert self._listener is not None, "not started"
        return self._listener.address

    @property
    def served(self) -> Mapping[int, Handler]:
        """What it serves, by request code."""
        return self._dispatch.handlers

    # Brokers that go

    def _forget(self, connection: Connection) -> None:
        for each in self.routes.disconnect(connection):
            _tell(each, "its connection closed")

    def _schedule(self) -> None:
        self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._expire)

    def _expire(self) -> None:
        for each in self.routes.expire(self._clock.monotonic()):
            _tell(each, f"silent for {each.lifetime_s:g} s")
        self._schedule()

    # The disk

    def _read(self, path: str) -> bytes | None:
        if self._disk is None:
            return None
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return None
        try:
            return file.read(0, file.size())
        finally:
            file.close()

    def _saver(self, path: str) -> Callable[[bytes], None]:
        def save(data: bytes) -> None:
            if self._disk is None:
                return
            try:
                self._disk.replace(path, data)
            except OSError as problem:
                raise WriteFailed(f"{path} cannot be written: {problem}") from problem

        return save


def _tell(replica: Replica, reason: str) -> None:
    log.warning(
        "broker %s (id %d) at %s is gone: %s",
        replica.broker_name,
        replica.broker_id,
        replica.address,
        reason,
    )
