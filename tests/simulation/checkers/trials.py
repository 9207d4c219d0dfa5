"""What groups have tried with messages, read from a history for the checker of retries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulation.client_history import Grouped, Handled, Handling, Sent
from tests.simulation.delivery_history import (
    DONE,
    Kept,
    Recalling,
    Returned,
    Returning,
    Rules,
    Shelf,
    Waits,
    Writing,
)
from tests.simulation.history import Calm, Ended, Event
from txmq.message import Queue
from txmq.protocol.topics import DLQ, RETRY

__all__ = ["Place", "Trial", "Trials"]


class Place(NamedTuple):
    """The copies of one message after a given number of failures of a group."""

    group: str
    broker: str
    key: str
    attempts: int


@dataclass(slots=True)
class Trial:
    """One message, as one group knows it."""

    begun: dict[int, float] = field(default_factory=dict)
    """By attempt, when it was begun with first."""
    failed: set[int] = field(default_factory=set)
    unheard: int = 0
    """So many times it was handed back, and nobody heard that it was taken: then it may come again
    where it was."""
    is_done: bool = False
    asked_for_death: bool = False

    def failed_at(self, attempt: int) -> bool:
        """Whether this attempt or a later one failed."""
        return any(number >= attempt for number in self.failed)


class Trials:
    """A whole history of attempts."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.levels_ms: tuple[int, ...] = ()
        self.attempts_max = 0
        self.timeout_s = 0.0
        self.calm_at: float | None = None
        self.ended_at: float | None = None
        self.groups: dict[str, Grouped] = {}
        self.written: dict[str, Writing] = {}
        self.taken: list[str] = []
        self.recalled: set[str] = set()
        self.gaps: list[str] = []
        """What is wrong with the attempts that were shown to handlers."""
        self.answers: dict[int, str] = {}
        """What became of a message that was handed back; nothing where nobody lived to see it."""
        self.again: dict[Place, list[Kept]] = {}
        self.dead: dict[Place, list[Kept]] = {}
        self.buried: list[tuple[str, Queue, Kept]] = []
        self.given_again: dict[Place, Handling] = {}
        """Which handler began with one of these first."""
        self._trials: dict[tuple[str, str], Trial] = {}
        self._first: dict[tuple[str, Queue, int], Handling] = {}
        self._handed: list[Returning] = []
        self._stored: dict[tuple[str, int], Kept] = {}
        for event in events:
            self._take(event)

    def of(self, group: str, key: str) -> Trial:
        """What a group did with a message."""
        return self._trials.setdefault((group, key), Trial())

    def wanted(self) -> Iterator[tuple[str, str]]:
        """What is to come to its end: groups, and keys of what was acknowledged for them."""
        for group in self.groups.values():
            for key in self.taken:
                if key not in self.recalled and group.tags in {"*", self.written[key].tags}:
                    yield group.group, key

    def handed_back(self) -> dict[Place, list[Returning]]:
        """What was handed back, by the place where it must be then; and all that is in such."""
        places: dict[Place, list[Returning]] = {place: [] for place in (*self.again, *self.dead)}
        for returning in self._handed:
            stored = self._stored[returning.queue.broker, returning.position]
            place = Place(returning.group, returning.queue.broker, stored.key, stored.attempts + 1)
            places.setdefault(place, []).append(returning)
        return places

    # Reading

    def _take(self, event: Event) -> None:
        match event:
            case Rules():
                self.levels_ms, self.attempts_max = event.levels_ms, event.attempts_max
                self.timeout_s = event.timeout_s
            case Grouped():
                self.groups[event.group] = event
            case Writing():
                self.written[event.key] = event
            case Sent() | Waits():
                self.taken.append(event.key)
            case Recalling():
                self.recalled.add(event.key)
            case Handling():
                self._begin(event)
            case Handled():
                self._end(event)
            case Returning():
                self._handed.append(event)
                self.of(event.group, event.key).unheard += 1
            case Returned():
                self.answers[event.number] = event.answer
                self.of(event.group, event.key).unheard -= event.answer == DONE
            case Shelf():
                self._shelve(event)
            case Calm():
                self.calm_at = event.at
            case Ended():
                self.ended_at = event.at
            case _:
                pass

    def _begin(self, event: Handling) -> None:
        trial, attempt = self.of(event.group, event.key), event.attempts
        self._look_for_slow(trial, event)
        if attempt > self.attempts_max and not trial.unheard:
            self.gaps.append(
                f"{event.member} is given {event.key} for the attempt {attempt}, "
                f"and {self.attempts_max} are allowed"
            )
        if attempt and attempt - 1 not in trial.failed:
            self.gaps.append(
                f"{event.member} is given {event.key} for the attempt {attempt}, "
                f"and those that failed are {sorted(trial.failed)}"
            )
        trial.begun.setdefault(attempt, event.at)
        self._first.setdefault((event.group, event.queue, event.offset), event)

    def _look_for_slow(self, trial: Trial, event: Handling) -> None:
        """A handler that takes too long has failed."""
        if not self.groups[event.group].is_orderly:
            since = event.at - self.timeout_s
            trial.failed |= {number for number, begun in trial.begun.items() if begun <= since}

    def _end(self, event: Handled) -> None:
        trial = self.of(event.group, event.key)
        if event.is_done:
            trial.is_done = True
        else:
            trial.failed.add(event.attempts)
            trial.asked_for_death |= event.level < 0

    def _shelve(self, event: Shelf) -> None:
        queue = event.queue
        for kept in event.kept:
            self._stored[queue.broker, kept.position] = kept
            if queue.topic.startswith(RETRY):
                place = Place(queue.topic.removeprefix(RETRY), queue.broker, *_whose(kept))
                self.again.setdefault(place, []).append(kept)
                # By what is stored: where it could not be handed back, more attempts are shown.
                first = self._first.get((place.group, queue, kept.offset))
                known = self.given_again.get(place)
                if first is not None and (known is None or first.at < known.at):
                    self.given_again[place] = first
            elif queue.topic.startswith(DLQ):
                place = Place(queue.topic.removeprefix(DLQ), queue.broker, *_whose(kept))
                self.dead.setdefault(place, []).append(kept)
                self.buried.append((place.group, queue, kept))


def _whose(kept: Kept) -> tuple[str, int]:
    return kept.key, kept.attempts
