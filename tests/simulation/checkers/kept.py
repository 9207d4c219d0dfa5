"""I3 for transactions: an acknowledged half message is there, unchanged, until somebody decides it;
an acknowledged decision holds; what is parked stays parked.

Every look at a broker's transactions that begins later must bear that out, whatever happened to the
broker meanwhile. What a producer is asked about is what was sent.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    Asked,
    Audited,
    EndAnswered,
    EndSent,
    Event,
    HalfSending,
    HalfTaken,
    Marker,
    OpenAudited,
)

__all__ = ["KINDS", "broken", "decision_told"]

KINDS = {"COMMITTED": COMMIT, "ROLLED_BACK": ROLLBACK}
"""What a marker says, in the words of an END."""


def decision_told(event: EndAnswered) -> str | None:
    """Which decision an answer to an END speaks of as made."""
    if event.code == 0 and event.word.says != UNKNOWN:
        return event.word.says
    return {200: COMMIT, 201: ROLLBACK}.get(event.code)


class _Book:
    def __init__(self) -> None:
        self.complaints: list[str] = []
        self._sent: dict[str, HalfSending] = {}
        self._taken: dict[str, HalfTaken] = {}
        self._spoken_of: set[str] = set()
        """Somebody tried to decide them."""
        self._told: dict[str, tuple[float, str]] = {}
        self._parked: dict[str, float] = {}
        self._markers: dict[str, list[tuple[float, tuple[Marker, ...]]]] = {}

    def take(self, event: Event) -> None:
        match event:
            case HalfSending():
                self._sent.setdefault(event.xid, event)
            case HalfTaken():
                known = self._taken.setdefault(event.xid, event)
                if (known.offset, known.position) != (event.offset, event.position):
                    self._complain(event, f"{event.xid} was taken twice, at two places")
            case EndSent() if event.word.says != UNKNOWN:
                self._spoken_of.add(event.xid)
            case EndAnswered():
                told = decision_told(event)
                if told is not None:
                    self._told.setdefault(event.xid, (event.at, told))
            case Asked():
                self._ask(event)
            case Audited():
                self._look_for_told(event)
            case OpenAudited():
                self._look(event)
            case _:
                pass

    def _complain(self, event: Event, what: str) -> None:
        self.complaints.append(f"at {event.at:.6f} {what}")

    def _ask(self, event: Asked) -> None:
        sent, taken = self._sent.get(event.xid), self._taken.get(event.xid)
        if sent is None:
            self._complain(event, f"{event.client} is asked about {event.xid}, never sent")
            return
        shown = (event.topic, event.queue_number, event.body)
        if shown != (sent.queue.topic, sent.queue.number, sent.body):
            self._complain(event, f"{event.client} is shown {event.xid} otherwise than it was sent")
        if event.group != sent.group:
            self._complain(event, f"{event.client} is asked about {event.xid} of {sent.group}")
        if taken and (event.offset, event.position) != (taken.offset, taken.position):
            self._complain(event, f"{event.client} is asked about {event.xid} at another place")

    def _look_for_told(self, event: Audited) -> None:
        keys = {queue: {copy.key for copy in copies} for queue, copies in event.queues.items()}
        for xid, (at, says) in self._told.items():
            queue = self._sent[xid].queue
            if at > event.began or queue.broker != event.broker:
                continue
            is_there = xid in keys.get(queue, ())
            if is_there != (says == COMMIT):
                became = "is visible" if is_there else "is not visible"
                self._complain(event, f"{xid} {became}, told as {says} at {at:.6f}")

    def _look(self, event: OpenAudited) -> None:
        seen = self._markers.setdefault(event.broker, [])
        if not all(self._follow(event, at, before) for at, before in seen):
            self._complain(event, f"{event.broker} has other decisions than before")
        seen.append((event.at, event.markers))
        halves = {copy.offset: copy for copy in event.halves}
        decided = {
            marker.half_offset: KINDS[marker.kind]
            for marker in event.markers
            if marker.kind in KINDS
        }
        for xid, taken in self._taken.items():
            if taken.broker == event.broker and taken.at <= event.began:
                self._look_for(event, taken, decided.get(taken.offset))
                half = halves.get(taken.offset)
                if half is None or (half.key, half.body) != (xid, self._sent[xid].body):
                    self._complain(event, f"the half message of {xid} is gone or changed")
        for xid, standing in event.listed.items():
            half = halves.get(standing.offset)
            if half is None or half.key != xid:
                self._complain(event, f"{xid} is listed, and its half message is not there")
            if standing.is_parked:
                self._parked.setdefault(xid, event.at)
                if event.copies.count(xid) != 1:
                    self._complain(event, f"{xid} is parked, with {event.copies.count(xid)} copies")
            elif self._parked.get(xid, event.began) < event.began:
                self._complain(event, f"{xid} is no longer parked, and nobody decided it")

    def _follow(self, event: OpenAudited, at: float, before: tuple[Marker, ...]) -> bool:
        # With a slow broker, an audit may begin before another one has ended, and may have read
        # the decisions earlier although it ends later.
        least = len(before) if at <= event.began else min(len(before), len(event.markers))
        return event.markers[:least] == before[:least]

    def _look_for(self, event: OpenAudited, taken: HalfTaken, decided: str | None) -> None:
        xid = taken.xid
        listed = event.listed.get(xid)
        told = self._told.get(xid)
        if listed is None and xid not in self._spoken_of:
            self._complain(event, f"{xid} is not open, and nobody decided it")
        if listed and (listed.offset, listed.position) != (taken.offset, taken.position):
            self._complain(event, f"{xid} is listed at another place than it was taken at")
        if told is not None and told[0] <= event.began:
            if listed is not None:
                self._complain(event, f"{xid} is open, told as {told[1]} at {told[0]:.6f}")
            if decided != told[1]:
                self._complain(event, f"{xid} is kept as {decided}, told as {told[1]}")


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    book = _Book()
    for event in events:
        book.take(event)
    return book.complaints
