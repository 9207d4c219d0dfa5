"""The object that receives messages from a queue assignment: workers, or the buffer of a poll."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from txmq.client.consume.fetcher import QueueFetcher
from txmq.message import Queue, ReceivedMessage

__all__ = ["MessageSink"]


class MessageSink(Protocol):
    """Receives the messages of the assigned queues."""

    async def may_hold(self, queue: Queue) -> bool:
        """Whether work on this queue may begin now; if not, the next round retries."""
        ...

    def deliver(self, fetcher: QueueFetcher, messages: Sequence[ReceivedMessage]) -> None:
        """Receive fetched messages."""
        ...

    async def let_go(self, fetcher: QueueFetcher) -> None:
        """Finish work on a queue that this consumer loses."""
        ...

    async def gone(self, queue: Queue) -> None:
        """Called when the queue's offset is saved; from now on another consumer may start it."""
        ...
