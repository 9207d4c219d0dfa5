"""What a consumer read from a follower is in the log in the end, at the same place.

No fail-over cuts what a follower has shown, also if producers are answered before it has a copy.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.copy_history import FollowerRead
from tests.simulation.history import Audited, Copy, Event
from txmq.message import Queue

__all__ = ["broken"]


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    shown: dict[tuple[Queue, int], tuple[Copy, FollowerRead]] = {}
    complaints: list[str] = []
    last: Audited | None = None
    for event in events:
        match event:
            case FollowerRead():
                for copy in event.copies:
                    first, _ = shown.setdefault((event.queue, copy.offset), (copy, event))
                    if first != copy:
                        complaints.append(
                            f"{event.member} showed another message at {event.queue} "
                            f"{copy.offset} at {event.at:.6f}"
                        )
            case Audited():
                last = event
            case _:
                pass
    if last is None:
        return complaints
    kept = {(queue, copy.offset): copy for queue, copies in last.queues.items() for copy in copies}
    for (queue, offset), (copy, read) in shown.items():
        if kept.get((queue, offset)) != copy:
            complaints.append(
                f"{read.member} showed {copy.mark} at {queue} {offset} at {read.at:.6f}, and the "
                "log does not have it there in the end"
            )
    return complaints
