"""A member that an operator removed neither leads nor counts as in sync until it is let back."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.copy_history import SetChanged
from tests.simulation.copy_node import machine_of
from tests.simulation.history import Event

__all__ = ["broken"]


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    complaints: list[str] = []
    for event in events:
        if not isinstance(event, SetChanged):
            continue
        in_sync = {machine_of(member) for member in event.in_sync}
        for member in event.removed:
            if machine_of(event.leader) == member:
                complaints.append(f"{member}, which was removed, leads at {event.at:.6f}")
            if member in in_sync:
                complaints.append(f"{member}, which was removed, is in sync at {event.at:.6f}")
    return complaints
