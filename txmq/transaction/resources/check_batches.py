"""Batch concurrent checks of one database.

A single check is settled at once; it never waits for others. While the maximum number of database
transactions is running, new checks gather and share the next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from txmq.limits import FENCE_CHECKS_TOGETHER, RESOURCE_THREADS
from txmq.runtime.tasks import Tasks
from txmq.transaction.resources.local import Claim, FenceRow

__all__ = ["CheckBatches"]

Settle: TypeAlias = Callable[[list[Claim]], Coroutine[Any, Any, list[FenceRow | Exception]]]


class CheckBatches:
    """The waiting checks, by event loop.

    Args:
        settle: Settles several checks in one database transaction.
    """

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        # Several managers in different threads may share the resource.
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _CheckQueue] = WeakKeyDictionary()

    async def settle(self, theirs: Claim) -> FenceRow:
        """Settle a transaction and return its final row in the fence.

        It is settled even if the caller is cancelled.

        Raises:
            Exception: The reason why the row is not known now.
        """
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            line = self._lines[loop] = _CheckQueue(self._settle)
        answer: asyncio.Future[FenceRow] = loop.create_future()
        line.add(theirs, answer)
        return await answer


class _CheckQueue:
    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        self._waiting: deque[tuple[Claim, asyncio.Future[FenceRow]]] = deque()
        self._tasks = Tasks()

    def add(self, theirs: Claim, answer: asyncio.Future[FenceRow]) -> None:
        self._waiting.append((theirs, answer))
        if len(self._tasks) < RESOURCE_THREADS:
            self._tasks.start(self._work(), "checks of a fence")

    async def _work(self) -> None:
        while self._waiting:
            count = min(len(self._waiting), FENCE_CHECKS_TOGETHER)
            some = [self._waiting.popleft() for _ in range(count)]
            found: list[FenceRow | Exception]
            try:
                found = await self._settle([theirs for theirs, _ in some])
            except Exception as error:  # noqa: BLE001 - all callers receive it
                found = [error] * count
            except BaseException:
                for _, answer in some:
                    answer.cancel()
                raise
            for (_, answer), row in zip(some, found, strict=True):
                _resolve(answer, row)


def _resolve(answer: asyncio.Future[FenceRow], found: FenceRow | Exception) -> None:
    if answer.done():
        return  # The caller was cancelled.
    if isinstance(found, Exception):
        answer.set_exception(found)
    else:
        answer.set_result(found)
