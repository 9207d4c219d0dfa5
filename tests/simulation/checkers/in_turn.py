"""An orderly group handles each queue by one member at a time, and never goes backwards.

A member that takes a queue over asks first where the group stands, after the one before it has come
to its end, and goes on there. It may do so again, if it lost the queue for a while. A broker that
went down has lost its locks, and for as long as members rely on those nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.simulation.client_history import Grouped, Handled, Handling, Loaded
from tests.simulation.history import ClientDown, Down, Event
from txmq.message import Queue

__all__ = ["EXCUSED_S", "broken"]

EXCUSED_S = 40.0
"""How long a lock is relied on that its broker does not know any more, and a handler's time."""


@dataclass(slots=True)
class _Turn:
    """Whoever handles one queue for one group."""

    member: str = ""
    client: str = ""
    is_at_work: bool = False
    ended_at: float = 0.0
    last: int = -1
    loaded: dict[str, tuple[float, int]] = field(default_factory=dict)
    """When each member last asked where the group stands, and what it was told."""


class _State:
    def __init__(self) -> None:
        self.orderly: set[str] = set()
        self.turns: dict[tuple[str, Queue], _Turn] = {}
        self.went_down: dict[str, float] = {}
        self.complaints: list[str] = []

    def turn(self, group: str, queue: Queue) -> _Turn:
        return self.turns.setdefault((group, queue), _Turn())

    def is_excused(self, broker: str, now: float) -> bool:
        return now - self.went_down.get(broker, -EXCUSED_S) < EXCUSED_S

    def begin(self, event: Handling) -> None:
        turn = self.turn(event.group, event.queue)
        what = f"{event.member} handles {event.offset} of {event.queue}"
        complaints: list[str] = []
        began, told = turn.loaded.get(event.member, (-1.0, 0))
        if turn.is_at_work:
            complaints.append(f"{what} while {turn.member} is at it")
        if began < 0:
            complaints.append(f"{what} and never asked where the group stands")
        elif turn.member and turn.member != event.member and began < turn.ended_at:
            complaints.append(f"{what} and asked before {turn.member} had ended")
        # A fresh look begins a fresh turn.
        least = told if turn.member != event.member or began >= turn.ended_at else turn.last
        if event.offset < max(least, told):
            complaints.append(f"{what}, though it has come to {max(least, told)}")
        if complaints and not self.is_excused(event.queue.broker, event.at):
            self.complaints += complaints
        turn.member, turn.client, turn.is_at_work = event.member, event.client, True
        turn.last = event.offset

    def end(self, event: Handled) -> None:
        turn = self.turn(event.group, event.queue)
        if turn.member == event.member:
            turn.is_at_work = False
            turn.ended_at = event.at

    def down(self, event: ClientDown) -> None:
        for turn in self.turns.values():
            if turn.client == event.client and turn.is_at_work:
                turn.is_at_work = False
                turn.ended_at = event.at


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    state = _State()
    for event in events:
        match event:
            case Grouped() if event.is_orderly:
                state.orderly.add(event.group)
            case Down():
                state.went_down[event.broker] = event.at
            case ClientDown():
                state.down(event)
            case Loaded() if event.group in state.orderly:
                turn = state.turn(event.group, event.queue)
                turn.loaded[event.member] = (event.began, event.offset or 0)
            case Handling() if event.group in state.orderly:
                state.begin(event)
            case Handled() if event.group in state.orderly:
                state.end(event)
            case _:
                pass
    return state.complaints
