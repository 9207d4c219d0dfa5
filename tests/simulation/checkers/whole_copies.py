"""A damaged copy is repaired, or out of the in-sync set, soon after the damage.

Unless something else went wrong in that time. That all damage is mended in the end, the checker of
identical logs says.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.copy_history import (
    Damaged,
    Disturbed,
    MemberLost,
    Mended,
    SetChanged,
    WritesFail,
)
from tests.simulation.copy_node import machine_of
from tests.simulation.history import Event

__all__ = ["SOON_S", "broken"]

SOON_S = 15.0
"""The pause between two rounds of verification, a round, and the time to hand over."""


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    damaged: dict[str, float] = {}
    in_sync: set[str] = set()
    disturbed: set[str] = set()
    complaints: list[str] = []
    for event in events:
        late = [name for name, at in damaged.items() if event.at > at + SOON_S and name in in_sync]
        for name in late:
            complaints.append(
                f"{name} is in sync at {event.at:.6f}, and damaged since {damaged.pop(name):.6f}"
            )
        match event:
            case Damaged() if not disturbed:
                damaged[event.member] = event.at
            case Mended():
                damaged.pop(event.member, None)
            case SetChanged():
                in_sync = {machine_of(member) for member in event.in_sync}
            case MemberLost() | WritesFail():
                damaged.clear()
            case Disturbed() if event.begins:
                disturbed.add(event.what)
                damaged.clear()
            case Disturbed():
                disturbed.discard(event.what)
            case _:
                pass
    return complaints
