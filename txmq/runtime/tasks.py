"""Tasks with an owner: started here, ended here, and none of them fails unheard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

__all__ = ["Tasks"]

log = logging.getLogger(__name__)


class Tasks:
    """What one owner has running beside its callers."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Any], None] = {}

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run something until it ends or :meth:`stop` ends it; what it fails with is logged."""
        task = asyncio.create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)

    async def stop(self) -> None:
        """End everything that runs, and return once it has ended."""
        while self._running:
            tasks = list(self._running)
            for task in tasks:
                task.cancel()
            # Not gathered: a caller that is cancelled here must find the rest still ours.
            await asyncio.wait(tasks)
