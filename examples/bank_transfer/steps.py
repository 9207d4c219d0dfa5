"""The nine steps of each transfer, recorded as they happen.

txmq logs them at level DEBUG, and the log records carry the transaction's id and the number of the
step; so a log handler can record them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, NamedTuple, Self

__all__ = ["NINE", "Step", "Steps"]

NINE: Final = (
    "The transaction manager opens the global transaction",
    "ICBC sends message M: credit B",
    "The coordinator stores M as a half message, which CCB does not see",
    "The broker reports that M is stored",
    "The coordinator calls ICBC, which debits A",
    "ICBC reports the result of the debit",
    "The transaction manager receives it",
    "The transaction manager tells the coordinator: commit, or roll back",
    "Both follow: CCB sees M, and the debit stands; or M is gone, and so is the debit",
)
"""The steps in the story of customer A and customer B."""

TRANSACTIONS_MAX: Final = 1_000
"""The steps of older transactions are dropped."""

LOGGERS: Final = ("txmq.transaction.story", "txmq.transaction.checks")


class Step(NamedTuple):
    """A step, or an event within a step."""

    number: int
    """From 1 to 9; 0 for an event."""
    text: str
    at_s: float
    """When, in seconds since 1970."""


@dataclass(slots=True)
class _Story:
    steps: list[Step] = field(default_factory=list)
    more: asyncio.Event = field(default_factory=asyncio.Event)


class Steps(logging.Handler):
    """``with``: records the steps of all transactions of this process.

    Args:
        is_on: Whether it records; otherwise txmq does not log the steps.
    """

    def __init__(self, *, is_on: bool = True) -> None:
        super().__init__(logging.DEBUG)
        self._is_on = is_on
        self._stories: OrderedDict[str, _Story] = OrderedDict()
        self._xids: OrderedDict[str, str] = OrderedDict()
        self._belongs = asyncio.Event()
        self._levels: list[tuple[logging.Logger, int]] = []

    def __enter__(self) -> Self:
        if self._is_on:
            for logger in map(logging.getLogger, LOGGERS):
                self._levels.append((logger, logger.level))
                logger.setLevel(logging.DEBUG)
                logger.addHandler(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for logger, level in self._levels:
            logger.removeHandler(self)
            logger.setLevel(level)
        self._levels.clear()
        self.close()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record if it belongs to a transaction; see :meth:`logging.Handler.emit`."""
        xid = getattr(record, "xid", None)
        if xid is None:
            return
        story = self._story(xid)
        text = record.getMessage().partition(": ")[2] or record.getMessage()
        story.steps.append(Step(getattr(record, "step", 0), text, record.created))
        story.more.set()
        story.more = asyncio.Event()

    def belong(self, transfer: str, xid: str, *, surely: bool = False) -> None:
        """Note the transaction of a transfer; ``surely`` once it is debited there. A later attempt
        with the same id, which is not debited again, does not replace it.
        """
        if self._is_on:
            if surely:
                self._xids[transfer] = xid
            self._xids.setdefault(transfer, xid)
            while len(self._xids) > TRANSACTIONS_MAX:
                self._xids.popitem(last=False)
            self._belongs.set()
            self._belongs = asyncio.Event()

    def of(self, transfer: str) -> list[Step]:
        """The steps so far."""
        xid = self._xids.get(transfer)
        story = None if xid is None else self._stories.get(xid)
        return [] if story is None else list(story.steps)

    async def follow(self, transfer: str) -> AsyncIterator[Step]:
        """The steps so far, and each further step, until the caller stops iterating."""
        while (xid := self._xids.get(transfer)) is None:
            await self._belongs.wait()
        story, count = self._story(xid), 0
        while True:
            more = story.more
            for step in story.steps[count:]:
                count += 1
                yield step
            await more.wait()

    def _story(self, xid: str) -> _Story:
        story = self._stories.get(xid)
        if story is None:
            story = self._stories[xid] = _Story()
            while len(self._stories) > TRANSACTIONS_MAX:
                self._stories.popitem(last=False)
        return story
