"""I6: within a queue, order is the order of storing, and nobody is led backwards or past anything.

A group reads a queue without gaps from where it began; it begins again at an offset it committed,
no further back than what the broker has had time to save. Offsets are dense and rise with the
position in the log and with the time of storing. What was acknowledged before an attempt began
comes before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.simulation.history import (
    Acknowledged,
    Audited,
    Began,
    Committed,
    Committing,
    Copy,
    Down,
    Event,
    Moved,
    Pulled,
    Sending,
)
from txmq.message import Queue

__all__ = ["SAVED_S", "broken"]

SAVED_S = 30.0
"""A commit older than this when its broker goes down was saved, whatever the disk did since."""

ALL = "*"


@dataclass(slots=True)
class _Reader:
    """One group in one queue."""

    tags: str = ALL
    next_offset: int | None = None
    last_position: int = -1
    tried: int = 0
    """The largest offset it ever tried to commit."""
    trying: int | None = None
    """What it tries to commit; nothing any more once the broker went down under it."""
    committed: list[tuple[float, int]] = field(default_factory=list)
    """What the broker took, since it last went down."""
    kept: int = 0
    """What the broker must have kept when it last went down."""


class _Watch:
    def __init__(self, saved_s: float) -> None:
        self.complaints: list[str] = []
        self._saved_s = saved_s
        self._readers: dict[tuple[str, Queue], _Reader] = {}
        self._skipped: list[tuple[str, str, Queue, int]] = []
        self._tags: dict[tuple[Queue, int], str] = {}
        self._acknowledged: dict[Queue, int] = {}
        self._floors: dict[tuple[str, int], dict[Queue, int]] = {}

    def _reader(self, group: str, queue: Queue) -> _Reader:
        return self._readers.setdefault((group, queue), _Reader())

    # Groups

    def begin(self, event: Began) -> None:
        reader = self._reader(event.group, event.queue)
        least = max([reader.kept, *[offset for _, offset in reader.committed]])
        if event.offset < least:
            self._complain(event, f"begins at {event.offset} though {least} was committed")
        if event.offset > reader.tried:
            self._complain(event, f"begins at {event.offset}, never committed past {reader.tried}")
        reader.tags = event.tags
        reader.next_offset = event.offset
        reader.last_position = -1

    def pull(self, event: Pulled) -> None:
        reader = self._reader(event.group, event.queue)
        if event.offset != reader.next_offset:
            self._complain(event, f"pulls from {event.offset}, not from {reader.next_offset}")
        at = event.offset
        for copy in event.copies:
            if not at <= copy.offset < event.next_offset:
                self._complain(
                    event, f"gets {copy.offset} where {at} to {event.next_offset} is due"
                )
            self._skip(event, reader, at, copy.offset)
            if copy.position <= reader.last_position:
                self._complain(event, f"gets {copy.offset}, stored before what it got last")
            reader.last_position = copy.position
            at = copy.offset + 1
        self._skip(event, reader, at, event.next_offset)
        if event.next_offset < event.offset:
            self._complain(event, f"is sent back from {event.offset} to {event.next_offset}")
        reader.next_offset = event.next_offset

    def _skip(self, event: Pulled, reader: _Reader, start: int, end: int) -> None:
        for offset in range(start, end):
            if reader.tags == ALL:
                self._complain(event, f"is led past {offset}")
            else:
                self._skipped.append((event.group, reader.tags, event.queue, offset))

    def move(self, event: Moved) -> None:
        self._complain(event, f"is told that {event.offset} is not there; try {event.next_offset}")

    def commit(self, event: Committing) -> None:
        reader = self._reader(event.group, event.queue)
        reader.tried = max(reader.tried, event.offset)
        reader.trying = event.offset

    def committed(self, event: Committed) -> None:
        reader = self._reader(event.group, event.queue)
        if reader.trying == event.offset:
            reader.committed.append((event.at, event.offset))

    def down(self, event: Down) -> None:
        for (_, queue), reader in self._readers.items():
            if queue.broker != event.broker:
                continue
            for at, offset in reader.committed:
                if event.kept or at <= event.at - self._saved_s:
                    reader.kept = max(reader.kept, offset)
            reader.committed.clear()
            reader.trying = None

    def _complain(self, event: Began | Pulled | Moved, what: str) -> None:
        self.complaints.append(f"{event.group} in {_name(event.queue)} at {event.at:.6f} {what}")

    # Queues

    def send(self, event: Sending) -> None:
        self._floors[event.send, event.attempt] = dict(self._acknowledged)

    def acknowledge(self, event: Acknowledged) -> None:
        floor = self._floors.get((event.send, event.attempt), {}).get(event.queue, -1)
        if event.offset <= floor:
            self.complaints.append(
                f"{event.send}#{event.attempt} got {_name(event.queue)}@{event.offset} though "
                f"{floor} was acknowledged before it was sent"
            )
        last = event.offset + len(event.offset_ids) - 1
        self._acknowledged[event.queue] = max(last, self._acknowledged.get(event.queue, -1))

    def audit(self, event: Audited) -> None:
        whole: list[tuple[Copy, str]] = []
        for queue, copies in event.queues.items():
            name = _name(queue)
            for expected, copy in enumerate(copies):
                self._tags[queue, copy.offset] = copy.tags
                if copy.offset != expected:
                    self.complaints.append(
                        f"{name} has {copy.offset} where {expected} is due, at {event.at:.6f}"
                    )
            for before, after in zip(copies, copies[1:], strict=False):
                if after.position <= before.position:
                    self.complaints.append(
                        f"{name}@{after.offset} was stored before {name}@{before.offset}"
                    )
            whole += [(copy, name) for copy in copies]
        whole.sort(key=lambda pair: pair[0].position)
        for (before, first), (after, second) in zip(whole, whole[1:], strict=False):
            if after.stored_ms < before.stored_ms:
                self.complaints.append(
                    f"{second}@{after.offset} has an earlier time than {first}@{before.offset}, "
                    "which lies before it in the log"
                )

    def judge_skipped(self) -> None:
        for group, tags, queue, offset in self._skipped:
            found = self._tags.get((queue, offset))
            if found == tags:
                self.complaints.append(
                    f"{group} in {_name(queue)} was led past {offset}, tagged {found}"
                )


def broken(events: Iterable[Event], *, saved_s: float = SAVED_S) -> list[str]:
    """What is wrong with a history; empty where nothing is.

    Args:
        events: The history.
        saved_s: After how long a commit must have been saved.
    """
    watch = _Watch(saved_s)
    for event in events:
        match event:
            case Began():
                watch.begin(event)
            case Pulled():
                watch.pull(event)
            case Moved():
                watch.move(event)
            case Committing():
                watch.commit(event)
            case Committed():
                watch.committed(event)
            case Down():
                watch.down(event)
            case Sending():
                watch.send(event)
            case Acknowledged():
                watch.acknowledge(event)
            case Audited():
                watch.audit(event)
            case _:
                pass
    watch.judge_skipped()
    return watch.complaints


def _name(queue: Queue) -> str:
    return f"{queue.topic}/{queue.broker}/{queue.number}"
