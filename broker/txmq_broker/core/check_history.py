"""The latest checks of transactions: whom the broker asked, when, the answer, and which person
wanted the check. Pure.

The log keeps decisions but no checks, so this history begins anew with each start. It has a fixed
size: a new transaction pushes out the one whose first check is the oldest.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple, TypeVar

from txmq.limits import CHECKED_TRANSACTIONS_KEPT, CHECKS_KEPT, RECHECKS_KEPT

__all__ = ["DECIDED", "LOST", "SILENT", "UNKNOWN", "CheckHistory", "CheckNote", "RecheckNote"]

N = TypeVar("N")

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


class RecheckNote(NamedTuple):
    """An operator's request to check a transaction again."""

    at_ms: int
    operator: str
    """The person, by the name in the request; empty if it has none."""
    account: str
    """The account that sent the request; empty without one."""
    address: str
    reason: str


class CheckHistory:
    """The latest checks of the transactions that were asked about lately."""

    def __init__(self) -> None:
        self._notes: dict[int, deque[CheckNote]] = {}
        self._rechecks: dict[int, deque[RecheckNote]] = {}

    def __len__(self) -> int:
        return len(self._notes)

    def note_asked(self, key: int, asked_ms: int, client_id: str, address: str) -> None:
        """Note a check that was sent."""
        _notes_of(self._notes, key, CHECKS_KEPT).append(CheckNote(asked_ms, client_id, address))

    def note_recheck(self, key: int, note: RecheckNote) -> None:
        """Note that an operator wants a transaction to be checked again."""
        _notes_of(self._rechecks, key, RECHECKS_KEPT).append(note)

    def note_answer(self, key: int, answer: str, answered_ms: int) -> None:
        """Note how the open check of a transaction ended."""
        notes = self._notes.get(key)
        if notes and not notes[-1].answer:
            notes[-1] = notes[-1]._replace(answer=answer, answered_ms=answered_ms)

    def checks_of(self, key: int) -> tuple[CheckNote, ...]:
        """The latest checks of a transaction, oldest first."""
        return tuple(self._notes.get(key, ()))

    def rechecks_of(self, key: int) -> tuple[RecheckNote, ...]:
        """The latest requests to check a transaction again, oldest first."""
        return tuple(self._rechecks.get(key, ()))


def _notes_of(table: dict[int, deque[N]], key: int, kept: int) -> deque[N]:
    """The notes of a transaction; a new one pushes out the one that came first."""
    notes = table.get(key)
    if notes is None:
        if len(table) >= CHECKED_TRANSACTIONS_KEPT:
            del table[next(iter(table))]
        notes = table[key] = deque(maxlen=kept)
    return notes
