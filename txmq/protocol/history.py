"""Requests for figures: a broker's history, 7731, and the number of topics, 7732."""

from __future__ import annotations

from txmq.protocol.bodies import Body
from txmq.protocol.headers import Header, Int32, Int64

__all__ = ["HistoryPage", "ShowHistory", "TopicCounts"]


class ShowHistory(Header):
    """7731: figures of the past, of the broker itself, of a group, or of a topic."""

    group: str = ""
    """The lag of this group, in all and by queue."""
    topic: str = ""
    """The messages that this topic received."""
    from_ms: Int64 = 0
    """The first time wanted. The next page begins one millisecond after the last row."""
    count: Int32 = 500
    """The most rows wanted."""
    period_s: Int32 = 0
    """The wanted pause between rows of the broker, 10 or 60; the others have rows each minute."""


class HistoryPage(Body):
    """The answer to 7731: rows, the oldest first."""

    columns: list[str] = []
    """What the values of a row mean: figures of the broker, or ``topic:queue`` after the total."""
    period_s: int = 0
    """The usual pause between two rows."""
    times: list[int] = []
    """When each row was taken, in milliseconds since 1970."""
    values: list[list[float | None]] = []
    """The rows; ``None`` where there was nothing to measure."""
    has_more: bool = False
    """Whether later rows exist."""


class TopicCounts(Body):
    """The answer to 7732, of a name server or of a broker."""

    topics: int = 0
    """Topics of applications."""
    dead_letter_groups: int = 0
    """Groups that have a topic for dead letters."""
    dead_letters: int | None = None
    """Stored dead letters; only of a broker."""
