"""The buffer of fetched messages that wait until the application polls."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from txmq.client.consume.fetcher import QueueFetcher
from txmq.message import Queue, ReceivedMessage

__all__ = ["PullBuffer"]


class PullBuffer:
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

    async def may_hold(self, queue: Queue) -> bool:
        """Always true: any queue may start at any time."""
        del queue
        return True

    def deliver(self, fetcher: QueueFetcher, messages: Sequence[ReceivedMessage]) -> None:
        """Append messages to their queue's line."""
        self._lines.setdefault(fetcher, deque()).extend(messages)
        self.look_again()

    async def let_go(self, fetcher: QueueFetcher) -> None:
        """Drop the queue's messages; its next consumer receives them again."""
        self.forget(fetcher)

    async def gone(self, queue: Queue) -> None:
        """Do nothing."""

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
            self._lines[fetcher] = line  # The queue is last in turn now.
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
