"""Once nothing goes wrong any more, everything works again, and soon.

Every broker serves, every send is acknowledged in the end, every queue takes messages, every group
comes to the end of every queue it reads, and the run ends.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import (
    Acknowledged,
    Began,
    Calm,
    ClientDown,
    Down,
    Ended,
    Event,
    Pulled,
    QueueEnd,
    Sending,
    Serving,
)
from txmq.message import Queue

__all__ = ["SOON_S", "broken"]

SOON_S = 180.0
"""How long it may take: lost connections, a route to be learnt again, and the backlog."""


class _State:
    def __init__(self) -> None:
        self.calm_at: float | None = None
        self.ended_at: float | None = None
        self.up: dict[str, bool] = {}
        self.open: dict[str, str] = {}
        self.reached: dict[tuple[str, Queue], int] = {}
        self.ends: dict[Queue, int] = {}
        self.served: set[Queue] = set()

    def take(self, event: Event) -> None:
        if self.ended_at is not None:
            return
        match event:
            case Calm():
                self.calm_at = event.at
                self.served.clear()
            case Ended():
                self.ended_at = event.at
            case Serving():
                self.up[event.broker] = True
            case Down():
                self.up[event.broker] = False
            case Sending() if event.answered:
                self.open[event.send] = event.client
            case Acknowledged():
                self.open.pop(event.send, None)
                self.served.add(event.queue)
            case ClientDown():
                self.open = {s: client for s, client in self.open.items() if client != event.client}
            case Began():
                self.reached[event.group, event.queue] = event.offset
            case Pulled():
                self.reached[event.group, event.queue] = event.next_offset
            case QueueEnd():
                self.ends[event.queue] = event.offset
            case _:
                pass


def broken(events: Iterable[Event], *, soon_s: float = SOON_S) -> list[str]:
    """What is wrong with a history; empty where nothing is.

    Args:
        events: The history.
        soon_s: How long it may take to settle.
    """
    state = _State()
    for event in events:
        state.take(event)
    if state.calm_at is None or state.ended_at is None:
        return ["the run did not come to its end"]
    complaints = [f"{broker} stays down" for broker, is_up in state.up.items() if not is_up]
    complaints += [f"{send} was never acknowledged" for send in state.open]
    took = state.ended_at - state.calm_at
    if took > soon_s:
        complaints.append(f"it took {took:.1f} s to settle")
    for queue, end in state.ends.items():
        name = f"{queue.topic}/{queue.broker}/{queue.number}"
        if queue not in state.served:
            complaints.append(f"{name} takes no messages")
        complaints += [
            f"{group} stays at {reached} in {name}, which ends at {end}"
            for (group, read), reached in state.reached.items()
            if read == queue and reached < end
        ]
    return complaints
