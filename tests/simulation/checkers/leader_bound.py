"""A set has a leader soon: after the faults stop, after the loss of a leader alone, and when all
members and the store are back.

Without faults a leader hands over within a second.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.copy_history import (
    HAND_OVER,
    AllBack,
    Bound,
    Disturbed,
    LeaderAnswered,
    Leading,
    MemberLost,
)
from tests.simulation.history import Calm, Event

__all__ = ["broken"]

HAND_OVER_S = 1.0


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    bound_s = float("inf")
    since: float | None = None
    """Since when a leader is wanted that answers what is asked from then on."""
    why = ""
    is_calm = False
    handing_over: MemberLost | None = None
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
                is_calm = True
            case Leading() if handing_over is not None:
                took = event.at - handing_over.at
                if took > HAND_OVER_S:
                    complaints.append(f"{handing_over.member} took {took:.3f} s to hand over")
                handing_over = None
            case MemberLost():
                is_whole = is_calm and event.was_leader and event.has_heir
                handing_over = event if is_whole and event.how == HAND_OVER else None
                is_simple = event.was_leader and event.has_heir and not disturbed
                since, why = event.at if is_simple else None, f"{event.member} was lost"
            case AllBack() if not disturbed:
                since, why = event.at, "all were back"
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
