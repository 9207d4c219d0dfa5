"""An answer has its copies: ``min_in_sync`` disks hold the message, and those of all in sync do.

A disk holds what it keeps after a loss of power. A member that lost its disk or a part of it after
the request had begun may have had a copy.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.copy_history import LOSE_COPIES, CopiesCounted, MemberLost
from tests.simulation.history import Event, HalfSending, Sending

__all__ = ["broken"]


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    began: dict[str, float] = {}
    losses: list[MemberLost] = []
    complaints: list[str] = []
    for event in events:
        match event:
            case Sending():
                began[event.send] = event.at
            case HalfSending():
                began[event.xid] = event.at
            case MemberLost() if event.how in LOSE_COPIES:
                losses.append(event)
            case CopiesCounted():
                since = began.get(event.message, 0.0)
                gone = [loss.member for loss in losses if loss.at >= since]
                lacking = [member for member in event.lacking if member not in gone]
                if event.copies + len(gone) < event.least:
                    complaints.append(
                        f"{event.message} was answered at {event.at:.6f} with {event.copies} "
                        f"copies, and {event.least} are needed"
                    )
                if lacking:
                    complaints.append(
                        f"{event.message} was answered at {event.at:.6f}, and "
                        f"{', '.join(lacking)} in sync had no copy"
                    )
            case _:
                pass
    return complaints
