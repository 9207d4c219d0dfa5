"""I7: a decision never changes. All that a broker says about one transaction fits one decision.

Its answers count, its kept decisions, and what can be read: a success for COMMIT and a success for
ROLLBACK never both, and whoever contradicts is told 200 or 201. An END that makes no sense is
refused with its own code.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.checkers.kept import KINDS, decision_told
from tests.simulation.history import (
    COMMIT,
    ROLLBACK,
    Audited,
    Copy,
    EndAnswered,
    Event,
    HalfSending,
    OpenAudited,
    Pulled,
    WrongEnd,
)

__all__ = ["broken"]

FOR_NOW = (2, 14)
"""The broker is busy, or its disk refuses: neither says anything about a transaction."""

REFUSALS = {"value": 29, "group": 203, "offset": 22, "position": 604}
"""How an END is refused that is wrong in one way."""

CONTRADICTED = {ROLLBACK: 200, COMMIT: 201}
"""What somebody is told who says this and comes too late."""

NOT_OPEN = 22
"""What an operator is told who names a transaction that was decided."""


class _Book:
    def __init__(self) -> None:
        self.complaints: list[str] = []
        self._known: dict[str, tuple[str, str]] = {}
        self._sent: set[str] = set()

    def _learn(self, xid: str, decision: str, how: str) -> None:
        before = self._known.setdefault(xid, (decision, how))
        if before[0] != decision:
            self.complaints.append(f"{xid} is {before[0]} by {before[1]}, and {decision} by {how}")

    def answer(self, event: EndAnswered) -> None:
        word, code, xid = event.word, event.code, event.xid
        allowed = [0, *FOR_NOW]
        if word.says in CONTRADICTED:
            allowed.append(CONTRADICTED[word.says])
        if word.who == "operator":
            allowed.append(NOT_OPEN)
        if code not in allowed:
            self.complaints.append(f"{xid}: {word.says} by a {word.who} was answered {code}")
            return
        told = decision_told(event)
        if told is not None:
            self._learn(xid, told, f"the answer {code} to a {word.who} at {event.at:.6f}")

    def refuse(self, event: WrongEnd) -> None:
        if event.code not in (REFUSALS[event.how], *FOR_NOW):
            self.complaints.append(f"{event.xid}: a wrong {event.how} was answered {event.code}")

    def send(self, event: HalfSending) -> None:
        self._sent.add(event.xid)

    def see(self, copies: Iterable[Copy], at: float) -> None:
        for copy in copies:
            if copy.key in self._sent:
                self._learn(copy.key, COMMIT, f"what is visible at {at:.6f}")

    def look(self, event: OpenAudited) -> None:
        keys = {half.offset: half.key for half in event.halves}
        over: set[int] = set()
        for marker in event.markers:
            where = f"{event.broker}'s half message at {marker.half_offset}"
            xid = keys.get(marker.half_offset, where)
            if marker.half_offset in over:
                self.complaints.append(f"{xid} has a decision after its decision: {marker.kind}")
            if marker.kind in KINDS:
                over.add(marker.half_offset)
                self._learn(xid, KINDS[marker.kind], f"a marker seen at {event.at:.6f}")


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    book = _Book()
    for event in events:
        match event:
            case HalfSending():
                book.send(event)
            case EndAnswered():
                book.answer(event)
            case WrongEnd():
                book.refuse(event)
            case Pulled():
                book.see(event.copies, event.at)
            case Audited():
                for copies in event.queues.values():
                    book.see(copies, event.at)
            case OpenAudited():
                book.look(event)
            case _:
                pass
    return book.complaints
