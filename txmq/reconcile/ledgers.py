"""The tables that a day reads, by their roles; pure."""

from __future__ import annotations

from enum import Enum
from typing import Final

from txmq.reconcile.tables import BOOKED, FAILURES, ITEMS, MESSAGES, TableSchema

__all__ = ["CARRIED_ON", "EVIDENCE", "OLD", "Role"]


class Role(Enum):
    """What a table is to the day; those of its extract have their names."""

    ENTRIES = "entries"
    MESSAGES = "messages"
    AGREED = "transfers agreed on the dates of day.history"
    FAILURES = "failures"
    ITEMS = "open items when the day before ended"
    OPEN_ENTRIES = "all entries of these items, of any day"
    OPEN_MESSAGES = "their messages, as known when that day ended"
    OPEN_FAILURES = "their failures"
    CLOSED = "items closed on the dates of day.history"
    OPENING = "opening"
    LATER = "later"
    ACCOUNTS = "accounts"
    BALANCES = "closing balances of the day before"
    OFFSETS = "offsets"
    OLD_ENTRIES = "entries in the extracts of day.history"
    OLD_MESSAGES = "messages in the extracts of day.history"


CARRIED_ON: Final = {
    "items": Role.ITEMS, "entries": Role.OPEN_ENTRIES, "messages": Role.OPEN_MESSAGES,
    "failures": Role.OPEN_FAILURES, "balances": Role.BALANCES,
}  # fmt: skip
"""The tables that a day reads of the run of the day before."""
OLD: Final = frozenset({Role.OLD_ENTRIES, Role.OLD_MESSAGES})
"""The tables of other dates than this and the one before."""
_HISTORY: Final = TableSchema(
    "closed", tuple(column for column in ITEMS.columns if column.name in {"key", "history"})
)
EVIDENCE: Final = {
    Role.ENTRIES: BOOKED, Role.OPEN_ENTRIES: BOOKED, Role.OLD_ENTRIES: BOOKED,
    Role.MESSAGES: MESSAGES, Role.OPEN_MESSAGES: MESSAGES, Role.OLD_MESSAGES: MESSAGES,
    Role.FAILURES: FAILURES, Role.OPEN_FAILURES: FAILURES,
    Role.ITEMS: ITEMS, Role.CLOSED: _HISTORY,
}  # fmt: skip
"""The tables whose rows decide a transfer, with the columns that do."""
