"""Recovering twice equals recovering once.

However a broker comes up after a crash, it finds the same log, the same queues, the same open
transactions and the same messages that wait for their time: when it is stopped and started again,
when the power goes once more in the middle of recovery, and when its indexes are gone and made
anew. Only the first recovery may have anything to cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.simulation.history import Event, Recovered, Shape

__all__ = ["AGAIN", "broken"]

AGAIN = "again"
"""The way that follows a whole recovery: nothing is left to cut."""


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    complaints: list[str] = []
    for event in events:
        if isinstance(event, Recovered):
            for way, shape in event.others.items():
                where = f"{event.broker} at {event.at:.6f}, recovered {way}"
                complaints += [
                    f"{where}: {difference}" for difference in _differences(event.once, shape)
                ]
                if way == AGAIN and shape.cut_bytes:
                    complaints.append(f"{where}: {shape.cut_bytes} bytes were cut again")
    return complaints


def _differences(once: Shape, other: Shape) -> Iterator[str]:
    for kind, first, second in (
        ("file", once.log, other.log),
        ("queue", once.queues, other.queues),
        ("open transaction", once.open, other.open),
        ("waiting message", once.waiting, other.waiting),
    ):
        for name in sorted({*first, *second}, key=str):
            if first.get(name) != second.get(name):
                yield f"{kind} {name} is {second.get(name)}, was {first.get(name)} at first"
