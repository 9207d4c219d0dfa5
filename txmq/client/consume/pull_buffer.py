"""Messages that were fetched and wait until the application polls."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from txmq.client.consume.fetcher import QueueFetcher
from txmq.message import Queue, ReceivedMessage

__all__ = ["PullBuffer"]


class PullBuffer:
    """Keeps messages by queue, and gives out some of one queue at a time, queues in turn.

    What was given out takes no more room in its queue's window. It keeps the place where the group
    stands, though, until :meth:`settle` says that it has been consumed.

    Args:
        batch_max: The most messages given out at once.
        may_give: Whether messages of a queue may be given out now.
    """

    def __init__(self, batch_max: int, may_give: Callable[[Queue], bool]) -> None:
        self._batch_max = batch_max
        self._may_give = may_give
        self._lines: dict[QueueFetcher, deque[ReceivedMessage]] = {}
        self._given: dict[QueueFetcher, None] = {}
        self._some: asyncio.Future[None] | None = None
        self.is_closed = False

    # What QueueAssignment asks

    async def may_hold(self, queue: Queue) -> bool:
        """Any queue may be begun with at any time."""
        del queue
        return True

    def deliver(self, fetcher: QueueFetcher, messages: Sequence[ReceivedMessage]) -> None:
        """Put messages at the end of their queue's line."""
        self._lines.setdefault(fetcher, deque()).extend(messages)
        self.look_again()

    async def let_go(self, fetcher: QueueFetcher) -> None:
        """Drop the queue's messages; its next consumer gets them again."""
        self.forget(fetcher)

    async def gone(self, queue: Queue) -> None:
        """Nothing is left to do."""

    # What the consumer asks

    def take(self) -> list[ReceivedMessage]:
        """The next messages of the queue whose turn it is; empty where nothing waits."""
        for fetcher in self._lines:
            if self._may_give(fetcher.queue):
                return self._take_from(fetcher)
        return []

    def _take_from(self, fetcher: QueueFetcher) -> list[ReceivedMessage]:
        line, window = self._lines.pop(fetcher), fetcher.window
        count = min(len(line), self._batch_max)
        messages = [line.popleft() for _ in range(count)]
        if line:
            self._lines[fetcher] = line  # Behind all others now.
        if window.kept is None:
            window.kept = window.reached
        self._given[fetcher] = None
        fetcher.end(messages)
        return messages

    async def wait(self) -> None:
        """Return once it is worth looking again whether there is something to take."""
        self._some = asyncio.get_running_loop().create_future()
        try:
            await self._some
        finally:
            self._some = None

    def look_again(self) -> None:
        """There may be something to take now."""
        if self._some is not None and not self._some.done():
            self._some.set_result(None)

    def close(self) -> None:
        """Give out nothing more."""
        self.is_closed = True
        self.look_again()

    def settle(self) -> None:
        """Everything that was given out has been consumed."""
        for fetcher in self._given:
            fetcher.window.kept = None
        self._given.clear()

    def forget(self, fetcher: QueueFetcher) -> None:
        """Forget what waits of a queue, and what was given out of it."""
        self._lines.pop(fetcher, None)
        self._given.pop(fetcher, None)

    @property
    def is_asked(self) -> bool:
        """Whether a caller waits for messages."""
        return self._some is not None
