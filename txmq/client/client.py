"""A cluster client that also runs handlers; most programs open one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, tzinfo
from types import MappingProxyType
from typing import Final, Self, TypeVar

from txmq.client.cluster_client import ClusterClient
from txmq.client.consume.handler import MessageHandler
from txmq.client.consume.push_consumer import PushConsumer
from txmq.client.lifecycle import until_closed
from txmq.client.observe.worker_process import CURRENT
from txmq.client.schedule import MadeBody, ScheduledMessage, ScheduleRunner, timetable_of
from txmq.client.send.producer import Producer
from txmq.client.settings import ClientSettings, ConsumerSettings
from txmq.errors import UsageError
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network
from txmq.runtime.tasks import Tasks, Threads
from txmq.settings.units import DurationLike

__all__ = ["Client"]

M = TypeVar("M", bound=MessageHandler)
F = TypeVar("F", bound=MadeBody)

SCHEDULE_GROUP: Final = "txmq_schedules"
"""The producer group of periodic messages."""


class Client(ClusterClient):
    """One program's client of one cluster; ``async with`` opens and closes it.

    ::

        client = Client("127.0.0.1:9876")

        @client.on("Orders", group="billing", tags="Paid")
        async def bill(message: ReceivedMessage) -> None:
            ...

        async with client:
            await client.wait()

    Producers and consumers given the same client share its connections. Within a client, each
    producer group and each consumer group has one member.

    Args:
        names: The name servers, ``host:port`` separated by ``;``.
        settings: Timeouts and intervals.
        network: Opens streams.
        clock: Gives the time.
        entropy: Gives randomness.

    Raises:
        ConfigError: ``names`` names no server, or an address is invalid.
    """

    def __init__(
        self,
        names: str,
        settings: ClientSettings | None = None,
        network: Network | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        super().__init__(names, settings, network, clock, entropy)
        self.starts_handlers = True
        """Whether opening the client calls :meth:`start_handlers`; a worker calls it later, as the
        last step."""
        self._own: dict[str, PushConsumer] = {}
        self._schedules: dict[str, ScheduledMessage] = {}
        self._running = AsyncExitStack()
        self._closed: asyncio.Event | None = None

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._closed = asyncio.Event()
        try:
            if self.starts_handlers:
                await self.start_handlers()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(self, *ending: object) -> None:
        if not self.session.owner.is_current:
            return
        async with AsyncExitStack() as at_last:
            # The client closes even if stopping its consumers is cut short.
            if self._closed is not None:
                at_last.callback(self._closed.set)
            at_last.push_async_callback(super().__aexit__, *ending)
            await self._running.aclose()

    async def start_handlers(self) -> None:
        """Start the consumers of its handlers, and its periodic messages.

        Raises:
            TxmqError: Any error of starting a consumer.
        """
        for consumer in self._own.values():
            await self._running.enter_async_context(consumer)
        await self._start_schedules()

    async def _start_schedules(self) -> None:
        worker = CURRENT.get()
        if not self._schedules or (worker is not None and worker.number != 1):
            return
        producer, tasks, threads = Producer(SCHEDULE_GROUP, self), Tasks(), Threads("txmq-every", 4)
        await self._running.enter_async_context(producer)
        self._running.callback(threads.close)
        self._running.push_async_callback(tasks.stop)
        session = self.session
        for schedule in self._schedules.values():
            runner = ScheduleRunner(schedule, producer, threads, session.clock, session.entropy)
            tasks.start(runner.run(), f"schedule {schedule.name}")

    @property
    def consumers(self) -> Mapping[str, PushConsumer]:
        """The consumers of its own handlers, by their groups."""
        return MappingProxyType(self._own)

    @property
    def schedules(self) -> Mapping[str, ScheduledMessage]:
        """Its periodic messages, by their names."""
        return MappingProxyType(self._schedules)

    async def wait(self) -> None:
        """Return once the client has closed; for programs that only consume.

        Raises:
            UsageError: It was never open.
        """
        await until_closed(self._closed, self.session.owner, "this client is not open")

    def on(
        self,
        topic: str,
        tags: str = "*",
        *,
        group: str,
        sql: str = "",
        settings: ConsumerSettings | None = None,
    ) -> Callable[[M], M]:
        """Decorator: call a function with every message of a topic.

        The group gets a :class:`PushConsumer` that starts and stops with this client.

        Args:
            topic: The topic.
            tags: The wanted tags, separated by ``||``.
            group: The consumer group; it may have functions for several topics.
            sql: Instead of tags, a condition on the messages' properties.
            settings: How the group consumes; one value for all its topics.

        Raises:
            UsageError: The group already has a function for the topic or has other settings, the
                client is open, or the function declares a type that cannot be read.
            LocalProtocolError: A name is invalid, or the expression does not parse.
        """
        if self._is_open:
            raise UsageError("register handlers before the client opens")
        consumer = self._own.get(group)
        if consumer is None:
            consumer = PushConsumer(group, self, settings)
        elif settings is not None and settings != consumer.settings:
            raise UsageError(f"group {group} has other settings already")
        self._own[group] = consumer
        return consumer.on(topic, tags, sql=sql)

    def every(
        self,
        *,
        topic: str,
        interval: DurationLike | None = None,
        daily: str | None = None,
        zone: tzinfo = UTC,
        tags: str = "",
        name: str | None = None,
    ) -> Callable[[F], F]:
        """Decorator: send a message periodically, with the body that a function returns.

        ::

            @client.every(topic="Reports", daily="02:00")
            async def report(moment: datetime) -> dict[str, str]:
                return {"day": moment.date().isoformat()}

        Only the first process of a ``txmq worker`` sends it. Two workers, or two programs that open
        this client, both send it, with the same key, ``name@time``: a guard with ``message.key``
        then handles only one of the two messages. Times that pass while no such process runs are
        skipped.

        Args:
            topic: The topic.
            interval: The interval, at least 1 s; messages are due at its multiples since 1970.
            daily: Instead of an interval, a time of day, such as ``"02:00"``.
            zone: The time zone of ``daily``.
            tags: The message's tag.
            name: The name of the schedule; the function's by default.

        The function takes the scheduled time, or nothing. It returns bytes, text, or a value that
        JSON can carry; ``None`` sends nothing this time. A plain function runs in a thread.

        Raises:
            UsageError: The client is open, ``interval`` and ``daily`` are both given or both
                missing, ``daily`` is not a time, or the name is invalid or taken.
            ConfigError: The interval is invalid.
            LocalProtocolError: The topic's name is invalid.
        """
        if self._is_open:
            raise UsageError("register schedules before the client opens")
        timetable = timetable_of(interval, daily, zone)

        def decorate(make: F) -> F:
            found = ScheduledMessage.of(make, name, topic, tags, timetable)
            if found.name in self._schedules:
                raise UsageError(f"this client has a schedule {found.name} already; give a name")
            self._schedules[found.name] = found
            return make

        return decorate
