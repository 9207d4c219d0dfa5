"""A running name server: a listener, a sweep for silent brokers, and two small files."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial, wraps
from types import TracebackType
from typing import Final, Self

from txmq.errors import (
    BrokerRefused,
    ConfigError,
    DamagedFile,
    ProtocolError,
    UsageError,
    WriteFailed,
)
from txmq.protocol.command import Command
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Dispatcher, Handler
from txmq.remoting.listener import Listener
from txmq.runtime.clock import Clock
from txmq.runtime.disk import Disk
from txmq.runtime.network import Network
from txmq_broker.access.audit import AuditLog
from txmq_broker.access.front_door import FrontDoor
from txmq_broker.core.identity import Identity
from txmq_broker.core.topics import Topics
from txmq_broker.names.handlers import NameHandlers, OptionTable
from txmq_broker.names.key_values import KeyValues, KeyValueWriter
from txmq_broker.names.routes import Replica, RouteRegistry
from txmq_broker.services.registrar import (
    PERIOD_S,
    NearRegistration,
    RegisteredTopics,
    registration_of,
)
from txmq_broker.store.checked_file import CheckedFile

__all__ = ["FILES", "NameServer", "OwnRegistration"]

log = logging.getLogger(__name__)

SWEEP_S: Final = 5.0
"""The interval of the sweep for silent brokers, as in RocketMQ 5."""

_VALUES: Final = "config/kv.json"
_OPTIONS: Final = "config/names.properties"
FILES: Final = (_VALUES, _OPTIONS)
"""The files in a name server's directory, each with a previous version."""


