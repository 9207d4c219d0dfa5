"""What happened to a broker set, as its store and its clients saw it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.simulation.history import Copy, Event
from txmq.message import Queue

__all__ = [
    "HAND_OVER",
    "LOSE_COPIES",
    "AllBack",
    "Bound",
    "CopiesCounted",
    "CopyRead",
    "Damaged",
    "Disturbed",
    "FollowerRead",
    "LeaderAnswered",
    "Leading",
    "LossAllowed",
    "MemberBack",
    "MemberLost",
    "Mended",
    "OffsetShown",
    "SetChanged",
    "WritesFail",
]


HAND_OVER = "hand-over"
"""How a leader is lost that stops in order; it serves until the end."""

LOSE_COPIES = ("wipe", "lost tail", "older state")
"""How a member is lost whose disk then lacks what it had."""


@dataclass(frozen=True, slots=True)
class Bound(Event):
    """So long may the set be without a leader when nothing else is wrong."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SetChanged(Event):
    """The store of the set has another state from now on; ``leader`` is empty without a lease."""

    leader: str
    epoch: int
    in_sync: tuple[str, ...]
    removed: tuple[str, ...] = ()
    """The members that an operator removed, by the names of their machines."""


@dataclass(frozen=True, slots=True)
class Leading(Event):
    """A member began to serve as the leader."""

    member: str
    epoch: int


@dataclass(frozen=True, slots=True)
class MemberLost(Event):
    """A member is gone, or stands still, or is to stop."""

    member: str
    how: str
    was_leader: bool
    has_heir: bool
    """Whether another member is up that has everything."""


@dataclass(frozen=True, slots=True)
class MemberBack(Event):
    """A member that stood still goes on."""

    member: str


@dataclass(frozen=True, slots=True)
class AllBack(Event):
    """Every member, and the store of the set, is up again."""


@dataclass(frozen=True, slots=True)
class WritesFail(Event):
    """A leader's disk takes no writes any more."""

    member: str
    has_heir: bool
    """Whether another member is up that has everything."""


@dataclass(frozen=True, slots=True)
class Damaged(Event):
    """Bits in a member's log are flipped: in a closed file, or while the member does not run."""

    member: str


@dataclass(frozen=True, slots=True)
class Mended(Event):
    """The log of a damaged member is what it was."""

    member: str


@dataclass(frozen=True, slots=True)
class LossAllowed(Event):
    """A person let a member lead that may lack acknowledged messages."""

    member: str


@dataclass(frozen=True, slots=True)
class LeaderAnswered(Event):
    """A member answered a client that had asked at second ``asked``."""

    member: str
    asked: float


@dataclass(frozen=True, slots=True)
class CopiesCounted(Event):
    """How many disks held a message durably when its client got the answer."""

    message: str
    copies: int
    least: int
    """So many are promised."""
    lacking: tuple[str, ...]
    """The members that the store called in sync, and that had no copy."""


@dataclass(frozen=True, slots=True)
class Disturbed(Event):
    """Something beside the loss of a machine makes life hard, or does so no more."""

    what: str
    begins: bool


@dataclass(frozen=True, slots=True)
class FollowerRead(Event):
    """A consumer got messages from a member that did not lead."""

    member: str
    queue: Queue
    copies: tuple[Copy, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class OffsetShown(Event):
    """The offset that a new leader has for a group."""

    group: str
    queue: Queue
    offset: int


@dataclass(frozen=True, slots=True)
class CopyRead(Event):
    """The log of a member when all members are in sync and nobody sends."""

    member: str
    files: Mapping[str, tuple[int, int]] = field(repr=False)
    """The size and the checksum of each file of the log."""
