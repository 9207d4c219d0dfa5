"""The name server of several brokers, inside their supervisor."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from txmq.errors import BrokerRefused, LimitExceeded, NoPermission
from txmq.protocol.bodies import TopicConfig, TopicConfigs
from txmq.remoting.pool import split_address
from txmq.runtime.clock import Clock
from txmq.runtime.disk import LocalDisk
from txmq.runtime.network import SystemNetwork
from txmq_broker.access.front_door import FrontDoor
from txmq_broker.config import BrokerSettings
from txmq_broker.names.server import NameServer
from txmq_broker.processes.layout import NAMES_FOLDER
from txmq_broker.processes.plan import RegistrationNotice

__all__ = ["OwnNames"]

log = logging.getLogger(__name__)


class OwnNames:
    """Serves the routes of the supervisor's brokers inside its ``async with``.

    Args:
        settings: The settings that the brokers share.
        clock: Gives the time.

    Raises:
        ConfigError: The file of accounts, or of a certificate, is invalid.
    """

    def __init__(self, settings: BrokerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        network = SystemNetwork()
        self._door = FrontDoor(settings.acl, settings.security, settings.tls, network)
        self._server = NameServer(
            network,
            clock,
            LocalDisk(Path(settings.data) / NAMES_FOLDER),
            connections_max=settings.connections_max,
            authorize=self._door.authorize_names,
            protection=self._door.protection,
            tls=self._door.port_tls,
        )
        self._stack = AsyncExitStack()
        self._watches: list[asyncio.Task[None]] = []
        self._parts: dict[int, dict[str, TopicConfig]] = {}
        self._holders: dict[int, object] = {}
        self.address = settings.names_listen
        """The host and port it listens on."""
        self.refusals: dict[int, str] = {}
        """Why the last registration of a broker was refused, by its number."""

    async def __aenter__(self) -> Self:
        """Load the saved files.

        Raises:
            StoreError: A saved file is damaged.
        """
        await self._stack.enter_async_context(self._server)
        self._watches = [asyncio.create_task(files.watch()) for files in self._door.files]
        return self

    async def open(self) -> None:
        """Accept connections.

        Raises:
            OSError: The address is taken, or not one of this machine.
        """
        await self._server.open(*split_address(self._settings.names_listen))
        self.address = "{}:{}".format(*self._server.address)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. While brokers drain, it would answer that no topic exists."""
        for watch in self._watches:
            watch.cancel()
        await self._stack.aclose()

    # What brokers send

    def register(self, number: int, notice: RegistrationNotice) -> None:
        """Take a part of the topics of a broker; the last part registers it."""
        parts = self._parts.setdefault(number, {})
        parts |= notice.topics.topic_config_table
        if not notice.is_last:
            return
        del self._parts[number]
        offer = TopicConfigs(notice.topics.data_version, parts)
        holder = self._holders.setdefault(number, object())
        try:
            self._server.routes.register(notice.broker, offer, holder, self._clock.monotonic())
        except (BrokerRefused, LimitExceeded, NoPermission) as error:
            if self.refusals.get(number) != str(error):
                log.error("%s is not registered: %s", notice.broker.broker_name, error)  # noqa: TRY400
            self.refusals[number] = str(error)
        else:
            self.refusals.pop(number, None)

    def unregister(self, number: int) -> None:
        """Remove the routes to a broker that drains, or has died."""
        self._parts.pop(number, None)
        holder = self._holders.pop(number, None)
        if holder is not None:
            self._server.routes.disconnect(holder)
