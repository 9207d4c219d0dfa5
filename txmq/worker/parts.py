"""The parts of an application: what a worker opens, in which order, and how it closes them."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine, Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, TypeVar

from txmq.client.client import Client
from txmq.client.cluster_client import ClusterClient
from txmq.client.consume.pull_consumer import PullConsumer
from txmq.client.consume.push_consumer import PushConsumer
from txmq.client.consume.scheduled_pull import ScheduledPull
from txmq.client.lifecycle import Lifecycle
from txmq.errors import ConfigError
from txmq.runtime.facade import OpenableFacade
from txmq.text import quantity
from txmq.transaction.manager import TransactionManager
from txmq.transaction.producer import TransactionProducer

if TYPE_CHECKING:
    from txmq.outbox.relay import Relay

__all__ = ["BlockingPart", "OpenParts", "WorkerPart", "part_of", "relay_of"]

log = logging.getLogger(__name__)

R = TypeVar("R")

CLOSE_S: Final = 4.0
"""How long producers, relays and clients may take to close beyond the drain; the supervisor kills
the process a second later."""


class WorkerPart:
    """An object of the asyncio API.

    Args:
        found: The object.
        name: Its name in the application.
    """

    def __init__(self, found: Lifecycle, name: str) -> None:
        self.object: Lifecycle = found
        self.name = name
        self.may_be_open = False
        """A context manager of the application may have opened it."""

    async def open(self) -> None:
        """Open it."""
        await self.object.start()

    async def close(self) -> None:
        """Close it."""
        await self.object.stop()

    async def in_loop(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the loop that the object belongs to.

        Raises:
            Exception: Any error of the coroutine.
        """
        return await work

    async def start_handlers(self) -> None:
        """Start the handlers of a client that was opened without them."""
        if isinstance(self.object, Client) and not self.object.starts_handlers:
            await self.in_loop(self.object.start_handlers())

    @property
    def consumers(self) -> list[PushConsumer]:
        """The consumers that call its handlers."""
        if isinstance(self.object, PushConsumer):
            return [self.object]
        return list(self.object.consumers.values()) if isinstance(self.object, Client) else []

    @property
    def has_work(self) -> bool:
        """Whether it does something by itself once it is open."""
        found = self.object
        if isinstance(found, Client):
            return bool(found.consumers or found.schedules)
        return relay_of(found) is not None or isinstance(
            found, PushConsumer | ScheduledPull | TransactionManager | TransactionProducer
        )

    @property
    def description(self) -> str:
        """What it does, in a few words; empty if it only serves other parts."""
        found = self.object
        texts = [
            f"{subscription.topic} as {consumer.group}"
            for consumer in self.consumers
            for subscription in consumer.subscriptions
        ]
        if isinstance(found, Client):
            texts += [f"schedule {name}" for name in found.schedules]
        elif isinstance(found, TransactionManager | TransactionProducer):
            texts.append(f"checks of {found.group}")
        elif (relay := relay_of(found)) is not None:
            texts.append(f"relay of {relay.outbox.name}")
        elif isinstance(found, ScheduledPull):
            texts.append(f"scheduled pulls of {found.consumer.group}")
        return ", ".join(texts)


