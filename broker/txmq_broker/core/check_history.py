"""The latest checks of transactions: whom the broker asked, when, and the answer. Pure.

The log keeps decisions but no checks, so this history begins anew with each start. It has a fixed
size: a new transaction pushes out the one whose first check is the oldest.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from txmq.limits import CHECKED_TRANSACTIONS_KEPT, CHECKS_KEPT

__all__ = ["DECIDED", "LOST", "SILENT", "UNKNOWN", "CheckHistory", "CheckNote"]

UNKNOWN: Final = "unknown"
"""The producer answered that it has no decision yet."""
SILENT: Final = "silent"
"""The producer was connected and did not answer until the next check."""
LOST: Final = "lost"
"""The connection closed before the answer."""
DECIDED: Final = "decided"
"""A decision came while the check was open."""


class CheckNote(NamedTuple):
    """One check."""

    asked_ms: int
    client_id: str
    address: str
    answer: str = ""
    """Empty while the check is open."""
    answered_ms: int = 0


class CheckHistory:
    """The latest checks of the transactions that were asked about lately."""

    def __init__(self) -> None:
        self._notes: dict[int, deque[CheckNote]] = {}

    def __len__(self) -> int:
        return len(self._notes)

    def note_asked(self, key: int, asked_ms: int, client_id: str, address: str) -> None:
        """Note a check that was sent."""
        notes = self._notes.get(key)
        if notes is None:
            if len(self._notes) >= CHECKED_TRANSACTIONS_KEPT:
                del self._notes[next(iter(self._notes))]
            notes = self._notes[key] = deque(maxlen=CHECKS_KEPT)
        notes.append(CheckNote(asked_ms, client_id, address))

    def note_answer(self, key: int, answer: str, answered_ms: int) -> None:
        """Note how the open check of a transaction ended."""
        notes = self._notes.get(key)
        if notes and not notes[-1].answer:
            notes[-1] = notes[-1]._replace(answer=answer, answered_ms=answered_ms)

    def checks_of(self, key: int) -> tuple[CheckNote, ...]:
        """The latest checks of a transaction, oldest first."""
        return tuple(self._notes.get(key, ()))
