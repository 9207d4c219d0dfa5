"""The process of one broker under a supervisor, and its registration with the supervisor."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from txmq.errors import ConfigError, DirectoryInUse, StoreError, TxmqError
from txmq.protocol.bodies import TopicConfigs
from txmq.runtime.child_process import KILL_GRACE_S
from txmq.runtime.parent_link import (
    ContentNotice,
    FailedNotice,
    FailureKind,
    LoadedNotice,
    ParentLink,
    ReadyNotice,
)
from txmq.runtime.process import exempt_from_collection, keep_freed_memory, shorten_time_slice
from txmq.runtime.tasks import Tasks
from txmq_broker.app import Broker
from txmq_broker.core.identity import Identity
from txmq_broker.core.topics import Topics
from txmq_broker.monitoring.subject import LoneProcess, objection
from txmq_broker.processes.file_limit import allow_files
from txmq_broker.processes.plan import (
    BEAT_S,
    BrokerNotice,
    BrokerProcessPlan,
    BrokerReport,
    HeartbeatNotice,
    OpenedNotice,
    RegistrationNotice,
    UnregistrationNotice,
)
from txmq_broker.services.registrar import (
    PAUSE_PER_TOPIC_S,
    PERIOD_S,
    NearRegistration,
    registration_of,
)

if TYPE_CHECKING:
    from txmq_broker.monitoring.pages import MonitoringPages

__all__ = ["CANNOT_START", "CRASHED", "BrokerChild", "ParentRegistration", "registration_notices"]

log = logging.getLogger(__name__)

LOCK_WAIT_S: Final = 10.0
"""Extra time to wait for a directory after a dead supervisor's broker should have ended."""
LOCK_PAUSE_S: Final = 0.1

DRAINED: Final = 0
CRASHED: Final = 1
CANNOT_START: Final = 2


