"""Only the leader answers: a member that answers led at some time after the request.

A member whose lease is over, or that does not know that another epoch has begun, must not answer.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.copy_history import LeaderAnswered, SetChanged
from tests.simulation.copy_node import machine_of
from tests.simulation.history import Event

__all__ = ["broken"]


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    ended: dict[str, float] = {}
    leader, epoch = "", 0
    is_over = True
    """Whether the next leadership must have a newer epoch."""
    complaints: list[str] = []
    for event in events:
        match event:
            case SetChanged() if event.epoch < epoch and not event.leader:
                # The store lost its data. Its leader leads until its lease is over.
                is_over = True
            case SetChanged():
                if event.epoch < epoch or (event.epoch == epoch and is_over and event.leader):
                    complaints.append(f"{event.leader} leads again in epoch {event.epoch}")
                if leader and event.leader != leader:
                    ended[machine_of(leader)] = event.at
                leader, epoch = event.leader, max(event.epoch, epoch)
                is_over = not leader
            case LeaderAnswered() if machine_of(leader) != event.member:
                last = ended.get(event.member)
                if last is None or last < event.asked:
                    complaints.append(
                        f"{event.member} answered at {event.at:.6f} what it was asked at "
                        f"{event.asked:.6f}, and it does not lead since {last or 0.0:.6f}"
                    )
            case _:
                pass
    return complaints
