"""What is under way, counted, so that a stop can wait for it."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["Underway"]


class Underway:
    """How much is under way: ``with`` counts one more, while inside."""

    def __init__(self) -> None:
        self._count = 0
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return self._count

    def __enter__(self) -> None:
        self._count += 1
        if self._count == 1:
            self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._idle.set()

    def until_done(self, task: asyncio.Task[Any]) -> None:
        """One more, until a task has ended."""
        self.__enter__()
        task.add_done_callback(self.__exit__)

    async def wait(self) -> None:
        """Return once nothing is."""
        await self._idle.wait()
