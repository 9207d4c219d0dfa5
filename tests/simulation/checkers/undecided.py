"""I5: in the end every transaction is decided, or parked where an operator sees it; and soon.

None is silently discarded, and none is decided by nobody.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.checkers.kept import KINDS
from tests.simulation.history import (
    Calm,
    Ended,
    EndSent,
    Event,
    HalfSending,
    HalfTaken,
    OpenAudited,
    Patience,
)

__all__ = ["broken"]


class _Book:
    def __init__(self) -> None:
        self.calm_at: float | None = None
        self.patience_s: float | None = None
        self.is_over = False
        self.sent: dict[str, HalfSending] = {}
        self.taken: dict[str, HalfTaken] = {}
        self.words: dict[str, set[str]] = {}
        self.last: dict[str, OpenAudited] = {}
        self.settled_at: dict[str, float] = {}

    def take(self, event: Event) -> None:
        match event:
            case Calm():
                self.calm_at = event.at
            case Patience():
                self.patience_s = event.seconds
            case Ended():
                self.is_over = True
            case HalfSending():
                self.sent.setdefault(event.xid, event)
            case HalfTaken():
                self.taken.setdefault(event.xid, event)
            case EndSent():
                self.words.setdefault(event.xid, set()).add(event.word.says)
            case OpenAudited():
                self.last[event.broker] = event
                is_settled = all(standing.is_parked for standing in event.listed.values())
                if self.calm_at is not None and is_settled and not self.is_over:
                    self.settled_at.setdefault(event.broker, event.at)
            case _:
                pass

    def judge(self) -> list[str]:
        if not self.sent:
            return []
        if self.calm_at is None or self.patience_s is None or not self.is_over:
            return ["the run did not come to its end"]
        complaints: list[str] = []
        for broker in sorted({sent.queue.broker for sent in self.sent.values()}):
            if broker not in self.last:
                return [f"nobody looked at the transactions of {broker}"]
            complaints += self._judge_open(self.last[broker])
            complaints += self._judge_markers(self.last[broker])
            took = self.settled_at.get(broker, float("inf")) - self.calm_at
            if took > self.patience_s:
                complaints.append(f"{broker} took {took:.1f} s to settle its transactions")
        return complaints

    def _judge_open(self, event: OpenAudited) -> list[str]:
        complaints = [
            f"{xid} is neither decided nor parked"
            for xid, standing in event.listed.items()
            if not standing.is_parked
        ]
        parked = {xid for xid, standing in event.listed.items() if standing.is_parked}
        if parked != set(event.parked) or len(event.parked) != len(parked):
            wrong = sorted(parked ^ set(event.parked))
            complaints.append(f"the list of the parked of {event.broker} is wrong about {wrong}")
        decided = {marker.half_offset for marker in event.markers if marker.kind in KINDS}
        complaints += [
            f"{xid} is gone and was never decided"
            for xid, taken in self.taken.items()
            if taken.broker == event.broker
            and xid not in event.listed
            and taken.offset not in decided
        ]
        return complaints

    def _judge_markers(self, event: OpenAudited) -> list[str]:
        keys = {half.offset: half.key for half in event.halves}
        complaints: list[str] = []
        for marker in event.markers:
            said = KINDS.get(marker.kind)
            xid = keys.get(marker.half_offset, f"the half message at {marker.half_offset}")
            if said is not None and said not in self.words.get(xid, ()):
                complaints.append(f"{xid} was decided, {said}, and nobody had said so")
        return complaints


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    book = _Book()
    for event in events:
        book.take(event)
    return book.judge()
