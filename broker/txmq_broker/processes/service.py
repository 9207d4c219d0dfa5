"""Several brokers on one machine: their processes, their name server and their pages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from txmq.errors import BrokerRefused, DirectoryInUse, LimitExceeded, NoPermission
from txmq.metrics.http import Pages
from txmq.protocol.bodies import TopicConfig, TopicConfigs
from txmq.remoting.pool import split_address
from txmq.runtime.child_process import ChildCommand, ChildEnd
from txmq.runtime.clock import Clock, SystemClock
from txmq.runtime.disk import LocalDisk, Lock
from txmq.runtime.entropy import SystemEntropy
from txmq.runtime.network import SystemNetwork
from txmq.runtime.supervisor import ChildSlot, Supervisor, SupervisorEnd, SupervisorSettings
from txmq_broker.access.front_door import FrontDoor
from txmq_broker.config import BrokerSettings
from txmq_broker.monitoring.server import serve_pages
from txmq_broker.names.server import NameServer
from txmq_broker.processes.file_limit import allow_files
from txmq_broker.processes.layout import NAMES_FOLDER, check_directory, settings_of_brokers
from txmq_broker.processes.plan import (
    DECODE_NOTICE,
    BrokerProcessPlan,
    HeartbeatNotice,
    OpenedNotice,
    RegistrationNotice,
)

__all__ = ["BrokerState", "BrokersOptions", "BrokersService", "OwnNames"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersOptions:
    """The options of the command line that are not settings."""

    count: int
    words: tuple[str, ...]
    """The command that runs one broker."""
    accept_loss: str | None
    drain_s: float
    """How long a broker may drain before it is killed."""
    log_form: Literal["text", "json"]
    log_level: Literal["debug", "info", "warning", "error"]


@dataclass(slots=True)
class BrokerState:
    """The state of one broker, as its supervisor knows it."""

    settings: BrokerSettings
    slot: ChildSlot
    address: str = ""
    """Where it listens; empty before its first start."""
    objection: str = ""
    beat_at: float = 0.0
    """When its last heartbeat arrived, by the monotonic clock."""
    failure: str = ""
    """Why it could not start; empty once it has."""

    @property
    def name(self) -> str:
        """The name of the broker."""
        return self.settings.name


class BrokersService:
    """Runs several brokers until it is stopped.

    Args:
        settings: The settings that the brokers share.
        options: The options of the command line.
        on_ready: Called when all brokers are ready for the first time.

    Attributes:
        brokers: The state of each broker.
        supervisor: Keeps their processes.
        names: Their name server; ``None`` if the settings name others.
        clock: Gives the time.

    Raises:
        ConfigError: The brokers cannot share a setting, or the directory holds something else.
    """

    def __init__(
        self, settings: BrokerSettings, options: BrokersOptions, on_ready: Callable[[], None]
    ) -> None:
        self.settings = settings
        self._options = options
        self._on_ready = on_ready
        self.clock = SystemClock()
        self.supervisor = Supervisor(
            self._command,
            SupervisorSettings(processes=options.count, drain_s=options.drain_s),
            self,
            self.clock,
            SystemEntropy(),
            self._receive,
        )
        of_brokers = settings_of_brokers(settings, options.count)
        check_directory(Path(settings.data), of_brokers)
        self.brokers = [
            BrokerState(broker, slot)
            for broker, slot in zip(of_brokers, self.supervisor.slots, strict=True)
        ]
        self.names = None if settings.names else OwnNames(settings, self.clock)
        self.was_ready = False
        self._refusal = ""
        self._opened: set[int] = set()
        self._closing: asyncio.Task[None] | None = None

    @property
    def names_text(self) -> str:
        """The addresses of the name servers, separated by ``;``."""
        return self.settings.names if self.names is None else self.names.address

    @property
    def reason(self) -> str:
        """Why the brokers did not start, or were given up; empty otherwise."""
        return self._refusal or self.supervisor.reason

    async def run(self, pages: Pages | None = None) -> SupervisorEnd:
        """Serve until :meth:`stop`.

        Args:
            pages: The pages for monitoring programs, if the settings want them.

        Raises:
            DirectoryInUse: Another program serves this directory.
            StoreError: A file of the name server is damaged.
            OSError: An address or the directory cannot be opened.
        """
        allow_files(self.settings.connections_max)
        async with AsyncExitStack() as stack:
            lock = self._lock()
            stack.callback(lock.release)
            if self.names is not None:
                stack.push_async_callback(self.names.close)
                await self.names.open()
            if pages is not None:
                await stack.enter_async_context(serve_pages(pages, self.settings.http_listen))
            end = await self.supervisor.run()
            if self._closing is not None:
                await self._closing
            return SupervisorEnd.REFUSED if self._refusal else end

    def _lock(self) -> Lock:
        try:
            return LocalDisk(self.settings.data).lock()
        except BlockingIOError as error:
            raise DirectoryInUse("another txmq serve uses this directory") from error

    def stop(self) -> None:
        """Drain all brokers; clients find no routes from now on."""
        if self.names is not None:
            self._closing = asyncio.create_task(self.names.close(), name="name server's end")
        self.supervisor.stop()

    # The processes

    def _command(self, number: int) -> ChildCommand:
        options, state = self._options, self.brokers[number - 1]
        plan = BrokerProcessPlan(
            replace(state.settings, names=self.names_text, http_listen=""),
            # Only until the broker has opened: the operator has not accepted later losses.
            options.accept_loss if number not in self._opened else None,
            has_names=self.names is not None,
            has_pages=bool(self.settings.http_listen),
            drain_s=options.drain_s,
            log_form=options.log_form,
            log_level=options.log_level,
        )
        return ChildCommand([*options.words, state.name], msgspec.json.encode(plan))

    def _receive(self, number: int, content: bytes) -> None:
        state, notice = self.brokers[number - 1], DECODE_NOTICE.decode(content)
        if isinstance(notice, HeartbeatNotice):
            state.objection, state.beat_at = notice.objection, self.clock.monotonic()
        elif isinstance(notice, OpenedNotice):
            state.address = notice.address
            state.failure = ""
            self._opened.add(number)
        elif self.names is None:
            return
        elif isinstance(notice, RegistrationNotice):
            self.names.register(number, notice)
        else:
            self.names.unregister(number)

    # Called by the supervisor

    def loaded(self, description: str) -> None:
        """Do nothing; the first process has started."""

    def all_ready(self) -> None:
        """Call ``on_ready`` the first time that all brokers accept requests."""
        if not self.was_ready:
            self.was_ready = True
            self._on_ready()

    def died(self, number: int, end: ChildEnd, pause_s: float | None) -> None:
        """Log how a broker ended, and when it starts again; end a start that cannot succeed."""
        state = self.brokers[number - 1]
        if self.names is not None:
            self.names.unregister(number)
        if end.failure is None:
            level = logging.INFO if end.code == 0 else logging.ERROR
            log.log(level, "broker %s ended: %s; it %s", state.name, end, _restart_text(pause_s))
            return
        reason, before = end.failure.reason, state.failure
        state.failure = reason
        has_served = self.was_ready or number in self._opened
        all_failed = all(broker.failure for broker in self.brokers)
        if not has_served and (end.failure.kind == "refused" or all_failed):
            texts = [
                f"{broker.name}: {broker.failure}" for broker in self.brokers if broker.failure
            ]
            self._refusal = "; ".join(texts)
            self.supervisor.stop()
        elif before == reason:
            log.warning("broker %s still cannot start; it %s", state.name, _restart_text(pause_s))
        else:
            log.error(
                "broker %s cannot start: %s; it %s", state.name, reason, _restart_text(pause_s)
            )

    def ended(self, end: ChildEnd) -> None:
        """Do nothing; :meth:`died` handles the end of a process."""


def _restart_text(pause_s: float | None) -> str:
    if pause_s is None:
        return "does not start again"
    return f"starts again in {pause_s:.1f} s" if pause_s else "starts again at once"


class OwnNames:
    """The name server of several brokers, inside their supervisor.

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
            door=self._door,
        )
        self._stack = AsyncExitStack()
        self._watches: list[asyncio.Task[None]] = []
        self._parts: dict[int, dict[str, TopicConfig]] = {}
        self._holders: dict[int, object] = {}
        self.address = settings.names_listen
        """The host and port it listens on."""
        self.refusals: dict[int, str] = {}
        """Why the last registration of a broker was refused, by its number."""

    async def open(self) -> None:
        """Load the saved files, and accept connections.

        Raises:
            StoreError: A saved file is damaged.
            OSError: The address is taken, or does not belong to this machine.
        """
        await self._stack.enter_async_context(self._server)
        self._watches = [asyncio.create_task(files.watch()) for files in self._door.files]
        await self._server.open(*split_address(self._settings.names_listen))
        self.address = "{}:{}".format(*self._server.address)

    async def close(self) -> None:
        """Close all connections; harmless when repeated.

        It closes before the brokers drain; otherwise it would answer that no topic exists.
        """
        for watch in self._watches:
            watch.cancel()
        await self._stack.aclose()

    # What brokers send

    def register(self, number: int, notice: RegistrationNotice) -> None:
        """Collect a part of a broker's topics; the last part registers it."""
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
        """Remove the routes to a broker that drains or has died."""
        self._parts.pop(number, None)
        holder = self._holders.pop(number, None)
        if holder is not None:
            self._server.routes.disconnect(holder)
