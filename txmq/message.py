"""The messages an application sends and receives, and number types that must not be mixed up."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, NewType

from txmq.errors import LocalProtocolError
from txmq.settings.units import UNSET, DurationLike, OptionalDuration, seconds

__all__ = [
    "DEAD_LETTER",
    "HANDLED_BODY",
    "XID",
    "Later",
    "LogPosition",
    "Message",
    "Queue",
    "QueueOffset",
    "ReceivedMessage",
]

QueueOffset = NewType("QueueOffset", int)
"""A message's number in its queue; the first message ever stored there has 0."""

LogPosition = NewType("LogPosition", int)
"""The byte position of a record in the broker's log."""


XID: Final = "TXMQ_XID"
"""The property with the transaction's id, of a message that is not its first one."""

HANDLED_BODY: Final[ContextVar[tuple[object, bytes] | None]] = ContextVar(
    "txmq_handled_body", default=None
)
"""Set while a guarded handler that declares its body's type runs: its ``__idempotent__``, and the
bytes of the body. The guard compares these bytes, not the value decoded from them."""


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """One queue of a topic at one broker."""

    topic: str
    broker: str
    number: int

    def __str__(self) -> str:
        """The name that logs and errors use."""
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
    """Deliver it after this level's delay in the broker's table; 0 delivers at once."""
    deliver_at_ms: int | None = None
    """Deliver it at this wall time, in milliseconds; needs our broker or RocketMQ 5."""
    deliver_after: DurationLike | None = None
    """Deliver it this long after it is stored, or after the commit of its transaction, to the
    millisecond; needs our broker or RocketMQ 5."""
    wait_stored: bool = True
    """Whether the broker answers only after the syncs and copies that its settings require. If
    false, RocketMQ does not wait for its disk or its replicas; our broker always does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage(Message):
    """A message received from a queue."""

    queue: Queue
    offset: QueueOffset
    position: LogPosition
    id: str
    offset_id: str
    born_ms: int
    stored_ms: int
    attempts: int
    unreadable: str = ""
    """Why the body did not decompress; it is then as stored. Empty for nearly all messages.
    Handlers never receive an unreadable message: it becomes a dead letter."""

    @property
    def key(self) -> str:
        """The first of its keys, or its id if it has no keys."""
        return self.keys[0] if self.keys else self.id

    @property
    def xid(self) -> str:
        """The id of the transaction it was sent in: that of the first message of it."""
        return self.properties.get(XID, self.id)


DEAD_LETTER: Final = -1
"""The delay level that makes a message a dead letter."""


@dataclass(frozen=True, slots=True)
class Later:
    """Returned by a handler to receive the messages again later.

    Any other return value marks the messages as consumed. An exception counts as ``Later()``.

    Raises:
        LocalProtocolError: The level or the first message is negative.
        ConfigError: ``suspend`` is not a duration.
    """

    level: int = 0
    """The delay level. With 0 the broker chooses, and waits longer each time. With
    :data:`DEAD_LETTER` the message becomes a dead letter at once. Orderly consumers use only
    :data:`DEAD_LETTER`."""
    first: int = 0
    """In a batch, the index of the first message to receive again; earlier ones are consumed."""
    suspend: OptionalDuration = UNSET
    """How long an orderly consumer pauses the queue; ``None`` uses the consumer's setting."""
    reason: str = ""
    """The reason in a few words, or the exception if the handler raised one. The broker keeps it
    with a dead letter."""

    def __post_init__(self) -> None:
        """Refuse negative values, and read the duration."""
        if self.suspend is not None:
            object.__setattr__(self, "suspend", seconds("suspend", self.suspend))
        if self.level < DEAD_LETTER or self.first < 0:
            raise LocalProtocolError(
                f"{self}: level must be at least {DEAD_LETTER}, and first at least 0"
            )
