"""An offset of a queue has one message for ever, whoever saw it first and whoever leads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.simulation.history import Acknowledged, Audited, Event, Pulled, mark
from txmq.message import Queue

__all__ = ["broken"]


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    known: dict[tuple[Queue, int], str] = {}
    complaints: dict[str, None] = {}
    for event in events:
        for queue, offset, name in _seen(event):
            before = known.setdefault((queue, offset), name)
            if before != name:
                complaints[
                    f"{queue.topic}/{queue.number}@{offset} was {before} and is {name} at "
                    f"{event.at:.6f}"
                ] = None
    return list(complaints)


def _seen(event: Event) -> Iterator[tuple[Queue, int, str]]:
    match event:
        case Acknowledged():
            for index in range(len(event.offset_ids)):
                name = mark(event.send, event.attempt, index)
                yield event.queue, event.offset + index, name
        case Pulled():
            for copy in event.copies:
                yield event.queue, copy.offset, copy.mark
        case Audited():
            for queue, copies in event.queues.items():
                for copy in copies:
                    yield queue, copy.offset, copy.mark
        case _:
            pass