class NameServer:
    """Serves routes to clients. With a disk it keeps operators' texts and options."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        disk: Disk | None = None,
        *,
        connections_max: int = 10_000,
        owner: str = "",
        audit: AuditLog | None = None,
        door: FrontDoor | None = None,
    ) -> None:
        self._network = network
        self._clock = clock
        self._disk = disk
        self._owner = owner
        self._connections_max = connections_max
        self._dispatch = Dispatcher({}, None if door is None else door.authorize_names)
        self._audit = audit
        self._protection = None if door is None else door.protection
        self._tls = None if door is None else door.port_tls
        self._listener: Listener | None = None
        self._options: OptionTable | None = None
        self._writer: KeyValueWriter | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closing = False
        self.routes = RouteRegistry()
        """The registered brokers and topics."""
        self.requests: Counter[int] = Counter()
        """The requests since the start, by code."""
        self._values: KeyValues | None = None

    async def __aenter__(self) -> Self:
        """Load the saved files; :meth:`open` then accepts connections.

        Raises:
            DamagedFile: A file is damaged, and its previous version cannot replace it.
            ConfigError: A file is intact, but its contents are invalid.
            OSError: The disk cannot be read.
        """
        values_data, save_values = self._kept(_VALUES)
        options_data, save_options = self._kept(_OPTIONS)
        values = self._values = KeyValues(values_data)
        self._writer = KeyValueWriter(values, self._in_thread(save_values))
        try:
            self._options = OptionTable(save_options, options_data)
        except (BrokerRefused, ProtocolError) as error:
            raise ConfigError(f"{_OPTIONS}: {error}") from error
        # A read-only fact under RocketMQ's name and in its unit.
        self._options.facts["scanNotActiveBrokerInterval"] = int(SWEEP_S * 1000)
        self._listener = Listener(
            self._network,
            self._clock,
            self._dispatch,
            connections_max=self._connections_max,
            on_lost=self._forget,
            decode=self._dispatch.decode,
            service_for=self._protection.over(self._dispatch) if self._protection else None,
            tls=self._tls,
        )
        handlers = NameHandlers(
            self.routes, values, self._writer, self._options, self._clock, self._listener.figures
        )
        table = handlers.table()
        if self._audit is not None:
            table = self._audit.watched(table)
        self._dispatch.serve({code: self._counted(code, table[code]) for code in table})
        self._writer.dispatch.serve(table)
        self._schedule()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the listener and all connections, and wait for the disk."""
        self._is_closing = True
        if self._sweep is not None:
            self._sweep.cancel()
        if self._listener is not None:
            self._listener.close()
        if self._writer is not None:
            await self._writer.close()

    async def open(self, host: str, port: int) -> None:
        """Accept connections at an address.

        Raises:
            UsageError: The server was not entered with ``async with``.
            OSError: The address is in use, or does not belong to this machine.
        """
        if self._listener is None or self._options is None:
            raise UsageError("enter a name server with `async with` before you open it")
        await self._listener.open(host, port)
        self._options.facts["listenPort"] = self.address[1]
        if self._protection is not None:
            self._protection.announce(self.address)
        log.info("name server at %s:%d", *self.address)

    @property
    def address(self) -> tuple[str, int]:
        """The host and port it listens on."""
        assert self._listener is not None, "not started"
        return self._listener.address

    @property
    def is_open(self) -> bool:
        """Whether it serves requests."""
        return self._listener is not None and not self._is_closing

    def figures(self) -> dict[str, int]:
        """The entries kept for its peers, and the number of refusals since the start."""
        assert self._listener is not None, "not started"
        assert self._values is not None, "not started"
        return self.routes.figures() | self._values.figures() | self._listener.figures()

    def _counted(self, code: int, handler: Handler) -> Handler:
        @wraps(handler)
        def serve(connection: Connection, request: Command) -> bytes | None:
            self.requests[code] += 1
            return handler(connection, request)

        return serve

    @property
    def served(self) -> Mapping[int, Handler]:
        """The handlers by request code."""
        return self._dispatch.handlers

    # Brokers that leave

    def _forget(self, connection: Connection) -> None:
        for replica in self.routes.disconnect(connection):
            if not self._is_closing:
                _log_removal(replica, "its connection closed")

    def _schedule(self) -> None:
        self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._expire)

    def _expire(self) -> None:
        for replica in self.routes.expire(self._clock.monotonic()):
            _log_removal(replica, f"silent for {replica.lifetime_s:g} s")
        self._schedule()

    # The disk

    def _kept(self, path: str) -> tuple[bytes | None, Callable[[bytes], None]]:
        """The contents of a file, and a function that replaces it, if there is a disk."""
        if self._disk is None:
            return None, lambda _: None
        file = CheckedFile(self._disk, path, is_doubled=True)

        def save(data: bytes) -> None:
            try:
                file.save(self._owner, data)
            except OSError as error:
                raise WriteFailed(f"{path} cannot be written: {error}") from error

        try:
            data = file.load(self._owner)
        except DamagedFile as error:
            raise DamagedFile(
                path,
                f"{error.reason}; restore the file from a backup, or delete both to start empty",
            ) from error
        if data is not None and not file.is_complete:
            try:
                save(data)
            except WriteFailed as error:
                log.warning("serving, but a file could not be repaired: %s", error)
        return data, save

    def _in_thread(
        self, save: Callable[[bytes], None]
    ) -> Callable[[bytes], Awaitable[None]] | None:
        """A function that saves in the disk's thread; ``None`` without a disk."""
        disk = self._disk
        return None if disk is None else lambda data: disk.run_soon(partial(save, data))


def _log_removal(replica: Replica, reason: str) -> None:
    log.warning(
        "broker %s (id %d) at %s is gone: %s",
        replica.broker_name,
        replica.broker_id,
        replica.address,
        reason,
    )


class OwnRegistration(NearRegistration):
    """Keeps a broker registered with its own name server; ``Registrar`` does so with others."""

    def __init__(
        self, identity: Identity, topics: Topics, routes: RouteRegistry, clock: Clock
    ) -> None:
        super().__init__()
        self._identity = identity
        self._topics = topics
        self._routes = routes
        self._clock = clock
        self._known = RegisteredTopics()
        self.changed()

    def changed(self) -> None:
        """Register now."""
        registration = registration_of(self._identity)
        for part in self._known.parts(self._topics):
            self._routes.register(registration, part, self, self._clock.monotonic())

    async def _keep_registering(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            self.changed()
