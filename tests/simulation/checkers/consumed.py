"""Every acknowledged message is handled by every group that wants it, and all comes to rest soon.

What lies at a broker that never comes back is excused.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.client_history import Buried, Grouped, Handled, Sent
from tests.simulation.history import Calm, Ended, Event
from txmq.message import Queue
from txmq.protocol.topics import RETRY

__all__ = ["SOON_S", "broken"]

SOON_S = 180.0
"""How long it may take: locks of the dead run out after 60 s, and connections take their time."""


def broken(events: Iterable[Event], *, soon_s: float = SOON_S) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    groups: dict[str, Grouped] = {}
    sent: list[Sent] = []
    done: set[tuple[str, Queue, int]] = set()
    again: set[tuple[str, str]] = set()
    gone: set[str] = set()
    calm_at = ended_at = None
    for event in events:
        match event:
            case Grouped():
                groups[event.group] = event
            case Sent():
                sent.append(event)
            case Handled() if event.is_done:
                done.add((event.group, event.queue, event.offset))
                if event.queue.topic.startswith(RETRY):
                    again.add((event.group, event.key))
            case Buried():
                gone.add(event.broker)
            case Calm():
                calm_at = event.at
            case Ended():
                ended_at = event.at
            case _:
                pass
    if calm_at is None or ended_at is None:
        return ["the run did not come to its end"]
    complaints = [
        f"{group.group} never handled {message.key} at {message.offset} of {message.queue}"
        for group in groups.values()
        for message in sent
        if group.tags in {"*", message.tags}
        and message.queue.broker not in gone
        and (group.group, message.queue, message.offset) not in done
        and (group.group, message.key) not in again
    ]
    if ended_at - calm_at > soon_s:
        complaints.append(f"it took {ended_at - calm_at:.1f} s to come to rest")
    return complaints