class BrokerChild:
    """One broker, from start to end.

    Args:
        descriptor: The file descriptor of the socket to its supervisor.

    Raises:
        ConnectionError: The supervisor is already gone.
    """

    def __init__(self, descriptor: int) -> None:
        self._link = ParentLink(descriptor, self.report)
        self.plan = msgspec.json.decode(self._link.read_start().plan, type=BrokerProcessPlan)
        """The settings of the broker, and what the supervisor expects of it."""
        self._orphan_s = self.plan.drain_s + KILL_GRACE_S
        """How long it may run on after its supervisor died, even if its event loop is blocked."""
        self._link.send(LoadedNotice(self.plan.settings.name))
        self._process = LoneProcess()
        self._pages: MonitoringPages | None = None
        self._tasks = Tasks()

    async def run(self) -> int:
        """Serve until the supervisor stops this process or dies, SIGTERM arrives, or it fails.

        Returns:
            The exit code of the process.
        """
        keep_freed_memory()
        shorten_time_slice()
        self._link.end_after_parent(self._orphan_s)
        self._link.drain_at_sigterm()
        settings = self.plan.settings
        allow_files(settings.connections_max)
        kind: FailureKind = "refused"
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._link)
            try:
                broker = await self._open(stack)
            except StoreError as error:
                # The other brokers continue; the supervisor tries this one again later.
                kind, reason = "unavailable", str(error)
            except (ConfigError, TxmqError) as error:
                reason = str(error)
            except OSError as error:
                reason = _reason_of(error, settings.listen)
            else:
                return DRAINED if broker is None else await self._serve(broker)
            reason = reason.replace("--data DIR", f"--data {settings.data}")
            self._link.send(FailedNotice(kind, reason))
            return CANNOT_START

    async def _open(self, stack: AsyncExitStack) -> Broker | None:
        """The broker, once its directory is free; ``None`` if the process is stopped first."""
        time = asyncio.get_running_loop().time
        # The broker of a killed supervisor may still be ending.
        until = time() + self._orphan_s + LOCK_WAIT_S
        register = self._register if self.plan.has_names else None
        while not self._link.stopped.is_set():
            broker = Broker(
                self.plan.settings, accept_loss=self.plan.accept_loss, register=register
            )
            try:
                return await stack.enter_async_context(broker)
            except DirectoryInUse as error:
                if time() > until:
                    raise DirectoryInUse(f"{error}: {self.plan.settings.data}") from error
                await asyncio.sleep(LOCK_PAUSE_S)
        return None

    def _register(self, identity: Identity, topics: Topics) -> ParentRegistration:
        return ParentRegistration(identity, topics, self._send)

    def _send(self, notice: BrokerNotice) -> None:
        self._link.send(ContentNotice(msgspec.Raw(msgspec.json.encode(notice))))

    async def _serve(self, broker: Broker) -> int:
        self._process.broker = broker
        exempt_from_collection()
        self._send(OpenedNotice(broker.address))
        self._send(HeartbeatNotice(objection(self._process)))
        self._link.send(ReadyNotice())
        self._tasks.start(self._beat(), "signs of life")
        waits = [
            asyncio.create_task(event.wait()) for event in (self._link.stopped, broker.stopped)
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        await self._tasks.stop()
        if broker.failure is not None:
            log.error("the broker ends: %s", broker.failure)
            return CRASHED
        if self._link.is_orphan:
            log.error("the supervisor is gone; this broker drains and ends")
        return DRAINED

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self._send(HeartbeatNotice(objection(self._process)))

    # Reports

    async def report(self) -> bytes:
        """The pages for monitoring programs, as JSON."""
        if self._process.broker is None or not self.plan.has_pages:
            return b"null"
        if self._pages is None:
            # Imported here, because it takes a quarter of the time in which a broker starts.
            from txmq_broker.monitoring.pages import MonitoringPages

            self._pages = MonitoringPages(self.plan.settings, self._process)
        metrics, info = await self._pages.metrics(), await self._pages.info()
        return msgspec.json.encode(BrokerReport(metrics.text, msgspec.json.decode(info.text)))


def _reason_of(error: OSError, listen: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{listen} is taken; choose another --listen"
    text = str(error)
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else text


TOPICS_AT_ONCE: Final = 10_000
"""The maximum number of topics in one line to the supervisor; such a line takes up to 4 MB."""


class ParentRegistration(NearRegistration):
    """Keeps a broker registered with its supervisor.

    Args:
        identity: The broker.
        topics: Its topics.
        send: Sends a notice to the supervisor.
    """

    def __init__(
        self, identity: Identity, topics: Topics, send: Callable[[BrokerNotice], None]
    ) -> None:
        super().__init__()
        self._identity = identity
        self._topics = topics
        self._send = send
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """See :meth:`Registration.start`."""
        self._register()
        await super().start()

    def changed(self) -> None:
        """See :meth:`Registration.changed`."""
        self._changed.set()

    async def stop(self) -> None:
        """See :meth:`Registration.stop`."""
        await super().stop()
        self._send(UnregistrationNotice())

    async def _keep_registering(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._changed.wait()
            self._changed.clear()
            self._register()
            # Many new topics at once must not cause one registration of all topics for each.
            await asyncio.sleep(len(self._topics) * PAUSE_PER_TOPIC_S)

    def _register(self) -> None:
        for notice in registration_notices(self._identity, self._topics):
            self._send(notice)


def registration_notices(identity: Identity, topics: Topics) -> Iterator[RegistrationNotice]:
    """The registration of a broker, in parts that each fit into a line."""
    saved, who = topics.saved(), registration_of(identity)
    table = list(saved.topic_config_table.items())
    for start in range(0, max(len(table), 1), TOPICS_AT_ONCE):
        part = dict(table[start : start + TOPICS_AT_ONCE])
        is_last = start + TOPICS_AT_ONCE >= len(table)
        yield RegistrationNotice(who, TopicConfigs(saved.data_version, part), is_last)
