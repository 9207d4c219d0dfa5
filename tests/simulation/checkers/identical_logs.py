"""When all members are in sync, their logs are the same, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.copy_history import CopyRead
from tests.simulation.history import Event

__all__ = ["broken"]


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    first: CopyRead | None = None
    complaints: list[str] = []
    for event in events:
        if not isinstance(event, CopyRead):
            continue
        if first is None or first.at != event.at:
            first = event
        for name in sorted({*first.files, *event.files}):
            one, other = first.files.get(name), event.files.get(name)
            if one != other:
                complaints.append(
                    f"{name} is {other} at {event.member} and {one} at {first.member}, as size and "
                    f"checksum at {event.at:.6f}"
                )
    return complaints if first else ["the logs were not compared"]
