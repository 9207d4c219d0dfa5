"""A consumer that calls handlers with messages as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Self, TypeVar

from msgspec.structs import replace

from txmq.client.cluster_client import ClusterClient
from txmq.client.consume.assignment import QueueAssignment
from txmq.client.consume.concurrent_workers import ConcurrentWorkers
from txmq.client.consume.fetcher import Returns, as_sent
from txmq.client.consume.group_consumer import GroupConsumer
from txmq.client.consume.handler import BatchHandler, BoundHandler, MessageHandler
from txmq.client.consume.orderly_workers import HeldLocks, OrderlyWorkers
from txmq.client.consume.subscription import ANY_TAG, TopicSubscription, check_dead_letters
from txmq.client.lifecycle import until_closed
from txmq.client.middleware import ReceiveChain
from txmq.client.names import check_name
from txmq.client.observe.hooks import HandlerHook, HandlerHooks
from txmq.client.observe.message_trace import HandlerTrace, Tracer, trace_group
from txmq.client.observe.worker_process import CURRENT
from txmq.client.send.producer import Producer
from txmq.client.settings import TRACE_SETTINGS, ConsumerSettings
from txmq.errors import UsageError
from txmq.message import Later, Queue, QueueOffset, ReceivedMessage
from txmq.protocol.topics import RETRY
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network
from txmq.runtime.tasks import Threads

__all__ = ["PushConsumer"]

M = TypeVar("M", bound=MessageHandler)
B = TypeVar("B", bound=BatchHandler)


class PushConsumer(GroupConsumer[QueueAssignment]):
    """A member of a consumer group that calls handlers; ``async with`` starts and stops it.

    ::

        consumer = PushConsumer("billing", "127.0.0.1:9876")

        @consumer.on("Orders", tags="Paid")
        async def bill(message: ReceivedMessage) -> None:
            ...

        async with consumer:
            await consumer.wait()

    A handler may declare the type of the body instead: ``async def bill(order: Order)``, or both,
    ``(order: Order, message: ReceivedMessage)``. A message whose body does not fit becomes a dead
    letter.

    A message is consumed when its handler returns. If the handler raises or returns :class:`Later`,
    the message comes again later. Delivery is at least once. Plain functions run in threads,
    ``async`` functions in the event loop.

    On a stop, handlers have up to ``settings.stop_timeout`` to finish the fetched messages.

    Args:
        group: The group. All its members have the same subscriptions.
        names: The name servers, or a client to share.
        settings: How it consumes.
        network: Opens streams; a shared client has its own.
        clock: Gives the time; a shared client has its own.
        entropy: Gives randomness; a shared client has its own.

    Raises:
        LocalProtocolError: The group's name is invalid.
        LimitExceeded: The name is too long.
        ConfigError: ``names`` names no server.
    """

    _consume_type = "CONSUME_PASSIVELY"

    def __init__(
        self,
        group: str,
        names: str | ClusterClient,
        settings: ConsumerSettings | None = None,
        network: Network | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        super().__init__(group, names, settings, network, clock, entropy)
        self._handlers: dict[str, BoundHandler] = {}
        self._threads: Threads | None = None
        self._runner: ConcurrentWorkers | OrderlyWorkers | None = None
        self._stopped: asyncio.Event | None = None
        self._tracer: Tracer | None = None

    # Handlers

    def on(self, topic: str, tags: str = ANY_TAG, *, sql: str = "") -> Callable[[M], M]:
        """Decorator: call a function with every message of a topic.

        Args:
            topic: The topic.
            tags: The wanted tags, separated by ``||``.
            sql: Instead of tags, a condition on the messages' properties. Brokers parse it when the
                consumer starts, which raises :class:`txmq.errors.SubscriptionInvalid` if it does
                not parse, and :class:`txmq.errors.FilterUnsupported` if a broker does not support
                conditions.

        Raises:
            UsageError: The topic has a handler, the consumer is running, or the handler declares a
                type that cannot be read.
            LocalProtocolError: The topic's name is invalid, or the expression does not parse.
        """

        def decorate(handler: M) -> M:
            self._subscribe(
                TopicSubscription(topic, tags, sql), BoundHandler(handler, takes_batch=False)
            )
            return handler

        return decorate

    def on_batch(self, topic: str, tags: str = ANY_TAG, *, sql: str = "") -> Callable[[B], B]:
        """Decorator: call a function with up to ``settings.batch_max`` messages at once.

        They succeed or fail together, unless the function returns ``Later(first=n)``.

        Raises:
            UsageError: The topic has a handler, or the consumer is running.
            LocalProtocolError: The topic's name is invalid, or the expression does not parse.
        """

        def decorate(handler: B) -> B:
            self._subscribe(
                TopicSubscription(topic, tags, sql), BoundHandler(handler, takes_batch=True)
            )
            return handler

        return decorate

    def _subscribe(self, wanted: TopicSubscription, handler: BoundHandler) -> None:
        check_name("topic", wanted.topic)
        check_dead_letters(wanted.topic, self.settings)
        if self._assignment is not None:
            raise UsageError("register handlers before the consumer starts")
        if wanted.topic in self._handlers:
            raise UsageError(f"topic {wanted.topic} has a handler already")
        self._handlers[wanted.topic] = handler
        self._subscriptions[wanted.topic] = wanted

    # Start and stop

    async def __aenter__(self) -> Self:
        if self._assignment is not None:
            self.client.session.owner.check()
            raise UsageError("this consumer is running already")
        if not self._handlers:
            raise UsageError("this consumer has no handler; give it one with @consumer.on(topic)")
        if self._is_own:
            await self.client.__aenter__()
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *ending: object) -> None:
        if self.client.session.owner.is_current:
            await self._stop()

    async def _start(self) -> None:
        client, worker = self.client, CURRENT.get()
        if worker is not None:
            self.settings: ConsumerSettings = replace(self.settings, stop_timeout=worker.stop_s)
        settings = self.settings
        self._stopped = asyncio.Event()
        self._version = client.session.clock.wall_ms()
        self._threads = Threads(f"txmq-{self.group}", settings.concurrency)
        hooks = await self._open_hooks()
        chain = ReceiveChain.of(client.middlewares)
        observe = None if worker is None else partial(worker.observer.before, self.group)
        for handler in self._handlers.values():
            handler.open(self._threads, hooks, chain, observe)
        self._runner = self._make_runner()
        self._assignment = QueueAssignment(client, self.group, settings, self._runner)
        self._assignment.subscriptions = self._wanted()
        await self._subscription_checks.check(self._subscriptions.values())
        await self._subscription_checks.look(self._subscriptions)
        await client.join(self)
        await self._assignment.settle_beginnings()
        self._runner.open()
        self._assignment.open()

    async def _open_hooks(self) -> HandlerHooks | None:
        session, hooks = self.client.session, list[HandlerHook]()
        if self.settings.is_traced:
            inner = Producer(trace_group(self.group, "CONSUME"), self.client, TRACE_SETTINGS)
            tracer = Tracer(inner, self.settings.trace_topic, session.clock)
            await tracer.open()
            self._tracer, timeout_s = tracer, self.settings.consume_timeout
            hooks.append(HandlerTrace(tracer, self.group, session.ids, timeout_s))
        telemetry, is_broadcast = self.client.settings.telemetry, self.settings.is_broadcast
        if telemetry is not None:
            about = self.group, self.client.id
            hooks.append(telemetry.of_consumer(*about, is_broadcast=is_broadcast))
            hooks.append(telemetry.metrics.of_consumer(self.group, session.clock))
        return HandlerHooks(hooks) if hooks else None

    async def _close_hooks(self) -> None:
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            await tracer.close()

    def _make_runner(self) -> ConcurrentWorkers | OrderlyWorkers:
        settings, session = self.settings, self.client.session
        returns = Returns(session, self.group, settings)
        if not settings.is_orderly:
            return ConcurrentWorkers(settings, session.clock, self._handlers, returns)
        locks: HeldLocks | None = None
        if not settings.is_broadcast:
            locks = HeldLocks(session, self.group, self.client.id)
        return OrderlyWorkers(settings, self._handlers, returns, locks, self._lose)

    def _lose(self, queue: Queue) -> None:
        if self._assignment is not None:
            self._assignment.lose(queue)

    def _wanted(self) -> dict[str, TopicSubscription]:
        wanted = dict(self._subscriptions)
        if not self.settings.is_broadcast:
            retry = TopicSubscription(RETRY + self.group)
            wanted[retry.topic] = retry
        return wanted

    async def _stop(self) -> None:
        assignment, runner = self._assignment, self._runner
        async with AsyncExitStack() as at_last:
            # These run even if the steps below are cancelled.
            if self._is_own:
                at_last.push_async_callback(self.client.__aexit__, None, None, None)
            at_last.callback(self._stopped_now)
            at_last.push_async_callback(self.client.leave, self)
            at_last.push_async_callback(self._close_hooks)
            if assignment is None or runner is None:
                return
            at_last.push_async_callback(runner.close)
            at_last.push_async_callback(assignment.abandon)
            await assignment.stop_fetching()
            await runner.finish()
            await assignment.close()

    def _stopped_now(self) -> None:
        if self._threads is not None:
            self._threads.close()
        self._assignment = self._runner = self._threads = None
        if self._stopped is not None:
            self._stopped.set()

    @property
    def subscriptions(self) -> Sequence[TopicSubscription]:
        """The subscriptions of its handlers."""
        return list(self._subscriptions.values())

    async def wait(self) -> None:
        """Return once the consumer has stopped; for programs that only consume.

        Raises:
            UsageError: It was never started.
        """
        owner = self.client.session.owner
        await until_closed(self._stopped, owner, "this consumer is not running")

    # Queues and offsets

    @property
    def queues(self) -> list[Queue]:
        """The queues it consumes now."""
        return [] if self._assignment is None else sorted(self._assignment.fetchers)

    def positions(self) -> Mapping[Queue, QueueOffset]:
        """The consumed offset of each queue that it holds."""
        return {} if self._assignment is None else self._assignment.positions()

    @property
    def is_orderly(self) -> bool:
        """Whether it consumes each queue in order."""
        return self.settings.is_orderly

    async def commit(self) -> None:
        """Save the offsets now; failures are logged and retried with the next save.

        Raises:
            UsageError: The consumer is not running.
        """
        await self._running().save()

    async def handle(self, message: ReceivedMessage) -> object:
        """Call the handler with one message outside its queue, for an operator.

        Returns:
            The handler's :class:`Later`, or ``None`` if the message is consumed.

        Raises:
            UsageError: The topic has no handler here.
            Exception: Any error of the handler.
        """
        if message.topic == RETRY + self.group:
            message = as_sent(message)
        handler = self._handlers.get(message.topic)
        if handler is None:
            raise UsageError(f"topic {message.topic} has no handler here")
        verdict = await handler.call([message])
        return verdict if isinstance(verdict, Later) else None
