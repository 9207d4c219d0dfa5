"""No group is said to have come further than it has.

Where somebody commits an offset, or a broker shows one, everything acknowledged before it has been
handled; and when all have left in order, everything that was handled has been committed.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.client_history import (
    Buried,
    Committing,
    Grouped,
    Handled,
    Sent,
    Standing,
)
from tests.simulation.delivery_history import DONE, Returned
from tests.simulation.history import Event
from txmq.message import Queue

__all__ = ["broken"]

Place = tuple[str, Queue]


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    groups: dict[str, Grouped] = {}
    sent: dict[Queue, dict[int, str]] = {}
    handled: dict[Place, dict[int, int]] = {}
    said: list[tuple[int, str, Committing | Standing]] = []
    gone: set[str] = set()
    for number, event in enumerate(events):
        match event:
            case Grouped():
                groups[event.group] = event
            case Sent():
                sent.setdefault(event.queue, {})[event.offset] = event.tags
            case Handled() if event.is_done or not groups[event.group].is_orderly:
                # A failed message may have been handed back to the broker, unless order forbids it.
                known = handled.setdefault((event.group, event.queue), {})
                known.setdefault(event.offset, number)
            case Returned() if event.answer == DONE:
                known = handled.setdefault((event.group, event.queue), {})
                known.setdefault(event.offset, number)
            case Committing():
                said.append((number, f"{event.member} commits", event))
            case Standing():
                said.append((number, "the broker shows", event))
            case Buried():
                gone.add(event.broker)
            case _:
                pass
    return [
        complaint
        for number, who, event in said
        for complaint in _judge(number, who, event, groups[event.group], sent, handled, gone)
    ]


def _judge(number, who, event, group, sent, handled, gone) -> list[str]:
    reached = event.offset or 0
    known = handled.get((event.group, event.queue), {})
    wanted = [
        offset
        for offset, tags in sorted(sent.get(event.queue, {}).items())
        if group.tags in {"*", tags}
    ]
    early = [
        wanted_offset
        for wanted_offset in wanted
        if wanted_offset < reached and known.get(wanted_offset, number) >= number
    ]
    complaints = []
    if early:
        complaints.append(
            f"{who} {reached} of {event.queue} for {event.group}, which has not handled {early[0]}"
        )
    is_last = isinstance(event, Standing) and event.is_last and event.queue.broker not in gone
    if is_last and wanted and reached <= wanted[-1]:
        complaints.append(
            f"all of {event.group} have left, and {event.queue} stands at {reached} "
            f"though {wanted[-1]} was handled"
        )
    return complaints
