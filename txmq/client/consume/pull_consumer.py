"""A consumer that is asked for messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from txmq.client.cluster_client import ClusterClient, client_of
from txmq.client.consume.agreement import Agreement
from txmq.client.consume.pull_assignment import PullAssignment
from txmq.client.consume.subscription import ANY_TAG, TopicSubscription
from txmq.client.lifecycle import Lifecycle
from txmq.client.names import check_name
from txmq.client.settings import ConsumerSettings, settings_or
from txmq.client.values import PulledBatch
from txmq.errors import RequestNotSupported, TxmqError, UsageError
from txmq.limits import FETCHED_MESSAGES_MAX, GROUP_CHARS_MAX, PULL_MESSAGES_MAX
from txmq.message import Queue, QueueOffset, ReceivedMessage
from txmq.protocol import bodies
from txmq.protocol.bodies import ConsumerRegistration, HeldQueue
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network

__all__ = ["PullConsumer"]

ACTIVELY: Final = "CONSUME_ACTIVELY"

POLL_S: Final = 5.0
"""How long a poll waits by default, as in stock clients."""


class PullConsumer(Lifecycle):
    """A member of a consumer group that is asked for messages; ``async with`` starts and stops it.

    ::

        consumer = PullConsumer("billing", "127.0.0.1:9876")
        consumer.subscribe("Orders", tags="Paid")
        async with consumer:
            async for messages in consumer:
                ...

    Messages are fetched ahead and given out in lists, each of one queue and in its order. What was
    given out counts as consumed once more is asked for. A caller that leaves after the last list
    without asking again calls :meth:`commit`, or receives that list again. With
    ``settings.commits_itself=False`` only :meth:`commit` counts. One task at a time asks.

    Queues are shared with the other members of the group (:meth:`subscribe`), or chosen
    (:meth:`assign`), or neither: :meth:`pull` fetches once, from anywhere, and
    :meth:`note_offset` keeps how far the group has come. A consumer that shares no queues needs a
    group of its own: members that share would leave it a part.

    Args:
        group: The group. All its members have the same subscriptions.
        names: The name servers, or a client to share.
        settings: How it consumes.
        network: Where streams come from, unless a client is shared.
        clock: Where the time comes from, likewise.
        entropy: Where chance comes from, likewise.

    Raises:
        LocalProtocolError: It is no name for a group.
        LimitExceeded: The name is too long.
        ConfigError: ``names`` names no server.
    """

    def __init__(
        self,
        group: str,
        names: str | ClusterClient,
        settings: ConsumerSettings | None = None,
        network: Network | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        check_name("group", group, GROUP_CHARS_MAX)
        self.group = group
        self.settings = settings_or(ConsumerSettings, settings)
        self.client, self._is_own = client_of(names, network, clock, entropy)
        self._agreement = Agreement(self.client, group)
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._assigned: list[Queue] | None = None
        self._chosen: dict[str, TopicSubscription] = {}
        self._noted: dict[Queue, QueueOffset] = {}
        self._version = 0
        self._was_running = False
        self._assignment: PullAssignment | None = None
        self._closing = AsyncExitStack()

    # Which queues

    def subscribe(self, topic: str, tags: str = ANY_TAG, *, sql: str = "") -> None:
        """Want the messages of a topic, and share its queues with the group.

        Args:
            topic: The topic.
            tags: The tags wanted, separated by ``||``.
            sql: Instead of tags, a condition on the messages' properties. Brokers read it when the
                consumer starts: that raises :class:`txmq.errors.SubscriptionInvalid` if it does not
                parse, and :class:`txmq.errors.FilterUnsupported` if they take no conditions.

        Raises:
            UsageError: The consumer is running, or has queues assigned.
            LocalProtocolError: The topic's name is invalid, or the expression does not parse.
        """
        check_name("topic", topic)
        wanted = TopicSubscription(topic, tags, sql)
        if self._assignment is not None:
            raise UsageError("topics are subscribed to before a consumer starts")
        if self._assigned is not None:
            raise UsageError("a consumer shares queues or has them assigned, not both")
        self._subscriptions[topic] = wanted

    async def assign(self, queues: Sequence[Queue], tags: str = ANY_TAG, *, sql: str = "") -> None:
        """Read exactly these queues, even if other consumers read them too; at any time.

        Queues that are kept go on where they are. The others are let go, and how far they were
        consumed is saved.

        Args:
            queues: The queues.
            tags: The tags wanted, separated by ``||``.
            sql: Instead of tags, a condition on the messages' properties.

        Raises:
            UsageError: The consumer subscribes to topics.
            LocalProtocolError: The expression does not parse.
            SubscriptionInvalid: The same, of a condition, which a running consumer has brokers
                read; one that is not running does so when it is started.
            FilterUnsupported: A broker takes no conditions.
        """
        if self._subscriptions:
            raise UsageError("a consumer shares queues or has them assigned, not both")
        topics = sorted({queue.topic for queue in queues})
        chosen = {topic: TopicSubscription(topic, tags, sql) for topic in topics}
        if sql and self._assignment is not None:
            await self._find_brokers(chosen)
            await self._agreement.check(chosen.values())
        self._chosen = chosen
        self._assigned = list(queues)
        if self._assignment is not None:
            await self._assignment.assign(self._assigned, self._chosen)

    @property
    def queues(self) -> list[Queue]:
        """The queues it has now."""
        return [] if self._assignment is None else list(self._assignment.queues)

    async def queues_of(self, topic: str) -> list[Queue]:
        """All queues of a topic that can be read.

        Raises:
            UsageError: The consumer is not running.
            TopicNotFound: No broker has it.
            TransportError: No name server answers.
        """
        return sorted((await self.client.session.route(topic)).readable)

    # Life

    async def __aenter__(self) -> Self:
        if self._assignment is not None:
            self.client.session.owner.check()
            raise UsageError("this consumer is running already")
        async with AsyncExitStack() as stack:
            if self._is_own:
                await stack.enter_async_context(self.client)
            self._version = self.client.session.clock.wall_ms()
            wanted = self._subscriptions or self._chosen
            await self._find_brokers(wanted)
            await self._agreement.check(wanted.values())
            await self._agreement.look(self._subscriptions)
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
        # Given out in order, so that the span between messages says nothing.
        settings = replace(settings, all_cached_max=all_max, is_orderly=True)
        assignment = PullAssignment(self.client, self.group, settings)
        assignment.subscriptions = dict(self._subscriptions or self._chosen)
        if self._assigned is not None:
            assignment.assigned = sorted(set(self._assigned))
        return assignment

    async def _find_brokers(self, topics: Iterable[str]) -> None:
        # Brokers must know of us before we ask them who shares the queues.
        for topic in topics:
            # Asked again in every round: a topic may come into being later.
            with suppress(TxmqError):
                await self.client.session.route(topic)

    def _forget(self) -> None:
        self._assignment = None
        self._noted.clear()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.client.session.owner.is_current:
            return
        self.end()
        await self._closing.aclose()

    def end(self) -> None:
        """Give out nothing more: an iteration ends, a poll that waits returns nothing.

        An iteration that ends has consumed what it was given. What was fetched and not given out is
        left to the next holder of the queues. :meth:`stop` does this first.
        """
        if self._assignment is not None:
            self._assignment.buffer.close()

    @property
    def is_running(self) -> bool:
        """Whether it may be asked for messages."""
        return self._assignment is not None and not self._assignment.buffer.is_closed

    def _running(self) -> PullAssignment:
        if self._assignment is None:
            raise UsageError(
                "this consumer is not running; use it with 'async with', or await its start()"
            )
        self.client.session.owner.check()
        return self._assignment

    # Asking for messages

    async def poll(self, timeout_s: float = POLL_S) -> list[ReceivedMessage]:
        """The next messages, at most ``settings.pull_batch`` and all of one queue.

        Returns:
            The messages; none where none came in time.

        Raises:
            UsageError: The consumer is not running, or another call polls it.
        """
        assignment = self._running()
        if assignment.buffer.is_closed:
            raise UsageError("this consumer has been stopped")
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
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
                return messages
            await buffer.wait()
        return []

    async def commit(self) -> None:
        """Take everything that was given out for consumed, and save that now.

        Messages of queues that were lost meanwhile come again, to the next consumer.

        Raises:
            UsageError: The consumer is not running.
            TransportError: It could not be saved; it is tried again every ``settings.commit_s``.
            BrokerRefused: Likewise.
            WriteFailed: Likewise, of a broadcast consumer.
        """
        assignment = self._running()
        assignment.buffer.settle()
        error = await assignment.save()
        if error is not None:
            raise error

    # Going elsewhere

    async def seek(self, queue: Queue, offset: int) -> None:
        """Go on elsewhere in a queue; where it has no such offset, at the nearest it has.

        What was given out of the queue before is not counted as consumed any more.

        Raises:
            UsageError: The queue is not held here, or no queue has such an offset.
        """
        self._running().go_on(queue, offset)

    async def seek_to_begin(self, queue: Queue) -> None:
        """Go on with the oldest message.

        Raises:
            UsageError: The queue is not held here.
            TransportError: No answer came.
            BrokerRefused: The broker refuses.
        """
        self._running()
        await self.seek(queue, await self.client.admin.min_offset(queue))

    async def seek_to_end(self, queue: Queue) -> None:
        """Go on with what is stored from now on.

        Raises:
            UsageError: The queue is not held here.
            TransportError: No answer came.
            BrokerRefused: The broker refuses.
        """
        self._running()
        await self.seek(queue, await self.client.admin.max_offset(queue))

    async def seek_to_time(self, queue: Queue, time_ms: int) -> None:
        """Go on with what was stored at a time or later.

        Raises:
            UsageError: The queue is not held here.
            TransportError: No answer came.
            BrokerRefused: The broker refuses.
        """
        self._running()
        await self.seek(queue, await self.client.admin.offset_by_time(queue, time_ms))

    def pause(self, queues: Sequence[Queue] | None = None) -> None:
        """Give out and fetch nothing for now, of some queues, or of all and those to come."""
        if self._assignment is not None:
            self._assignment.hold_back(queues, is_paused=True)

    def resume(self, queues: Sequence[Queue] | None = None) -> None:
        """Give out and fetch again."""
        if self._assignment is not None:
            self._assignment.hold_back(queues, is_paused=False)

    def positions(self) -> Mapping[Queue, QueueOffset]:
        """The next message that is given out of each queue it holds."""
        return {} if self._assignment is None else self._assignment.reached()

    # Single pulls

    async def pull(
        self,
        queue: Queue,
        offset: int,
        count: int = PULL_MESSAGES_MAX,
        *,
        tags: str = ANY_TAG,
        hold_s: float = 0.0,
    ) -> PulledBatch:
        """Fetch messages of any queue once, from an offset on.

        Args:
            queue: The queue.
            offset: The first message wanted.
            count: The most messages wanted; a broker may give fewer.
            tags: The tags wanted, separated by ``||``.
            hold_s: How long the broker shall wait for messages where there are none.

        Raises:
            UsageError: The consumer is not running.
            TopicNotFound: The topic, or this broker's part of it, is unknown.
            TransportError: No answer came.
            BrokerRefused: The broker refused for another reason than that it has no messages.
            RemoteProtocolError: What came is not what a broker stores.
        """
        self._running()
        hold_ms = int(hold_s * 1000)
        return await self.client.admin.pull(queue, offset, count, self.group, hold_ms, tags=tags)

    async def committed(self, queue: Queue) -> QueueOffset | None:
        """The next message that the group wants of a queue: as noted here, or else as it is saved.

        Returns:
            The offset; ``None`` where the group never said. RocketMQ before version 5 says 0
            instead of "never", on a queue that still has its first message.

        Raises:
            UsageError: The consumer is not running.
            TransportError: No answer came.
            BrokerRefused: The broker refuses.
        """
        assignment = self._running()
        noted = self._noted.get(queue)
        return await assignment.offsets.load(queue) if noted is None else noted

    def note_offset(self, queue: Queue, offset: int) -> None:
        """Say which message the group wants next of a queue; saved every ``settings.commit_s``.

        Raises:
            UsageError: The consumer is not running, or has the queue and notes by itself.
        """
        assignment = self._running()
        if queue in assignment.queues or queue in assignment.fetchers:
            raise UsageError(f"how far {queue} is consumed is noted by itself; use seek()")
        self._noted[queue] = QueueOffset(offset)
        assignment.offsets.note(queue, QueueOffset(offset))

    # What Client and brokers ask

    def registration(self) -> ConsumerRegistration:
        """What it registers with brokers."""
        return ConsumerRegistration(
            self.group,
            ACTIVELY,
            "BROADCASTING" if self.settings.is_broadcast else "CLUSTERING",
            self.settings.start.value,
            self.subscribed(),
        )

    def rebalance_soon(self) -> None:
        """Look again which queues are ours."""
        if self._assignment is not None:
            self._assignment.rebalance_soon()
            work = self._agreement.look(self._subscriptions)
            self.client.tasks.start(work, f"a look at group {self.group}")

    @property
    def is_orderly(self) -> bool:
        """Whether it locks queues, which it never does."""
        return False

    def subscribed(self) -> list[bodies.SubscriptionData]:
        """Its subscriptions, as brokers register them."""
        return [
            subscription.registration(self._version)
            for subscription in self._subscriptions.values()
        ]

    def held(self) -> dict[Queue, HeldQueue]:
        """The queues that it holds, as operators see them."""
        return {} if self._assignment is None else self._assignment.shown()

    async def move(self, offsets: Mapping[Queue, int]) -> None:
        """Go on elsewhere in queues that it holds; brokers ask for it when offsets are reset."""
        if self._assignment is not None:
            await self._assignment.move(offsets)

    async def handle(self, message: ReceivedMessage) -> object:
        """Nothing handles single messages here.

        Raises:
            RequestNotSupported: Always.
        """
        raise RequestNotSupported(
            f"{self.group} is asked for messages and cannot be given {message.id}"
        )