class BlockingPart(WorkerPart):
    """An object of :mod:`txmq.blocking`: it is opened and closed in a thread."""

    def __init__(self, facade: OpenableFacade[Any], name: str) -> None:
        super().__init__(facade.real, name)
        self._facade = facade

    @staticmethod
    def accepts(found: object) -> bool:
        """Whether an object is one of the blocking API."""
        return isinstance(found, OpenableFacade)

    async def open(self) -> None:
        """Open it."""
        await asyncio.to_thread(self._facade.start)

    async def close(self) -> None:
        """Close it."""
        await asyncio.to_thread(self._facade.stop)

    async def in_loop(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the loop of the object, which another thread runs.

        Raises:
            Exception: Any error of the coroutine.
        """
        return await asyncio.to_thread(self._facade.run, work)


def part_of(found: object, name: str) -> WorkerPart | None:
    """The part for an object; ``None`` if a worker does not run it, such as a pull consumer."""
    if isinstance(found, PullConsumer):
        return None
    if isinstance(found, Lifecycle):
        return WorkerPart(found, name)
    if isinstance(found, OpenableFacade) and isinstance(found.real, Lifecycle):
        return None if isinstance(found.real, PullConsumer) else BlockingPart(found, name)
    return None


def relay_of(found: object) -> Relay | None:
    """The object, if it is a relay; else ``None``."""
    # An application with a relay has imported this module, which needs SQLAlchemy.
    module = sys.modules.get("txmq.outbox.relay")
    return found if module is not None and isinstance(found, module.Relay) else None


class OpenParts:
    """Opens the parts of all targets inside its ``async with``, and closes them in order.

    Args:
        parts: The parts.
        drain_s: How long handlers may take to finish the messages in hand.
    """

    def __init__(self, parts: Iterable[WorkerPart], drain_s: float) -> None:
        self.parts = _in_order(parts)
        self._drain_s = drain_s
        self._stack = AsyncExitStack()
        self._draining: list[PushConsumer] = []

    def check(self) -> None:
        """Check that the parts can be opened.

        Raises:
            ConfigError: None of them does anything by itself, one is open already, or a blocking
                one shares a client that is not among them.
        """
        if not any(part.has_work for part in self.parts):
            names = ", ".join(part.name for part in self.parts)
            raise ConfigError(
                f"{names}: nothing to run; give a client handlers with @client.on(topic, group=...)"
            )
        known = {id(part.object) for part in self.parts}
        for part in self.parts:
            if not {id(need) for need in part.object.needs} <= known:
                raise ConfigError(
                    f"{part.name} shares a client of txmq.blocking; name that client too"
                )
            if part.object.is_open and not part.may_be_open:
                raise ConfigError(
                    f"{part.name} is open already; the worker opens it, so do not start it while "
                    "the module is imported"
                )

    @property
    def consumers(self) -> dict[PushConsumer, WorkerPart]:
        """All consumers, and the parts that they belong to."""
        return {consumer: part for part in self.parts for consumer in part.consumers}

    @property
    def description(self) -> str:
        """What the parts do."""
        return ", ".join(dict.fromkeys(filter(None, (part.description for part in self.parts))))

    async def open(self) -> None:
        """Open all parts; handlers start last.

        Raises:
            TxmqError: A part cannot be opened. Those that were open are closed again.
        """
        try:
            for part in self.parts:
                if part.object.is_open:
                    continue
                if isinstance(part.object, Client):
                    part.object.starts_handlers = False
                await part.open()
                if not isinstance(part.object, PushConsumer) or isinstance(part, BlockingPart):
                    self._stack.push_async_callback(part.close)
            for part in self.parts:
                await part.start_handlers()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop fetching, let handlers finish, save offsets; then close the rest."""
        busy = {consumer: part for consumer, part in self.consumers.items() if consumer.is_open}
        if busy:
            log.info("draining %s", quantity(len(busy), "consumer"))
        async with asyncio.timeout(self._drain_s + CLOSE_S):
            ends = await asyncio.gather(
                *[part.in_loop(consumer.stop()) for consumer, part in busy.items()],
                return_exceptions=True,
            )
            for consumer, end in zip(busy, ends, strict=True):
                if isinstance(end, BaseException):
                    log.error("group %s did not stop in order", consumer.group, exc_info=end)
            await self._stack.aclose()


def _in_order(parts: Iterable[WorkerPart]) -> list[WorkerPart]:
    """All parts and the clients that they share: shared ones first, and handlers last."""
    given = {id(part.object): part for part in parts}
    known = dict(given)
    waiting = list(given.values())
    while waiting:
        part = waiting.pop()
        for need in part.object.needs:
            # Facades share the loops of their own clients, which are parts themselves.
            if id(need) not in known and not isinstance(part, BlockingPart):
                known[id(need)] = WorkerPart(need, f"{part.name}'s {type(need).__name__}")
                waiting.append(known[id(need)])
    return sorted(known.values(), key=lambda part: _rank(part.object, known.values()))


def _rank(found: Lifecycle, parts: Iterable[WorkerPart]) -> int:
    if isinstance(found, ClusterClient):
        return 0
    if isinstance(found, ScheduledPull):
        return 3
    if isinstance(found, PushConsumer):
        return 4
    # A relay may share a producer.
    return 1 if any(found in part.object.needs for part in parts) else 2
