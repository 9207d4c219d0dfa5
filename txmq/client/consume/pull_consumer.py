"""A consumer that the application polls for messages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Final, Self

from msgspec.structs import replace

from txmq.client.cluster_client import ClusterClient
from txmq.client.consume.group_consumer import GroupConsumer
from txmq.client.consume.pull_assignment import PullAssignment
from txmq.client.consume.subscription import ANY_TAG, TopicSubscription, check_dead_letters
from txmq.client.names import check_name
from txmq.client.settings import ConsumerSettings
from txmq.client.values import PulledBatch
from txmq.errors import RequestNotSupported, UsageError
from txmq.limits import FETCHED_MESSAGES_MAX, PULL_MESSAGES_MAX
from txmq.message import Queue, QueueOffset, ReceivedMessage
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network
from txmq.settings.units import DurationLike, seconds

__all__ = ["PullConsumer"]

POLL_S: Final = 5.0
"""How long a poll waits by default, as in stock clients."""


class PullConsumer(GroupConsumer[PullAssignment]):
    """A member of a consumer group that you poll for messages; ``async with`` starts and stops it.

    ::

        consumer = PullConsumer("billing", "127.0.0.1:9876")
        consumer.subscribe("Orders", tags="Paid")
        async with consumer:
            async for messages in consumer:
                ...

    Messages are prefetched and delivered in lists; each list holds messages of one queue, in order.
    The next poll marks the previous list as consumed. If you stop polling after a list, call
    :meth:`commit`, or you will receive that list again. With ``settings.commits_itself=False``,
    only :meth:`commit` marks messages as consumed. Only one task may poll at a time.

    Queues are shared with the other members of the group (:meth:`subscribe`) or chosen
    (:meth:`assign`). A consumer may also do neither: :meth:`pull` fetches once, from any queue, and
    :meth:`note_offset` stores the group's offset. A consumer that does not share queues needs a
    separate group, because sharing members would count it as one of them.

    Args:
        group: The group. All its members have the same subscriptions.
        names: The name servers, or a client to share.
        settings: How it consumes.
        network: Opens streams; a shared client has its own.
        clock: Gives the time; a shared client has its own.
        entropy: Gives randomness; a shared client has its own.

    Raises:
        LocalProtocolError: The group name is invalid.
        LimitExceeded: The name is too long.
        ConfigError: ``names`` names no server.
    """

    _consume_type = "CONSUME_ACTIVELY"

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
        self._assigned: list[Queue] | None = None
        self._chosen: dict[str, TopicSubscription] = {}
        self._noted: dict[Queue, QueueOffset] = {}
        self._was_running = False
        self._closing = AsyncExitStack()

    # Queues

    def subscribe(self, topic: str, tags: str = ANY_TAG, *, sql: str = "") -> None:
        """Subscribe to a topic, and share its queues with the group.

        Args:
            topic: The topic.
            tags: The wanted tags, separated by ``||``.
            sql: Instead of tags, a condition on the messages' properties. Brokers parse it when the
                consumer starts, which raises :class:`txmq.errors.SubscriptionInvalid` if it does
                not parse, and :class:`txmq.errors.FilterUnsupported` if a broker does not support
                conditions.

        Raises:
            UsageError: The consumer is running, has queues assigned, or its settings exclude dead
                letters.
            LocalProtocolError: The topic's name is invalid, or the expression does not parse.
        """
        check_name("topic", topic)
        check_dead_letters(topic, self.settings)
        wanted = TopicSubscription(topic, tags, sql)
        if self._assignment is not None:
            raise UsageError("subscribe to topics before the consumer starts")
        if self._assigned is not None:
            raise UsageError("a consumer shares queues or has them assigned, not both")
        self._subscriptions[topic] = wanted

    async def assign(self, queues: Sequence[Queue], tags: str = ANY_TAG, *, sql: str = "") -> None:
        """Read exactly these queues, even if other consumers read them too; works at any time.

        Queues that stay assigned continue where they are. The others are released and their offsets
        saved.

        Args:
            queues: The queues.
            tags: The wanted tags, separated by ``||``.
            sql: Instead of tags, a condition on the messages' properties.

        Raises:
            UsageError: The consumer subscribes to topics, or its settings exclude dead letters.
            LocalProtocolError: The expression does not parse.
            SubscriptionInvalid: A condition does not parse. Brokers check it now if the consumer is
                running, otherwise when it starts.
            FilterUnsupported: A broker does not support conditions.
        """
        if self._subscriptions:
            raise UsageError("a consumer shares queues or has them assigned, not both")
        topics = sorted({queue.topic for queue in queues})
        for topic in topics:
            check_dead_letters(topic, self.settings)
        chosen = {topic: TopicSubscription(topic, tags, sql) for topic in topics}
        if sql and self._assignment is not None:
            await self._subscription_checks.check(chosen.values())
        self._chosen = chosen
        self._assigned = list(queues)
        if self._assignment is not None:
            await self._assignment.assign(self._assigned, self._chosen)

    @property
    def queues(self) -> list[Queue]:
        """The queues it consumes now."""
        return [] if self._assignment is None else list(self._assignment.queues)

    async def queues_of(self, topic: str) -> list[Queue]:
        """All readable queues of a topic.

        Raises:
            UsageError: The consumer is not running, or the settings exclude dead letters.
            TopicNotFound: No broker has it.
            TransportError: No name server answers.
        """
        check_dead_letters(topic, self.settings)
        return sorted((await self.client.session.route(topic)).queues_to_read)

    # Start and stop

    async def __aenter__(self) -> Self:
        if self._assignment is not None:
            self.client.session.owner.check()
            raise UsageError("this consumer is running already")
        async with AsyncExitStack() as stack:
            if self._is_own:
                await stack.enter_async_context(self.client)
            self._version = self.client.session.clock.wall_ms()
            wanted = self._subscriptions or self._chosen
            await self._subscription_checks.check(wanted.values())
            await self._subscription_checks.look(self._subscriptions)
            await self.client.join(self)
            stack.push_async_callback(self.client.leave, self)
            self._assignment = assignment = self._held()
            stack.callback(self._forget)
            if assignment.assigned is None:
                await assignment.settle_beginnings()
            assignment.open()
            stack.push_async_callback(assignment.abandon)
            stack.push_async_callback(assignment.close)
            self._was_running = True
            self._closing = stack.pop_all()
        return self

    def _held(self) -> PullAssignment:
        settings = self.settings
        all_max = settings.all_cached_max or FETCHED_MESSAGES_MAX
        # Delivered in order, so the span between messages does not limit fetching.
        settings = replace(settings, all_cached_max=all_max, is_orderly=True)
        assignment = PullAssignment(self.client, self.group, settings)
        assignment.subscriptions = dict(self._subscriptions or self._chosen)
        if self._assigned is not None:
            assignment.assigned = sorted(set(self._assigned))
        return assignment

    def _forget(self) -> None:
        self._assignment = None
        self._noted.clear()

    async def __aexit__(self, *ending: object) -> None:
        if not self.client.session.owner.is_current:
            return
        self.end()
        await self._closing.aclose()

    def end(self) -> None:
        """Stop delivering: iterations end, and a waiting poll returns an empty list.

        The last list of an ended iteration counts as consumed. Messages that were fetched but not
        delivered go to the next holder of the queues. :meth:`stop` calls this first.
        """
        if self._assignment is not None:
            self._assignment.buffer.close()

    @property
    def is_running(self) -> bool:
        """Whether it may be polled."""
        return self._assignment is not None and not self._assignment.buffer.is_closed

    # Polling

    async def poll(self, timeout: DurationLike = POLL_S) -> list[ReceivedMessage]:
        """The next messages: up to ``settings.pull_batch``, all from one queue.

        Returns:
            The messages; empty if none came in time.

        Raises:
            UsageError: The consumer is not running, or another call polls it.
        """
        assignment = self._running()
        if assignment.buffer.is_closed:
            raise UsageError("this consumer has been stopped")
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds("timeout", timeout)):
                return await self._next(assignment)
        return []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[ReceivedMessage]:
        if self._assignment is None and self._was_running:
            raise StopAsyncIteration
        messages = await self._next(self._running())
        if not messages:
            raise StopAsyncIteration
        return messages

    async def _next(self, assignment: PullAssignment) -> list[ReceivedMessage]:
        buffer = assignment.buffer
        if buffer.is_asked:
            raise UsageError("another call polls this consumer already")
        if self.settings.commits_itself:
            buffer.settle()
        while not buffer.is_closed:
            messages = buffer.take()
            if messages:
                if (telemetry := self.client.settings.telemetry) is not None:
                    telemetry.metrics.count_polled(self.group, messages)
                return messages
            await buffer.wait()
        return []

    async def commit(self) -> None:
        """Mark all delivered messages as consumed, and save the offsets now.

        Messages of queues that this member has lost are delivered again, to the next consumer.

        Raises:
            UsageError: The consumer is not running.
            TransportError: The offsets could not be saved; the consumer retries every
                ``settings.commit_interval``.
            BrokerRefused: Likewise.
            WriteFailed: Likewise, for a broadcast consumer.
        """
        assignment = self._running()
        assignment.buffer.settle()
        error = await assignment.save()
        if error is not None:
            raise error

    # Seeking

    async def seek(self, queue: Queue, offset: int) -> None:
        """Continue at another offset of a queue, or at the nearest existing one.

        Messages already delivered from the queue no longer count as consumed.

        Raises:
            UsageError: The queue is not held here, or no queue has such an offset.
        """
        self._running().go_on(queue, offset)

    async def seek_to_begin(self, queue: Queue) -> None:
        """Continue at the oldest message.

        Raises:
            UsageError: The queue is not held here.
            TransportError: No answer came.
            BrokerRefused: The broker refuses.
        """
        self._running()
        await self.seek(queue, await self.client.admin.min_offset(queue))

    async def seek_to_end(self, queue: Queue) -> None:
        """Continue with messages stored from now on.

        Raises:
            UsageError: The queue is not held here.
            TransportError: No answer came.
            BrokerRefused: The broker refuses.
        """
        self._running()
        await self.seek(queue, await self.client.admin.max_offset(queue))

    async def seek_to_time(self, queue: Queue, time_ms: int) -> None:
        """Continue with messages stored at a time or later.

        Raises:
            UsageError: The queue is not held here.
            TransportError: No answer came.
            BrokerRefused: The broker refuses.
        """
        self._running()
        await self.seek(queue, await self.client.admin.offset_by_time(queue, time_ms))

    def positions(self) -> Mapping[Queue, QueueOffset]:
        """The offset of the next message to deliver from each held queue."""
        return {} if self._assignment is None else self._assignment.reached()

    # Single pulls

    async def pull(
        self,
        queue: Queue,
        offset: int,
        count: int = PULL_MESSAGES_MAX,
        *,
        tags: str = ANY_TAG,
        hold: DurationLike = 0.0,
    ) -> PulledBatch:
        """Fetch messages of any queue once, starting at an offset.

        Args:
            queue: The queue.
            offset: The offset of the first message.
            count: The maximum number of messages; a broker may return fewer.
            tags: The wanted tags, separated by ``||``.
            hold: How long the broker waits for messages if the queue has none.

        Raises:
            UsageError: The consumer is not running, or its settings exclude dead letters.
            TopicNotFound: The topic does not exist, or not on this broker.
            TransportError: No answer came.
            BrokerRefused: The broker refused for a reason other than having no messages.
            RemoteProtocolError: The answer is not a valid batch of messages.
        """
        self._running()
        check_dead_letters(queue.topic, self.settings)
        admin = self.client.admin
        return await admin.pull(queue, offset, count, self.group, hold=hold, tags=tags)

    async def committed(self, queue: Queue) -> QueueOffset | None:
        """The group's offset in a queue: as noted here, or else as saved.

        Returns:
            The offset, or ``None`` if the group never committed one. Before version 5, RocketMQ
            returns 0 instead of "never" for a queue that still has its first message.

        Raises:
            UsageError: The consumer is not running.
            TransportError: No answer came.
            BrokerRefused: The broker refuses.
        """
        assignment = self._running()
        noted = self._noted.get(queue)
        return await assignment.offsets.load(queue) if noted is None else noted

    def note_offset(self, queue: Queue, offset: int) -> None:
        """Note the group's next offset in a queue; saved every ``settings.commit_interval``.

        Raises:
            UsageError: The consumer is not running, or holds the queue and notes its offset by
                itself.
        """
        assignment = self._running()
        if queue in assignment.queues or queue in assignment.fetchers:
            raise UsageError(f"the consumer notes the offset of {queue} by itself; use seek()")
        self._noted[queue] = QueueOffset(offset)
        assignment.offsets.note(queue, QueueOffset(offset))

    # Called by the client and brokers

    @property
    def is_orderly(self) -> bool:
        """Always false: it never locks queues."""
        return False

    async def handle(self, message: ReceivedMessage) -> object:
        """Refuse: a pull consumer has no handler.

        Raises:
            RequestNotSupported: Always.
        """
        raise RequestNotSupported(
            f"{self.group} is asked for messages and cannot be given {message.id}"
        )
