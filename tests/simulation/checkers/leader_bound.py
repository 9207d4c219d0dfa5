"""A set has a leader soon: after the faults stop, and after the loss of a leader alone."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.copy_history import Bound, Disturbed, LeaderAnswered, MemberLost
from tests.simulation.history import Calm, Event

__all__ = ["broken"]


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    bound_s = float("inf")
    since: float | None = None
    """Since when a leader is wanted that answers what is asked from then on."""
    why = ""
    disturbed: set[str] = set()
    complaints: list[str] = []
    for event in events:
        if since is not None and event.at > since + bound_s:
            complaints.append(f"no leader within {bound_s:g} s after {why} at {since:.6f}")
            since = None
        match event:
            case Bound():
                bound_s = event.seconds
            case Calm():
                since, why = event.at, "the faults stopped"
                disturbed.clear()
            case MemberLost():
                is_simple = event.was_leader and event.has_heir and not disturbed
                since, why = event.at if is_simple else None, f"{event.member} was lost"
            case Disturbed() if event.begins:
                disturbed.add(event.what)
                since = None
            case Disturbed():
                disturbed.discard(event.what)
            case LeaderAnswered() if since is not None and event.asked >= since:
                since = None
            case _:
                pass
    return complaints
