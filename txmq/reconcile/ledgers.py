"""The tables of a day and of earlier ones with their roles, and the result of the day.

A table is a sequence of parts, which are files of Parquet: a worker anywhere can read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

from txmq.reconcile.storage import Folder
from txmq.reconcile.tables import Sums

__all__ = [
    "CARRIED_ON",
    "ReconciledDay",
    "Role",
    "TableFile",
    "Tables",
]


class TableFile(NamedTuple):
    """A Parquet file of a table, which is one of its parts."""

    folder: Folder
    name: str
    bank: str | None = None
    """The bank of all rows; ``None`` if they are not of one bank, or have a column for it."""

    def pieces(self, names: Sequence[str] = ()) -> Iterator[pa.Table]:
        """The rows in pieces: all columns, or those of some that the file has."""
        for batch in self.folder.batches(self.name, names):
            rows = pa.Table.from_batches([batch])
            if self.bank is not None:
                rows = rows.append_column("bank", pa.repeat(self.bank, len(rows)))
            yield rows


class Role(Enum):
    """What a table is to the day, the largest first; those of its extract have their names."""

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
Tables: TypeAlias = dict[Role, list[TableFile]]
"""The tables of a day and of earlier ones. Without a result of the day before, it has no
``BALANCES``."""


class ReconciledDay(NamedTuple):
    """The result of a day."""

    tables: dict[str, pa.Table]
    """The tables of the run except ``proofs``: ``items`` that are not agreed when the day ends, and
    ``closed`` ones that are agreed now; all ``entries``, ``messages`` and ``failures`` of the open
    items, from which the next day continues; ``by_hand``, the messages that operators decided on
    the day; and ``matches``, ``balances`` and ``totals``. Rows that workers have written into the
    draft of a table are not here."""
    broken: pa.Table
    """The proofs of single transfers that do not hold; as ``PROOFS``, and likewise."""
    sums: Sums
    """The sums for the other proofs."""
    was_closed: bool
    """True if the day before has a result."""
