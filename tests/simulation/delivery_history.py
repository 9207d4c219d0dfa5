"""What happened to messages that were to come later, and to those that were handed back.

Each attempt to send a message carries a *key* of its own, and the id that all of its attempts
share: so every copy says which attempt put it there, and a group may be asked how often it was
given each. A broker's own clock decides when something is due; how it was set is told, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.simulation.history import Event
from txmq.message import Queue

__all__ = [
    "DONE",
    "MAYBE",
    "REFUSED",
    "ClockSet",
    "Kept",
    "Recalled",
    "Recalling",
    "Returned",
    "Returning",
    "Rules",
    "Shelf",
    "Waits",
    "Wish",
    "Writing",
]

DONE, MAYBE, REFUSED = "done", "maybe", "refused"
"""What became of a request: answered, not answered, answered with a refusal."""


class Wish(NamedTuple):
    """When a message is to come, said in one of three ways."""

    level: int = 0
    at_ms: int = 0
    after_s: int = 0


# The stage


@dataclass(frozen=True, slots=True)
class Rules(Event):
    """By what rules all brokers and groups go."""

    levels_ms: tuple[int, ...]
    attempts_max: int
    """So often may a message come again."""
    timeout_s: float
    """Who takes longer with a message has failed with it, unless it is handled in order."""


@dataclass(frozen=True, slots=True)
class ClockSet(Event):
    """A broker's wall clock showed one time, and then another; from here on it goes so fast."""

    broker: str
    before_ms: int
    after_ms: int
    rate: float


# Senders


@dataclass(frozen=True, slots=True)
class Writing(Event):
    """An attempt to send a message begins."""

    key: str
    id: str
    topic: str
    tags: str
    wish: Wish | None


@dataclass(frozen=True, slots=True)
class Waits(Event):
    """The broker says that a message is stored and waits, until a time that it names."""

    key: str
    broker: str
    due_ms: int


@dataclass(frozen=True, slots=True)
class Recalling(Event):
    """The broker is asked that a message that waits shall not come."""

    key: str


@dataclass(frozen=True, slots=True)
class Recalled(Event):
    """What became of that."""

    key: str
    answer: str


# Members


@dataclass(frozen=True, slots=True)
class Returning(Event):
    """A member hands a message back, which lies at a position of its broker's log."""

    number: int
    group: str
    queue: Queue
    position: int
    key: str
    level: int


@dataclass(frozen=True, slots=True)
class Returned(Event):
    """What became of that."""

    number: int
    group: str
    queue: Queue
    offset: int
    key: str
    attempts: int
    level: int
    answer: str


# In the end


class Kept(NamedTuple):
    """A message as it lies in a queue."""

    offset: int
    position: int
    key: str
    id: str
    attempts: int
    stored_ms: int
    reason: str
    """Of a dead letter: why it is one, the topic it was sent to, and the id it had there."""
    dead_topic: str
    dead_id: str
    recalls: str = ""
    """Of a recall: the id of what shall not come."""


@dataclass(frozen=True, slots=True)
class Shelf(Event):
    """All that lies in a queue when everything has come to rest."""

    queue: Queue
    kept: tuple[Kept, ...]
