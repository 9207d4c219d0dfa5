"""A leader that can write nothing costs the set no more than a lease and a moment.

Where another member is up that has everything, and nothing else goes wrong, a send that is begun
after the leader's writes began to fail succeeds within the bound.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.copy_history import Bound, Disturbed, MemberLost, WritesFail
from tests.simulation.history import Acknowledged, Calm, Event, Sending

__all__ = ["broken"]


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    bound_s = float("inf")
    failing: WritesFail | None = None
    disturbed: set[str] = set()
    begun: dict[str, float] = {}
    complaints: list[str] = []
    for event in events:
        if failing is not None and event.at > failing.at + bound_s:
            complaints.append(
                f"no send succeeds within {bound_s:g} s after the writes of {failing.member} "
                f"began to fail at {failing.at:.6f}"
            )
            failing = None
        match event:
            case Bound():
                bound_s = event.seconds
            case WritesFail() if event.has_heir and not disturbed:
                failing = event
            case MemberLost() | Calm():
                failing = None
            case Disturbed() if event.begins:
                disturbed.add(event.what)
                failing = None
            case Disturbed():
                disturbed.discard(event.what)
            case Sending():
                begun[event.send] = event.at
            case Acknowledged() if failing is not None and begun[event.send] >= failing.at:
                failing = None
            case _:
                pass
    return complaints
