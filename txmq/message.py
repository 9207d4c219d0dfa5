"""Messages as an application sees them, and the kinds of numbers that must never be mixed up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NewType

__all__ = ["LogPosition", "Message", "Queue", "QueueOffset", "ReceivedMessage"]

QueueOffset = NewType("QueueOffset", int)
"""Which message of its queue: 0 for the first ever stored there."""

LogPosition = NewType("LogPosition", int)
"""Where a record starts in the broker's log, in bytes."""


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """One queue of a topic at one broker."""

    topic: str
    broker: str
    number: int

    def __str__(self) -> str:
        """As logs and errors name it."""
        return f"{self.topic}/{self.broker}/{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message to send."""

    topic: str
    body: bytes
    tags: str = ""
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_level: int = 0
    """Deliver it after the time that the broker's table has for this level; 0 is at once."""
    deliver_at_ms: int | None = None
    """Deliver it at this wall time, in milliseconds; our brokers, and RocketMQ from 5 on."""
    deliver_after_s: int | None = None
    """Deliver it so many seconds after it is stored; our brokers, and RocketMQ from 5 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage(Message):
    """A message as it came out of a queue."""

    queue: Queue
    offset: QueueOffset
    position: LogPosition
    id: str
    offset_id: str
    born_ms: int
    stored_ms: int
    attempts: int
    unreadable: str = ""
    """Why its body could not be decompressed, and is as it was stored; empty for nearly all.
    Handlers are never given such a message: it goes to the dead letters."""

    @property
    def key(self) -> str:
        """The first of its keys, or its id where it has none."""
        return self.keys[0] if self.keys else self.id
