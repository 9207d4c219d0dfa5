"""The latest checks of transactions: which producer the broker asked, when, its answer, and which
operator requested the check. Pure.

The log keeps decisions but no checks, so this history is empty after a restart. It has a fixed
size: a new transaction pushes out the one whose first check is the oldest.
"""

from __future__ import annotations

from collections import OrderedDict
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
    """The person that the request names; empty if it names none."""
    account: str
    """The account that sent the request; empty without an account."""
    address: str
    reason: str


class CheckHistory:
    """The latest checks of recently checked transactions."""

    def __init__(self) -> None:
        self._notes: OrderedDict[int, tuple[CheckNote, ...]] = OrderedDict()
        self._rechecks: OrderedDict[int, tuple[RecheckNote, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._notes)

    def note_asked(self, key: int, asked_ms: int, client_id: str, address: str) -> None:
        """Note a check that was sent."""
        _add(self._notes, key, CheckNote(asked_ms, client_id, address), CHECKS_KEPT)

    def note_recheck(self, key: int, note: RecheckNote) -> None:
        """Note that an operator wants a transaction to be checked again."""
        _add(self._rechecks, key, note, RECHECKS_KEPT)

    def note_answer(self, key: int, answer: str, answered_ms: int) -> None:
        """Note how the open check of a transaction ended."""
        notes = self._notes.get(key)
        if notes and not notes[-1].answer:
            answered = notes[-1]._replace(answer=answer, answered_ms=answered_ms)
            self._notes[key] = (*notes[:-1], answered)

    def checks_of(self, key: int) -> tuple[CheckNote, ...]:
        """The latest checks of a transaction, oldest first."""
        return self._notes.get(key, ())

    def rechecks_of(self, key: int) -> tuple[RecheckNote, ...]:
        """The latest requests to check a transaction again, oldest first."""
        return self._rechecks.get(key, ())


def _add(table: OrderedDict[int, tuple[N, ...]], key: int, note: N, kept: int) -> None:
    """Add a note about a transaction; a new transaction pushes out the oldest one."""
    notes = table.get(key)
    if notes is not None:
        table[key] = (*notes[1 - kept :], note)
        return
    if len(table) >= CHECKED_TRANSACTIONS_KEPT:
        # A plain dictionary would scan the slots of all removed entries for its first entry.
        table.popitem(last=False)
    table[key] = (note,)
