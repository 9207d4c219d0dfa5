"""Registers the broker with every name server: at start, on every change, every 30 seconds, and
when the connection to a name server breaks.

Each name server has its own task, so one that does not answer does not delay the others. A broker
with many topics registers them in parts, then only the changed ones, and only compares versions
while nothing changes; Apache RocketMQ has requests for all three.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Protocol

from txmq.errors import TxmqError
from txmq.protocol.bodies import DataVersion, RegistrationBody, TopicConfigs
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import (
    BrokerRegistration,
    BrokerUnregistration,
    DataVersionAnswer,
)
from txmq.remoting.connection import Connection
from txmq.remoting.pool import ConnectionPool
from txmq_broker.core.identity import Identity
from txmq_broker.core.topics import Topics

__all__ = [
    "PART_TOPICS",
    "NearRegistration",
    "RegisteredTopics",
    "Registrar",
    "Registration",
    "registration_of",
]

log = logging.getLogger(__name__)

PERIOD_S: Final = 30.0
RETRY_S: Final = 1.0
"""The pause before the next registration after a failed one or a broken connection."""

PAUSE_PER_TOPIC_S: Final = 0.0001
"""The pause after a registration, for each topic; a topic costs both ends about 5 microseconds."""

TIMEOUT_S: Final = 3.0


def registration_of(identity: Identity) -> BrokerRegistration:
    """What a name server receives about a broker, apart from its topics."""
    return BrokerRegistration(
        identity.name,
        identity.address,
        identity.cluster,
        identity.address,
        identity.broker_id,
        proof=identity.proof,
    )


class Registration(Protocol):
    """Keeps a broker registered."""

    async def start(self) -> None:
        """Register now, and repeat it periodically."""
        ...

    def changed(self) -> None:
        """Register now, because the topics or the id have changed."""
        ...

    def is_registered(self) -> bool:
        """Whether a name server knows the broker."""
        ...

    async def stop(self) -> None:
        """Unregister."""
        ...


class Registrar:
    """Keeps this broker registered."""

    def __init__(
        self, identity: Identity, topics: Topics, pool: ConnectionPool, names: list[str]
    ) -> None:
        self._identity = identity
        self.topics = topics
        """The topics to register."""
        self._pool = pool
        self._changed = {name: asyncio.Event() for name in names}
        self._tasks: list[asyncio.Task[None]] = []
        self._registered: dict[str, Connection] = {}
        self._known: dict[str, tuple[Connection, RegisteredTopics]] = {}
        """What each name server has received, and over which connection."""
        self._silent: set[str] = set()
        self.may_register: Callable[[], bool] = lambda: True
        """Asked before each registration."""

    async def start(self) -> None:
        """Register now, and repeat it periodically."""
        await asyncio.gather(*[self._register(name) for name in self._changed])
        self._tasks = [
            asyncio.create_task(self._keep_registering(name), name=f"registrar of {name}")
            for name in self._changed
        ]

    def changed(self) -> None:
        """Register now, because the topics or the id have changed."""
        for changed in self._changed.values():
            changed.set()

    def is_registered(self) -> bool:
        """Whether a name server has the last registration, and its connection is open."""
        return any(connection.is_open for connection in self._registered.values())

    async def give_up(self) -> None:
        """Stop registering."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Unregister from every name server."""
        await self.give_up()
        # All at once, so that unresponsive name servers do not use up the time for stopping.
        await asyncio.gather(*[self._unregister(name) for name in self._changed])

    async def _keep_registering(self, name: str) -> None:
        while True:
            await self._until_due(name)
            self._changed[name].clear()
            await self._register(name)
            # In a flood of new topics, both ends must not process many topics for each new one.
            count = min(len(self.topics), PART_TOPICS)
            await asyncio.sleep(count * PAUSE_PER_TOPIC_S)

    async def _until_due(self, name: str) -> None:
        for _ in range(round(PERIOD_S / RETRY_S)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._changed[name].wait()
                return
            # A name server forgets a broker when the connection breaks or the server restarts.
            connection = self._registered.get(name)
            if connection is None or not connection.is_open:
                return

    async def _register(self, name: str) -> None:
        self._registered.pop(name, None)
        if not self.may_register():
            return
        try:
            connection = await self._pool.connection(name)
            await self._register_over(connection, name)
        except TxmqError as error:
            if name not in self._silent:
                log.warning("the broker cannot register with the name server %s: %s", name, error)
            self._silent.add(name)
            return
        self._registered[name] = connection
        if name in self._silent:
            log.info("the name server %s knows this broker again", name)
        self._silent.discard(name)

    async def _register_over(self, connection: Connection, name: str) -> None:
        version = self.topics.version
        before, known = self._known.get(name, (None, RegisteredTopics()))
        if before is not connection:
            known = RegisteredTopics()
        elif len(self.topics) > PART_TOPICS and known.version == version:
            if await self._has_version(connection, version):
                return
            known = RegisteredTopics()
        self._known[name] = connection, known
        for part in known.parts(self.topics):
            await connection.request(
                RequestCode.REGISTER_BROKER,
                registration_of(self._identity),
                body=RegistrationBody(part).write(),
                timeout_s=TIMEOUT_S,
            )

    async def _has_version(self, connection: Connection, version: DataVersion) -> bool:
        """Whether a name server has all topics; the request counts as a sign of life."""
        identity = self._identity
        header = BrokerUnregistration(
            identity.name, identity.address, identity.cluster, identity.broker_id
        )
        found = await connection.request(
            RequestCode.QUERY_DATA_VERSION, header, body=version.write(), timeout_s=TIMEOUT_S
        )
        return not found.read(DataVersionAnswer).changed

    async def _unregister(self, name: str) -> None:
        identity = self._identity
        header = BrokerUnregistration(
            identity.name, identity.address, identity.cluster, identity.broker_id, identity.proof
        )
        with contextlib.suppress(TxmqError):
            connection = await self._pool.connection(name)
            await connection.request(RequestCode.UNREGISTER_BROKER, header, timeout_s=TIMEOUT_S)


PART_TOPICS: Final = 1_000
"""Topics in one registration; Apache RocketMQ's ``splitRegistrationSize`` is 800."""


class RegisteredTopics:
    """What one name server has received over one connection."""

    def __init__(self) -> None:
        self.version: DataVersion | None = None
        """The version of the topics that it received; ``None`` before the first registration."""
        self._sent = 0

    def parts(self, topics: Topics) -> Iterator[TopicConfigs]:
        """The topics to register, in parts; the last part has the version of all topics.

        The name server has them when the iterator ends.

        Args:
            topics: All topics of the broker.
        """
        version, known = topics.version, self.version
        changes = None
        if known is not None and len(topics) > PART_TOPICS:
            changes = topics.changes_since(known)
        wanted = topics.saved().topic_config_table if changes is None else changes.changed
        left = iter(wanted.items())
        for _ in range((len(wanted) - 1) // PART_TOPICS):
            # A name server takes topics only with a version that it does not have, and it must not
            # have the broker's own version before it has all topics.
            self._sent += 1
            own = DataVersion(version.timestamp, -self._sent)
            yield TopicConfigs(own, dict(islice(left, PART_TOPICS)))
        yield TopicConfigs(version, dict(left))
        self.version = version


class NearRegistration(ABC):
    """Keeps a broker registered from :meth:`start` to :meth:`stop`; see ``Registrar`` for a
    registration with name servers elsewhere.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Repeat the registration periodically."""
        self._task = asyncio.create_task(self._keep_registering(), name="registration")

    @abstractmethod
    def changed(self) -> None:
        """Register changed topics."""

    def is_registered(self) -> bool:
        """True: the name server lives as long as the broker."""
        return True

    async def stop(self) -> None:
        """Stop repeating the registration."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @abstractmethod
    async def _keep_registering(self) -> None: ...
