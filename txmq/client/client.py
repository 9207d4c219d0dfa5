"""A cluster client that also runs handlers; most programs open one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Self, TypeVar

from txmq.client.cluster_client import ClusterClient
from txmq.client.consume.handler import MessageHandler
from txmq.client.consume.push_consumer import PushConsumer
from txmq.client.settings import ClientSettings, ConsumerSettings
from txmq.errors import UsageError
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network

__all__ = ["Client"]

M = TypeVar("M", bound=MessageHandler)


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
        self._own: dict[str, PushConsumer] = {}
        self._running = AsyncExitStack()
        self._closed: asyncio.Event | None = None

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._closed = asyncio.Event()
        try:
            for consumer in self._own.values():
                await self._running.enter_async_context(consumer)
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

    async def wait(self) -> None:
        """Return once the client has closed; for programs that only consume.

        Raises:
            UsageError: It was never open.
        """
        if self._closed is None:
            raise UsageError(
                "this client is not open; use it with 'async with', or await its start()"
            )
        self.session.owner.check()
        await self._closed.wait()

    def on(
        self,
        topic: str,
        tags: str = "*",
        *,
        group: str,
        sql: str = "",
        settings: ConsumerSettings | None = None,
    ) -> Callable[[M], M]:
        """Call a function with every message of a topic; a decorator.

        The group gets a :class:`PushConsumer` that starts and stops with this client.

        Args:
            topic: The topic.
            tags: The tags wanted, separated by ``||``.
            group: The consumer group; it may have functions for several topics.
            sql: Instead of tags, a condition on the messages' properties.
            settings: How the group consumes; one value for all its topics.

        Raises:
            UsageError: The group already has such a function or other settings, or the client is
                open.
            LocalProtocolError: A name is invalid, or the expression does not parse.
        """
        if self._is_open:
            raise UsageError("handlers are given before a client opens")
        consumer = self._own.get(group)
        if consumer is None:
            consumer = PushConsumer(group, self, settings)
        elif settings is not None and settings != consumer.settings:
            raise UsageError(f"group {group} has other settings already")
        self._own[group] = consumer
        return consumer.on(topic, tags, sql=sql)
