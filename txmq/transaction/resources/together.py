"""Checks of one database that wait at the same time are settled together.

One that comes alone is settled alone and at once; nothing ever waits for company. Where as many
database transactions are under way as there may be, those that come meanwhile share the next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from txmq.limits import FENCE_CHECKS_TOGETHER, RESOURCE_THREADS
from txmq.runtime.tasks import Tasks
from txmq.transaction.resources.steps import Claim, FenceRow

__all__ = ["Together"]

Settle: TypeAlias = Callable[[list[Claim]], Coroutine[Any, Any, list[FenceRow | Exception]]]


class Together:
    """Who asks what became of a transaction, by the loop in which it is asked.

    Args:
        settle: Settles some of them in one database transaction.
    """

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        # Several managers in threads of their own may have the same resource.
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _CheckQueue] = WeakKeyDictionary()

    async def ask(self, theirs: Claim) -> FenceRow:
        """What is in the fence of a transaction now, and stays.

        It is settled even if the caller is cancelled meanwhile.

        Raises:
            Exception: Why it is not known now.
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
        return  # Its caller no longer waits.
    if isinstance(found, Exception):
        answer.set_exception(found)
    else:
        answer.set_result(found)
