"""What is under way, counted, so that a stop can wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Underway"]


class Underway:
    """How much is under way."""

    def __init__(self) -> None:
        self._count = 0
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def one(self) -> Iterator[None]:
        """One more, while inside."""
        self._count += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._idle.set()

    def until_done(self, task: asyncio.Task[Any]) -> None:
        """One more, until a task has ended."""
        counted = self.one()
        counted.__enter__()
        task.add_done_callback(lambda _: counted.__exit__(None, None, None))

    async def wait(self) -> None:
        """Return once nothing is."""
        await self._idle.wait()
