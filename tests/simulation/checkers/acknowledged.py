"""I3: what was acknowledged, or shown to anybody, is there after every restart, just as it was.

A promise is an acknowledgement (queue, offset, offset id, body) or a copy that somebody got. Every
audit that begins later must find each promise of its broker. Also: what was stored is what was
sent, an attempt is stored once at most, and one whose error says "nothing was stored" nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tests.simulation.history import (
    Acknowledged,
    Audited,
    Copy,
    Event,
    Found,
    HalfSending,
    Pulled,
    Refused,
    Sending,
    half_mark,
    mark,
)
from txmq.errors import Effect
from txmq.message import Queue

__all__ = ["broken"]


class _Promise(NamedTuple):
    offset_id: str
    mark: str
    at: float
    by: str


class _Book:
    """What was sent and what was promised so far."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self._bodies: dict[str, bytes] = {}
        self._refused: dict[str, str] = {}
        self._places: dict[str, tuple[Queue, int]] = {}
        self._promises: dict[str, dict[tuple[Queue, int], _Promise]] = {}

    def send(self, event: Sending) -> None:
        for index, body in enumerate(event.bodies):
            self._bodies[mark(event.send, event.attempt, index)] = body

    def send_half(self, event: HalfSending) -> None:
        self._bodies[half_mark(event.xid)] = event.body

    def refuse(self, event: Refused) -> None:
        if event.effect is Effect.NONE:
            index = 0
            while (name := mark(event.send, event.attempt, index)) in self._bodies:
                self._refused[name] = event.reason
                if name in self._places:
                    self._complain_of_refused(name)
                index += 1

    def acknowledge(self, event: Acknowledged) -> None:
        for index, offset_id in enumerate(event.offset_ids):
            name = mark(event.send, event.attempt, index)
            place = (event.queue, event.offset + index)
            self._promise(place, _Promise(offset_id, name, event.at, "acknowledged"))

    def see(self, queue: Queue, copy: Copy, at: float) -> None:
        place = (queue, copy.offset)
        if self._bodies.get(copy.mark) != copy.body:
            known = "sent otherwise" if copy.mark in self._bodies else "never sent"
            self.complaints.append(f"{_where(place)} holds {copy.mark!r}, which was {known}")
        before = self._places.setdefault(copy.mark, place)
        if before != place:
            self.complaints.append(
                f"{copy.mark} is stored twice: {_where(before)}, {_where(place)}"
            )
        if copy.mark in self._refused:
            self._complain_of_refused(copy.mark)
        self._promise(place, _Promise(copy.offset_id, copy.mark, at, "shown"))

    def audit(self, event: Audited) -> None:
        for queue, copies in event.queues.items():
            for copy in copies:
                self.see(queue, copy, event.at)
        for place, promise in self._promises.get(event.broker, {}).items():
            if promise.at > event.began:
                continue
            queue, offset = place
            copies = event.queues.get(queue, ())
            # An audit is in order of offsets; a gap is for another checker to find, too.
            at = offset - copies[0].offset if copies else -1
            if not 0 <= at < len(copies) or copies[at].offset != offset:
                self.complaints.append(
                    f"{promise.mark}, {promise.by} at {promise.at:.6f}, is gone from "
                    f"{_where(place)} in the audit of {event.broker} at {event.began:.6f}"
                )

    def find(self, event: Found) -> None:
        if event.copy is None:
            self.complaints.append(f"{event.wanted} is not found by {event.how}")
        elif event.copy.offset_id != event.offset_id:
            self.complaints.append(
                f"{event.wanted} is found by {event.how} as {event.copy.offset_id}, "
                f"not as {event.offset_id}"
            )

    def _promise(self, place: tuple[Queue, int], promise: _Promise) -> None:
        made = self._promises.setdefault(place[0].broker, {})
        before = made.setdefault(place, promise)
        if before[:2] != promise[:2]:
            self.complaints.append(
                f"{_where(place)} was {before.by} as {before.mark} ({before.offset_id}) at "
                f"{before.at:.6f} and {promise.by} as {promise.mark} ({promise.offset_id}) at "
                f"{promise.at:.6f}"
            )

    def _complain_of_refused(self, name: str) -> None:
        self.complaints.append(
            f"{name} is stored at {_where(self._places[name])}, though it was refused with "
            f"nothing done: {self._refused[name]}"
        )


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    book = _Book()
    for event in events:
        match event:
            case Sending():
                book.send(event)
            case HalfSending():
                book.send_half(event)
            case Refused():
                book.refuse(event)
            case Acknowledged():
                book.acknowledge(event)
            case Pulled():
                for copy in event.copies:
                    book.see(event.queue, copy, event.at)
            case Audited():
                book.audit(event)
            case Found():
                book.find(event)
            case _:
                pass
    return book.complaints


def _where(place: tuple[Queue, int]) -> str:
    queue, offset = place
    return f"{queue.topic}/{queue.broker}/{queue.number}@{offset}"
