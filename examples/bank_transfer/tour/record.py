"""The record of the tour so far, for the view and the report."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from examples.bank_transfer.steps import Step
from examples.bank_transfer.tour.audit import Sheet

__all__ = ["Event", "Record"]

EVENTS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth a line."""

    at_s: float
    text: str
    is_bad: bool = False


@dataclass(slots=True)
class Record:
    """All of it."""

    wanted: int = 0
    began_s: float = field(default_factory=time.monotonic)
    asked: int = 0
    """Orders that have their answer."""
    heard: dict[str, str] = field(default_factory=dict)
    """The answer for each transfer."""
    retries: int = 0
    """How often a customer had to repeat an order."""
    kills: Counter[str] = field(default_factory=Counter)
    copies: int = 0
    looks: int = 0
    """How often the auditor has read both books."""
    sheet: Sheet | None = None
    """The result of the last audit."""
    mistakes: list[str] = field(default_factory=list)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS_MAX))
    event_count: int = 0
    """How many events there were."""
    stories: dict[str, list[Step]] = field(default_factory=dict)
    """The steps of the transfers in the story."""
    asked_s: float = 0.0
    """When the last answer came."""
    ended_s: float = 0.0
    """When no transfer was in flight any more."""
    phase: str = "the programs start"
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def seconds(self) -> float:
        """The duration so far."""
        return time.monotonic() - self.began_s

    def answer(self, transfer: str, state: str) -> None:
        """A customer received an answer."""
        self.asked += 1
        self.asked_s = self.seconds
        self.heard[transfer] = state
        self._more.set()
        self._more = asyncio.Event()

    async def until_asked(self, count: int) -> None:
        """Wait until so many orders have their answer."""
        while self.asked < count:
            await self._more.wait()

    def tell(self, text: str, *, is_bad: bool = False) -> None:
        """Record an event."""
        self.event_count += 1
        self.events.append(Event(self.seconds, text, is_bad))

    def look(self, sheet: Sheet) -> None:
        """The auditor has read both books."""
        self.looks += 1
        self.sheet = sheet
        for mistake in sheet.mistakes:
            self.mistake(mistake)

    def mistake(self, text: str) -> None:
        """Record a mistake, such as lost money; each text once."""
        if text not in self.mistakes:
            self.mistakes.append(text)
            self.tell(text, is_bad=True)
