"""What a group is given of a queue for the first time comes in the order of the queue (I6).

Whatever comes out of turn has been given to the group before: it was not committed when a queue
changed hands, or a handler failed.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.client_history import Handling
from tests.simulation.history import Event
from txmq.message import Queue

__all__ = ["broken"]


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    given: dict[tuple[str, Queue], set[int]] = {}
    furthest: dict[tuple[str, Queue], int] = {}
    complaints: list[str] = []
    for event in events:
        if not isinstance(event, Handling):
            continue
        place = event.group, event.queue
        reached = furthest.get(place, -1)
        before = given.setdefault(place, set())
        if event.offset < reached and event.offset not in before:
            complaints.append(
                f"{event.member} is given {event.offset} of {event.queue} for the first time, "
                f"and {event.group} had {reached} before"
            )
        before.add(event.offset)
        furthest[place] = max(reached, event.offset)
    return complaints
