"""Whoever works on messages, as :class:`~txmq.client.consume.assignment.Holdings` sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from txmq.client.consume.fetcher import QueueFetcher
from txmq.message import Queue, ReceivedMessage

__all__ = ["MessageSink"]


class MessageSink(Protocol):
    """Whoever works on the messages of the queues that are held."""

    async def may_hold(self, queue: Queue) -> bool:
        """Whether the queue may be begun with now; asked again in the next round where not."""
        ...

    def deliver(self, intake: QueueFetcher, messages: Sequence[ReceivedMessage]) -> None:
        """Messages have come."""
        ...

    async def let_go(self, intake: QueueFetcher) -> None:
        """The queue is lost: finish with it, as far as that is asked for."""
        ...

    async def gone(self, queue: Queue) -> None:
        """Its offset is saved; from now on it may be somebody else's."""
        ...
