"""Rows that are published, until they are deleted."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from txmq.databases.failures import words
from txmq.outbox.lanes import Row
from txmq.outbox.ledger import Ledger
from txmq.runtime.backoff import Backoff

__all__ = ["Done", "Finishing"]

log = logging.getLogger(__name__)

REMOVED_TOGETHER: Final = 2_000
LINGER_S: Final = 0.01
"""Nobody waits for a row to be deleted, and one commit is cheaper than ten."""


class Done:
    """Which these are."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._of_slot: Counter[int] = Counter()
        self.gone: set[int] = set()
        """Those that were deleted while somebody was reading, who may have seen them before."""

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, row_id: int) -> bool:
        return row_id in self._slots or row_id in self.gone

    def add(self, rows: Iterable[Row]) -> None:
        """They are published."""
        for each in rows:
            if each.id not in self._slots:
                self._slots[each.id] = each.slot
                self._of_slot[each.slot] += 1

    def some(self) -> list[int]:
        """Those to be deleted next."""
        return list(islice(self._slots, REMOVED_TOGETHER))

    def drop(self, ids: Iterable[int]) -> None:
        """They are deleted, or not ours to delete."""
        for each in ids:
            self._of_slot[self._slots.pop(each)] -= 1
            self.gone.add(each)

    def between(self, low: int, high: int) -> list[int]:
        """Their ids in a stretch."""
        return [each for each in self._slots if low < each <= high]

    def is_clear(self, slot: int) -> bool:
        """Whether there are none of a slot."""
        return not self._of_slot[slot]


class Finishing:
    """Deletes them.

    Args:
        done: What.
        ledger: Where.
        backoff: How long to wait where that fails.
        missed: Called where rows were not there any more, or not ours.
    """

    def __init__(
        self, done: Done, ledger: Ledger, backoff: Backoff, missed: Callable[[], None]
    ) -> None:
        self._done = done
        self._ledger = ledger
        self._backoff = backoff
        self._missed = missed
        self._wanted = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, rows: Iterable[Row]) -> None:
        """They are published."""
        self._done.add(rows)
        self._idle.clear()
        self._wanted.set()

    async def wait(self) -> None:
        """Until nothing is left to be deleted."""
        await self._idle.wait()

    async def run(self) -> None:
        """Delete for ever."""
        while True:
            await self._wanted.wait()
            await asyncio.sleep(LINGER_S)
            ids = self._done.some()
            try:
                removed = await self._ledger.remove(ids)
            except self._ledger.problems as problem:
                log.warning("what is published stays in the outbox for now: %s", words(problem))
                await asyncio.sleep(self._backoff.next_pause())
                continue
            self._backoff.reset()
            self._done.drop(ids)
            if removed < len(ids):
                self._missed()
            if not self._done:
                self._wanted.clear()
                self._idle.set()
