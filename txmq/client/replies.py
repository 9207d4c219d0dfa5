"""The table of request messages that wait for a reply."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from txmq.message import ReceivedMessage

__all__ = ["Replies"]


class Replies:
    """The awaited replies, by correlation id."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def expect(self, correlation: str) -> Iterator[asyncio.Future[ReceivedMessage]]:
        """Expect a reply while the block runs."""
        waiter: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation] = waiter
        try:
            yield waiter
        finally:
            del self._waiting[correlation]

    def came(self, correlation: str, reply: ReceivedMessage) -> bool:
        """Deliver a reply; true if a caller waited for it."""
        waiter = self._waiting.get(correlation)
        if waiter is None or waiter.done():
            return False
        waiter.set_result(reply)
        return True
