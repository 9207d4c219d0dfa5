"""The queues of a polled consumer; the application may choose the queues, and seek in them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from txmq.client.cluster_client import ClusterClient
from txmq.client.consume.assignment import MessageSink, QueueAssignment
from txmq.client.consume.fetcher import QueueFetcher
from txmq.client.consume.subscription import TopicSubscription
from txmq.client.settings import ConsumerSettings
from txmq.errors import UsageError
from txmq.message import Queue, QueueOffset, ReceivedMessage

__all__ = ["PullAssignment", "PullBuffer"]


class PullAssignment(QueueAssignment):
    """A queue assignment whose messages wait in a buffer until the caller polls."""

    def __init__(self, client: ClusterClient, group: str, settings: ConsumerSettings) -> None:
        self.buffer: PullBuffer = PullBuffer(settings.pull_batch, self.may_give)
        super().__init__(client, group, settings, self.buffer)
        self.assigned: list[Queue] | None = None
        """The assigned queues; ``None`` if the members of the group share the queues."""
        self._sought: dict[Queue, int] = {}

    @property
    def queues(self) -> list[Queue]:
        """The assigned queues, or else the held ones."""
        if self.assigned is not None:
            return self.assigned
        return sorted(queue for queue in self.fetchers if self._is_held(queue))

    def _is_held(self, queue: Queue) -> bool:
        return queue in self._running and not self.fetchers[queue].is_dropped

    async def share_of(self, topic: str) -> list[Queue]:
        """See :meth:`QueueAssignment.share_of`."""
        if self.assigned is None:
            return await super().share_of(topic)
        return [queue for queue in self.assigned if queue.topic == topic]

    async def assign(
        self, queues: Sequence[Queue], subscriptions: Mapping[str, TopicSubscription]
    ) -> None:
        """Assign exactly these queues."""
        self.assigned = sorted(set(queues))
        self.subscriptions: dict[str, TopicSubscription] = dict(subscriptions)
        self._sought = {q: at for q, at in self._sought.items() if q in self.assigned}
        # New queues start in the next round; the removed ones must stop now.
        self.rebalance_soon()
        await self._drop([queue for queue in self.fetchers if queue not in self.assigned])

    async def _begin(self, queue: Queue, subscription: TopicSubscription) -> bool:
        has_begun = await super()._begin(queue, subscription)
        if has_begun and queue in self._sought:
            self.go_on(queue, self._sought.pop(queue))
        return has_begun

    def go_on(self, queue: Queue, offset: int, *, is_told: bool = False) -> None:
        """Continue at another offset at once; drop the queue's fetched messages.

        Args:
            queue: The queue.
            offset: The offset of the next message.
            is_told: Whether the group's offset is already there, so that it need not wait for
                commit().

        Raises:
            UsageError: The offset is negative, or the queue is neither held nor assigned.
        """
        if offset < 0:
            raise UsageError(f"no queue has an offset {offset}")
        if not self._is_held(queue):
            if queue not in (self.assigned or ()):
                raise UsageError(f"queue {queue} is not held here")
            self._sought[queue] = offset
            return
        old = self.fetchers[queue]
        old.is_dropped = True
        self._running.pop(queue).cancel()
        self.buffer.forget(old)
        stood = old.window.safe_offset
        window = self._open(queue, old.subscription, offset).window
        if not (self.settings.commits_itself or is_told):
            window.kept = stood  # Until the application commits.

    async def move(self, offsets: Mapping[Queue, int]) -> None:
        """Move some of the held queues to other offsets, and save them."""
        for queue, offset in offsets.items():
            if self._is_held(queue):
                self.go_on(queue, offset, is_told=True)
        await self.save()

    def hold_back(self, queues: Sequence[Queue] | None, *, is_paused: bool) -> None:
        """See :meth:`QueueAssignment.hold_back`; also stops delivery from these queues."""
        super().hold_back(queues, is_paused=is_paused)
        self.buffer.look_again()

    def may_give(self, queue: Queue) -> bool:
        """Whether messages of a queue may be delivered now."""
        is_wanted = self.assigned is None or queue in self.assigned
        return is_wanted and not self._paused.get(queue, self._is_paused)

    def reached(self) -> dict[Queue, QueueOffset]:
        """The offset of the next message to deliver from each queue."""
        return {
            queue: fetcher.window.reached
            for queue, fetcher in self.fetchers.items()
            if self._is_held(queue)
        }


class PullBuffer(MessageSink):
    """Buffers messages by queue, and delivers from one queue at a time, in turn.

    A delivered message frees its room in the queue's window. The group's offset stays before it
    until :meth:`settle` marks it as consumed.

    Args:
        batch_max: The maximum number of messages delivered at once.
        may_give: Whether messages of a queue may be delivered now.
    """

    def __init__(self, batch_max: int, may_give: Callable[[Queue], bool]) -> None:
        self._batch_max = batch_max
        self._may_give = may_give
        self._lines: dict[QueueFetcher, deque[ReceivedMessage]] = {}
        self._given: dict[QueueFetcher, None] = {}
        self._some: asyncio.Future[None] | None = None
        self.is_closed: bool = False

    # Called by QueueAssignment

    def deliver(self, fetcher: QueueFetcher, messages: Sequence[ReceivedMessage]) -> None:
        """Append messages to their queue's line."""
        self._lines.setdefault(fetcher, deque()).extend(messages)
        self.look_again()

    async def let_go(self, fetcher: QueueFetcher) -> None:
        """Drop the queue's messages; its next consumer receives them again."""
        self.forget(fetcher)

    # Called by the consumer

    def take(self) -> list[ReceivedMessage]:
        """The next messages of the next queue in turn; empty if none wait."""
        for fetcher in self._lines:
            if self._may_give(fetcher.queue):
                return self._take_from(fetcher)
        return []

    def _take_from(self, fetcher: QueueFetcher) -> list[ReceivedMessage]:
        line, window = self._lines.pop(fetcher), fetcher.window
        count = min(len(line), self._batch_max)
        messages = [line.popleft() for _ in range(count)]
        if line:
            self._lines[fetcher] = line  # The queue is now last in turn.
        if window.kept is None:
            window.kept = window.reached
        self._given[fetcher] = None
        fetcher.end(messages)
        return messages

    async def wait(self) -> None:
        """Wait until there may be messages to deliver."""
        self._some = asyncio.get_running_loop().create_future()
        try:
            await self._some
        finally:
            self._some = None

    def look_again(self) -> None:
        """Wake the waiting callers: there may be messages to deliver."""
        if self._some is not None and not self._some.done():
            self._some.set_result(None)

    def close(self) -> None:
        """Stop delivering."""
        self.is_closed = True
        self.look_again()

    def settle(self) -> None:
        """Mark all delivered messages as consumed."""
        for fetcher in self._given:
            fetcher.window.kept = None
        self._given.clear()

    def forget(self, fetcher: QueueFetcher) -> None:
        """Forget a queue's buffered and delivered messages."""
        self._lines.pop(fetcher, None)
        self._given.pop(fetcher, None)

    @property
    def is_asked(self) -> bool:
        """Whether a caller waits for messages."""
        return self._some is not None
