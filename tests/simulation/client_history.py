"""What happened in a run of whole clients, as seen by those who send and those who handle.

A *member* is one stay of a consumer in its group: it ends with the consumer's stop, and with its
machine. What a member is given, it handles; what it says in the end is that it is done, or not yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.history import Event
from txmq.message import Queue

__all__ = [
    "Buried",
    "Committing",
    "Grouped",
    "Handled",
    "Handling",
    "Left",
    "Loaded",
    "Sent",
    "Standing",
]


@dataclass(frozen=True, slots=True)
class Sent(Event):
    """A message is acknowledged, and safe."""

    key: str
    queue: Queue
    offset: int
    tags: str


@dataclass(frozen=True, slots=True)
class Grouped(Event):
    """There is a group, and this is what it wants."""

    group: str
    is_orderly: bool
    tags: str
    """One tag, or ``*``."""


@dataclass(frozen=True, slots=True)
class Loaded(Event):
    """A member was told where its group stands; asked at second ``began``."""

    client: str
    member: str
    group: str
    queue: Queue
    offset: int | None
    began: float


@dataclass(frozen=True, slots=True)
class Handling(Event):
    """A handler begins with a message."""

    client: str
    member: str
    group: str
    queue: Queue
    offset: int
    key: str
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Handled(Event):
    """A handler has come to its end, or was stopped; ``is_done`` is what it says.

    Where it is not, ``level`` is the delay level it asks for.
    """

    client: str
    member: str
    group: str
    queue: Queue
    offset: int
    key: str
    is_done: bool
    attempts: int = 0
    level: int = 0


@dataclass(frozen=True, slots=True)
class Committing(Event):
    """A member tells a broker how far its group has come."""

    member: str
    group: str
    queue: Queue
    offset: int


@dataclass(frozen=True, slots=True)
class Standing(Event):
    """A broker said where a group stands; ``is_last`` where all members have left in order."""

    group: str
    queue: Queue
    offset: int | None
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Left(Event):
    """A member has left in order, and this is what runs or waits on all the same."""

    member: str
    took_s: float
    tasks: tuple[str, ...]
    asked: int
    open: int


@dataclass(frozen=True, slots=True)
class Buried(Event):
    """A broker is gone for good."""

    broker: str
