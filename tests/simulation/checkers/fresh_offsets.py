"""After a fail-over the committed offsets are at most a second old.

What a consumer committed a second before the leader was lost, a new leader knows, unless something
else than the loss of the leader stood in the way of its copies during that second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.simulation.copy_history import (
    HAND_OVER,
    Disturbed,
    MemberBack,
    MemberLost,
    OffsetShown,
    SetChanged,
)
from tests.simulation.copy_node import machine_of
from tests.simulation.history import Began, Committed, Committing, Event
from txmq.message import Queue

__all__ = ["broken"]

AGE_S = 1.0
SLACK_S = 0.3
"""For the network and for the disks of the copies."""


@dataclass(slots=True)
class _Place:
    """What a group said about one queue."""

    committed: list[tuple[float, float, int]] = field(default_factory=list)
    """When it was said, when the answer came, and the offset."""
    trying: tuple[float, int] | None = None
    """What it said last, and when; the leader may have taken it or not."""


class _Offsets:
    def __init__(self) -> None:
        self.complaints: list[str] = []
        self._places: dict[tuple[str, Queue], _Place] = {}
        self._lost: list[float] = []
        """Until when each leader before could send its offsets, if nothing else was wrong."""
        self._lost_at: float | None = None
        self._leader = ""
        self._disturbances: list[tuple[float, float]] = []
        self._open: dict[str, float] = {}

    def take(self, event: Event) -> None:
        match event:
            case Disturbed():
                self._disturb(event)
            case MemberLost() if event.was_leader and event.how != HAND_OVER:
                if self._lost_at is None:
                    self._lost_at = event.at
            case MemberBack() if event.member == machine_of(self._leader):
                self._lost_at = None
            case SetChanged():
                if self._leader and event.leader != self._leader:
                    self._lost.append(event.at if self._lost_at is None else self._lost_at)
                    self._lost_at = None
                self._leader = event.leader
            case Committing():
                self._place(event).trying = event.at, event.offset
            case Committed():
                place = self._place(event)
                if place.trying is not None:
                    place.committed.append((place.trying[0], event.at, event.offset))
            case Began() | OffsetShown():
                self._judge(event)
            case _:
                pass

    def _place(self, event: Committing | Committed | Began | OffsetShown) -> _Place:
        return self._places.setdefault((event.group, event.queue), _Place())

    def _disturb(self, event: Disturbed) -> None:
        if event.begins:
            self._open[event.what] = event.at
        elif event.what in self._open:
            self._disturbances.append((self._open.pop(event.what), event.at))

    def _judge(self, event: Began | OffsetShown) -> None:
        place = self._place(event)
        known = [offset for *times, offset in place.committed if self._is_known(*times)]
        later = [offset for *times, offset in place.committed if not self._is_known(*times)]
        if place.trying is not None:
            later.append(place.trying[1])
        if known and event.offset < min(known[-1], *later):
            self.complaints.append(
                f"{event.group} begins at {event.offset} of {event.queue} at {event.at:.6f}, and "
                f"{known[-1]} was committed long before its leader was lost"
            )

    def _is_known(self, asked: float, at: float) -> bool:
        """Whether every leader after the one that took it has to know it."""
        later = [lost for lost in self._lost if asked <= lost]
        return bool(later) and all(self._had_time(at, lost) for lost in later)

    def _had_time(self, begin: float, end: float) -> bool:
        """Whether copies had the time they need before a disturbance began, or the leader was lost.

        What stands in the way later comes too late: they know the offset already.
        """
        disturbed = [start for start, stop in self._spans() if start < end and begin < stop]
        return min([end, *disturbed]) - begin >= AGE_S + SLACK_S

    def _spans(self) -> Iterator[tuple[float, float]]:
        yield from self._disturbances
        for start in self._open.values():
            yield start, float("inf")


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    offsets = _Offsets()
    for event in events:
        offsets.take(event)
    return offsets.complaints
