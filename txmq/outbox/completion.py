"""Published rows, until they are deleted."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from txmq.databases.failures import words
from txmq.outbox.lanes import OutboxRow
from txmq.outbox.store import OutboxStore
from txmq.runtime.backoff import Backoff

__all__ = ["PublishedRows", "RowRemover"]

log = logging.getLogger(__name__)

REMOVED_TOGETHER: Final = 2_000
LINGER_S: Final = 0.01
"""Deletes wait this long to share a commit: no caller waits for them."""


class PublishedRows:
    """The published rows that are still in the table."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._of_slot: Counter[int] = Counter()
        self.gone: set[int] = set()
        """Rows deleted since the current read began: that read may still return them."""

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, row_id: int) -> bool:
        return row_id in self._slots or row_id in self.gone

    def add(self, rows: Iterable[OutboxRow]) -> None:
        """Note rows that a broker has stored."""
        for row in rows:
            if row.id not in self._slots:
                self._slots[row.id] = row.slot
                self._of_slot[row.slot] += 1

    def next_ids(self) -> list[int]:
        """The rows to delete next."""
        return list(islice(self._slots, REMOVED_TOGETHER))

    def drop(self, ids: Iterable[int]) -> None:
        """Forget rows that are deleted, or that belong to another relay now."""
        for row_id in ids:
            self._of_slot[self._slots.pop(row_id)] -= 1
            self.gone.add(row_id)

    def between(self, low: int, high: int) -> list[int]:
        """The ids after ``low``, up to ``high``."""
        return [row_id for row_id in self._slots if low < row_id <= high]

    def is_clear(self, slot: int) -> bool:
        """True if a slot has none of them."""
        return not self._of_slot[slot]


class RowRemover:
    """Deletes published rows.

    Args:
        published: The rows.
        store: The database.
        backoff: The pauses after failures.
        missed: Called when some rows were gone already, or belong to another relay.
    """

    def __init__(
        self,
        published: PublishedRows,
        store: OutboxStore,
        backoff: Backoff,
        missed: Callable[[], None],
    ) -> None:
        self._published = published
        self._store = store
        self._backoff = backoff
        self._missed = missed
        self._wanted = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, rows: Iterable[OutboxRow]) -> None:
        """Delete these rows soon: a broker has stored their messages."""
        self._published.add(rows)
        self._idle.clear()
        self._wanted.set()

    def forget(self, row_id: int) -> None:
        """Ignore a row that was set aside: the current read may still return it."""
        self._published.gone.add(row_id)

    async def wait(self) -> None:
        """Wait until no row is left to delete."""
        await self._idle.wait()

    async def run(self) -> None:
        """Delete rows until cancelled."""
        while True:
            await self._wanted.wait()
            await asyncio.sleep(LINGER_S)
            ids = self._published.next_ids()
            try:
                removed = await self._store.remove(ids)
            except self._store.problems as error:
                log.warning("published rows stay in the outbox for now: %s", words(error))
                await asyncio.sleep(self._backoff.next_pause())
                continue
            self._backoff.reset()
            self._published.drop(ids)
            if removed < len(ids):
                self._missed()
            if not self._published:
                self._wanted.clear()
                self._idle.set()
