"""A client that leaves in order leaves nothing behind and takes no longer than allowed."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.client_history import Left
from tests.simulation.history import Event

__all__ = ["LEAVE_S", "broken"]

LEAVE_S = 30.0
"""What a stop may take beside the time for handlers: offsets, locks and goodbyes to brokers that do
not answer, each after connects and lookups that do not succeed."""


def broken(events: Iterable[Event], *, leave_s: float = LEAVE_S) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    complaints: list[str] = []
    for event in events:
        if isinstance(event, Left):
            complaints += [f"{event.member} has left, and {task} runs on" for task in event.tasks]
            if event.asked:
                complaints.append(f"{event.member} has left, and {event.asked} requests wait")
            if event.open:
                complaints.append(f"{event.member} has left {event.open} connections open")
            if event.took_s > leave_s:
                complaints.append(f"{event.member} took {event.took_s:.1f} s to leave")
    return complaints
