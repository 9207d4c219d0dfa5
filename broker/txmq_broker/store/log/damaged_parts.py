"""The damaged parts of a log: how to find where each ends, and a table of the known ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from txmq.errors import CorruptRecord
from txmq.text import quantity
from txmq_broker.store.log.segments import Segments
from txmq_broker.store.log.spans import span_at, whole_behind

__all__ = ["DamagedPart", "DamagedParts", "look_at"]

log = logging.getLogger(__name__)


class DamagedPart(NamedTuple):
    """A part of one file of the log in which no whole span begins."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"from position {self.start} to {self.end}"


class DamagedParts:
    """The known damaged parts of one log, oldest first.

    Attributes:
        save: Saves them durably; called after each change.
        on_change: Called after each change, once it is saved.
    """

    def __init__(self, save: Callable[[list[DamagedPart]], None] = lambda _: None) -> None:
        self.save = save
        self.on_change: Callable[[], None] = lambda: None
        self._parts: list[DamagedPart] = []

    def __iter__(self) -> Iterator[DamagedPart]:
        return iter(list(self._parts))

    def __len__(self) -> int:
        return len(self._parts)

    def __str__(self) -> str:
        """The damage in words; empty if there is none."""
        if not self._parts:
            return ""
        return f"its log is damaged in {quantity(len(self), 'part')}, first {self._parts[0]}"

    def load(self, parts: Iterable[tuple[int, int]]) -> None:
        """Load the saved parts."""
        self._parts = [DamagedPart(*part) for part in parts]

    def holds(self, position: int) -> bool:
        """Whether a position lies in a known part."""
        return any(part.start <= position < part.end for part in self._parts)

    def begin_behind(self, position: int) -> int | None:
        """The start of the first part that ends after a position; ``None`` without one."""
        return next((part.start for part in self._parts if part.end > position), None)

    def add(self, found: DamagedPart) -> None:
        """Add a part and log it, unless it is known."""
        if any(part.start <= found.start and found.end <= part.end for part in self._parts):
            return
        # A part that has grown replaces the smaller parts that were known.
        apart = [part for part in self._parts if part.end <= found.start or found.end <= part.start]
        log.error("the log is damaged %s: the disk has other bytes than were written", found)
        self._change(sorted([*apart, found]))

    def remove(self, whole: DamagedPart) -> None:
        """Remove a part that is intact again."""
        self._change([part for part in self._parts if part != whole])

    def keep_within(self, start: int, end: int) -> None:
        """Forget the parts before the log's start or after its end."""
        kept = [
            DamagedPart(part.start, min(part.end, end))
            for part in self._parts
            if start <= part.start < end
        ]
        self._change(kept)

    def _change(self, parts: list[DamagedPart]) -> None:
        if parts != self._parts:
            self._parts = parts
            self.save(parts)
            self.on_change()


def look_at(segments: Segments, position: int) -> tuple[int, bool]:
    """Where the span at a position ends, and whether it is intact.

    A damaged part ends where the next intact span begins, or with its file.
    """
    extent = segments.extent_at(position)
    try:
        span = span_at(segments, position, extent.end)
    except CorruptRecord:
        span = None  # The disk cannot read it, or it belongs to another log.
    if span is not None:
        return position + span[0].size, True
    try:
        return whole_behind(segments, position, extent), False
    except CorruptRecord:
        return extent.end, False
