"""The tables that a day reads, by their roles; pure."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from txmq.reconcile.tables import (
    ACCOUNTS,
    BALANCES,
    BOOKED,
    ENTRIES,
    FAILURES,
    ITEMS,
    LATER,
    MATCHES,
    MESSAGES,
    OFFSETS,
    OPENING,
    TableSchema,
)

__all__ = ["CARRIED_ON", "COLUMNS", "EVIDENCE", "OLD", "Files", "Role", "TableFile"]


class Role(Enum):
    """What a table contributes to the day; the value of an extract's table is its name."""

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


COLUMNS: Final = {
    Role.ENTRIES: ENTRIES, Role.OLD_ENTRIES: ENTRIES, Role.OPEN_ENTRIES: BOOKED,
    Role.MESSAGES: MESSAGES, Role.OLD_MESSAGES: MESSAGES, Role.OPEN_MESSAGES: MESSAGES,
    Role.FAILURES: FAILURES, Role.OPEN_FAILURES: FAILURES, Role.OFFSETS: OFFSETS,
    Role.ITEMS: ITEMS, Role.CLOSED: ITEMS, Role.AGREED: MATCHES, Role.BALANCES: BALANCES,
    Role.OPENING: OPENING, Role.LATER: LATER, Role.ACCOUNTS: ACCOUNTS,
}  # fmt: skip
"""The columns in the files of each table; a bank's files have no column for its name."""


class TableFile(NamedTuple):
    """A Parquet file of a table."""

    uri: str
    """Where Spark finds it."""
    bank: str | None = None
    """The bank of all rows; ``None`` if no single bank has them, or a column names it."""


Files: TypeAlias = dict[Role, list[TableFile]]
"""The files of the tables of a day and of earlier ones."""
CARRIED_ON: Final = {
    "items": Role.ITEMS, "entries": Role.OPEN_ENTRIES, "messages": Role.OPEN_MESSAGES,
    "failures": Role.OPEN_FAILURES, "balances": Role.BALANCES,
}  # fmt: skip
"""The tables that a day reads from the run of the day before."""
OLD: Final = frozenset({Role.OLD_ENTRIES, Role.OLD_MESSAGES})
"""The tables in the extracts of ``day.history``."""
_HISTORY: Final = TableSchema(
    "closed", tuple(column for column in ITEMS.columns if column.name in {"key", "history"})
)
EVIDENCE: Final = {
    Role.ENTRIES: BOOKED, Role.OPEN_ENTRIES: BOOKED, Role.OLD_ENTRIES: BOOKED,
    Role.MESSAGES: MESSAGES, Role.OPEN_MESSAGES: MESSAGES, Role.OLD_MESSAGES: MESSAGES,
    Role.FAILURES: FAILURES, Role.OPEN_FAILURES: FAILURES,
    Role.ITEMS: ITEMS, Role.CLOSED: _HISTORY,
}  # fmt: skip
"""The tables whose rows decide a transfer, with the columns that matter."""
