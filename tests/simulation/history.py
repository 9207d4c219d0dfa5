"""What happened in a run, as everybody outside the broker saw it. Checkers know nothing else.

Events stand in the order in which they happened. A *send* is what a producer wants stored, one
message or a batch; it may take several *attempts*, and each message of each attempt carries a
*mark* of its own, so that every copy in a queue says which attempt put it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from txmq.errors import Effect
from txmq.message import Queue

__all__ = [
    "Acknowledged",
    "Audited",
    "Began",
    "Calm",
    "ClientDown",
    "Committed",
    "Committing",
    "Copy",
    "Down",
    "Ended",
    "Event",
    "Found",
    "History",
    "Moved",
    "Pulled",
    "QueueEnd",
    "Recovered",
    "Refused",
    "Sending",
    "Serving",
    "Shape",
    "mark",
]


def mark(send: str, attempt: int, index: int) -> str:
    """What the copy of one message of one attempt carries."""
    return f"{send}#{attempt}.{index}"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, at a virtual second."""

    at: float


# Producers


@dataclass(frozen=True, slots=True)
class Sending(Event):
    """An attempt begins; where ``answered`` is false nobody will say whether it was stored."""

    client: str
    send: str
    attempt: int
    bodies: tuple[bytes, ...] = field(repr=False)
    answered: bool = True


@dataclass(frozen=True, slots=True)
class Acknowledged(Event):
    """The broker said that an attempt is stored, from this offset on without a gap."""

    send: str
    attempt: int
    queue: Queue
    offset: int
    offset_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused(Event):
    """An attempt failed; ``effect`` is what the error says about it."""

    send: str
    attempt: int
    reason: str
    effect: Effect


# Consumers


@dataclass(frozen=True, slots=True)
class Copy:
    """A stored message as somebody got it."""

    offset: int
    position: int
    offset_id: str
    mark: str
    tags: str
    stored_ms: int
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Began(Event):
    """A group begins, or begins again, to read a queue at the offset the broker has for it."""

    group: str
    queue: Queue
    offset: int
    tags: str = "*"


@dataclass(frozen=True, slots=True)
class Pulled(Event):
    """A group asked for messages from an offset on; it goes on at the next offset."""

    group: str
    queue: Queue
    offset: int
    next_offset: int
    copies: tuple[Copy, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Moved(Event):
    """The broker said that a queue does not have the offset a group asked for."""

    group: str
    queue: Queue
    offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Committing(Event):
    """A group starts to say how far it has come."""

    group: str
    queue: Queue
    offset: int


@dataclass(frozen=True, slots=True)
class Committed(Event):
    """The broker has taken a group's word for how far it has come."""

    group: str
    queue: Queue
    offset: int


# The stage


@dataclass(frozen=True, slots=True)
class Serving(Event):
    """A broker has started and takes requests."""

    broker: str


@dataclass(frozen=True, slots=True)
class Down(Event):
    """A broker is gone; ``kept`` says that it could save everything before."""

    broker: str
    how: str
    kept: bool = False


@dataclass(frozen=True, slots=True)
class ClientDown(Event):
    """A client is gone, with all it was doing."""

    client: str


@dataclass(frozen=True, slots=True)
class Calm(Event):
    """From here on nothing goes wrong any more."""


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """The run is over: what has not happened by now never will."""


# Looking into brokers


@dataclass(frozen=True, slots=True)
class Audited(Event):
    """All queues of a broker were read from end to end, beginning at second ``began``."""

    broker: str
    began: float
    queues: Mapping[Queue, tuple[Copy, ...]] = field(repr=False)
    digest: int = 0


@dataclass(frozen=True, slots=True)
class QueueEnd(Event):
    """Where a queue ends when everything has been sent."""

    queue: Queue
    offset: int


@dataclass(frozen=True, slots=True)
class Found(Event):
    """What looking for one stored message brought, by a way named in ``how``."""

    how: str
    wanted: str
    offset_id: str
    copy: Copy | None


@dataclass(frozen=True, slots=True)
class Shape:
    """A broker's log and queues after recovery."""

    log: Mapping[str, tuple[int, int]]
    """Size and checksum by file."""
    queues: Mapping[tuple[str, int], tuple[int, int, int]]
    """First offset, end, and checksum of the entries, by topic and number."""
    cut_bytes: int


@dataclass(frozen=True, slots=True)
class Recovered(Event):
    """A crashed broker's disk was recovered in several ways, each on a copy."""

    broker: str
    once: Shape = field(repr=False)
    others: Mapping[str, Shape] = field(repr=False)
    """By the way it was done."""


class Recorder(Protocol):
    """What a history tells of its events."""

    def record(self, label: str, *facts: object) -> None:
        """Take an event."""


class History:
    """The events of one run, in order; each goes into the run's trace as well."""

    def __init__(self, trace: Recorder) -> None:
        self.events: list[Event] = []
        self._trace = trace

    def add(self, event: Event) -> None:
        """Note that something happened."""
        self.events.append(event)
        self._trace.record("saw", event)

    def count(self, kind: type[Event]) -> int:
        """How often a kind of thing happened."""
        return sum(isinstance(event, kind) for event in self.events)
