"""Messages as an application sees them, what it may say of them, and the kinds of numbers that must
never be mixed up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NewType

from txmq.errors import LocalProtocolError

__all__ = [
    "DEAD_LETTER",
    "Later",
    "LogPosition",
    "Message",
    "Queue",
    "QueueOffset",
    "ReceivedMessage",
]

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
    wait_stored: bool = True
    """Whether the broker answers only once the message is as safe as the broker is set to make it.
    Without it RocketMQ does not wait for its disk or its replicas; our brokers always do."""


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


DEAD_LETTER: Final = -1
"""The delay level that stands for "never again"."""


@dataclass(frozen=True, slots=True)
class Later:
    """A handler's word for "not now": the messages shall come again.

    A handler that returns anything else has consumed its messages; one that raises has said
    ``Later()``.

    Raises:
        LocalProtocolError: There is no such level, or no such message.
    """

    level: int = 0
    """The delay level to wait for: 0 leaves it to the broker, which waits longer each time;
    :data:`DEAD_LETTER` sends the message to the dead letters at once, and only that counts if
    orderly."""
    first: int = 0
    """In a batch, the first message this is about; those before it are consumed."""
    suspend_s: float | None = None
    """If orderly, how long the queue rests; the consumer's setting where it is ``None``."""
    reason: str = ""
    """Why, in a few words; kept with the message once it is a dead letter. Where a handler raised,
    it is the exception."""

    def __post_init__(self) -> None:
        """See that it can be meant."""
        if self.level < DEAD_LETTER or self.first < 0:
            raise LocalProtocolError(f"{self} names no delay level, or no message of a batch")
