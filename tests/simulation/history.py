"""What happened in a run, as everybody outside the broker saw it. Checkers know nothing else.

Events stand in the order in which they happened. A *send* is what a producer wants stored, one
message or a batch; it may take several *attempts*, and each message of each attempt carries a
*mark* of its own, so that every copy in a queue says which attempt put it there.

A *transaction* is named by the unique key of its half message, which is the same in all attempts;
so is its mark, for it may be in a queue once at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from txmq.errors import Effect
from txmq.message import Queue

__all__ = [
    "Acknowledged",
    "Asked",
    "Audited",
    "Began",
    "Calm",
    "ClientDown",
    "Committed",
    "Committing",
    "Copy",
    "Decided",
    "Down",
    "EndAnswered",
    "EndSent",
    "EndShown",
    "Ended",
    "Event",
    "Found",
    "HalfRefused",
    "HalfSending",
    "HalfTaken",
    "History",
    "Marker",
    "Moved",
    "OpenAudited",
    "Patience",
    "Pulled",
    "QueueEnd",
    "Recovered",
    "Refused",
    "Sending",
    "Serving",
    "Shape",
    "Standing",
    "TransactionShown",
    "Word",
    "WrongEnd",
    "half_mark",
    "mark",
]

COMMIT, ROLLBACK, UNKNOWN = "commit", "rollback", "unknown"
"""What an END says."""


def mark(send: str, attempt: int, index: int) -> str:
    """What the copy of one message of one attempt carries."""
    return f"{send}#{attempt}.{index}"


def half_mark(xid: str) -> str:
    """What the message of a transaction carries."""
    return mark(xid, 0, 0)


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
    key: str = ""
    """Its unique key."""


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


# Transactions


class Word(NamedTuple):
    """Who says what about a transaction."""

    says: str
    """One of commit, rollback, unknown."""
    who: str
    """A producer, a check's answer, an operator, or a liar: only the first two go by the
    database.
    """


@dataclass(frozen=True, slots=True)
class HalfSending(Event):
    """An attempt to send a half message begins."""

    client: str
    group: str
    xid: str
    queue: Queue
    attempt: int
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class HalfTaken(Event):
    """The broker said that a half message is stored, at these places."""

    xid: str
    broker: str
    offset: int
    position: int


@dataclass(frozen=True, slots=True)
class HalfRefused(Event):
    """An attempt to send a half message failed."""

    xid: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Decided(Event):
    """A producer group's database holds the outcome of a transaction from now on."""

    group: str
    xid: str
    committed: bool
    by: str


@dataclass(frozen=True, slots=True)
class EndSent(Event):
    """Somebody is about to say how a transaction ends."""

    xid: str
    word: Word


@dataclass(frozen=True, slots=True)
class EndAnswered(Event):
    """The broker answered that."""

    xid: str
    word: Word
    code: int


@dataclass(frozen=True, slots=True)
class WrongEnd(Event):
    """An END that makes no sense, in a way named in ``how``, was answered."""

    xid: str
    how: str
    code: int


@dataclass(frozen=True, slots=True)
class Asked(Event):
    """A producer of a group was asked about a transaction, and shown its half message."""

    client: str
    group: str
    xid: str
    topic: str
    queue_number: int
    offset: int
    position: int
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Standing:
    """An open transaction as the broker lists it."""

    offset: int
    position: int
    is_parked: bool


@dataclass(frozen=True, slots=True)
class Marker:
    """A decision as the broker's topic of decisions shows it."""

    half_offset: int
    kind: str


@dataclass(frozen=True, slots=True)
class OpenAudited(Event):
    """A broker was asked for everything it knows of transactions, beginning at second ``began``."""

    broker: str
    began: float
    listed: Mapping[str, Standing] = field(repr=False)
    """The open ones."""
    parked: tuple[str, ...] = field(repr=False)
    """Those on the list of the parked."""
    halves: tuple[Copy, ...] = field(repr=False)
    markers: tuple[Marker, ...] = field(repr=False)
    copies: tuple[str, ...] = field(repr=False)
    """The transactions of which a copy lies in the topic of the parked."""
    digest: int = 0


@dataclass(frozen=True, slots=True)
class TransactionShown(Event):
    """A broker that was asked at second ``asked`` said what state a transaction is in."""

    address: str
    asked: float
    xid: str
    state: str


@dataclass(frozen=True, slots=True)
class Patience(Event):
    """So long may it take, once nothing goes wrong, until every transaction has its end."""

    seconds: float


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
class EndShown(Event):
    """A broker that was asked at second ``asked`` said where a queue ends."""

    address: str
    asked: float
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
    open: Mapping[int, bool] = field(default_factory=dict)
    """The open transactions by the offset of their half message, and whether they are parked."""
    waiting: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """What waits for its time by its place, a line's number and an offset, and when it is due."""


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
        self.on_event: Callable[[Event], None] = _unheard
        """Called after each event."""
        self._trace = trace

    def add(self, event: Event) -> None:
        """Note that something happened."""
        self.events.append(event)
        self._trace.record("saw", event)
        self.on_event(event)

    def count(self, kind: type[Event]) -> int:
        """How often a kind of thing happened."""
        return sum(isinstance(event, kind) for event in self.events)


def _unheard(event: Event) -> None:
    pass
