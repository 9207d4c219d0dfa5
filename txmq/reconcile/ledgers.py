"""The inputs and the result of a day's reconciliation, and the rows that belong to the day: those
inside its window, with a key, and as decided at its end.

A ledger that is read after the day ended has later facts too. They are masked here, so that a day
has the same result whenever it is run.

A table is a sequence of parts, which are files of Parquet: a worker anywhere can read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from txmq.reconcile.columns import chosen, is_in
from txmq.reconcile.rules import TRANSFER_KINDS, DayWindow
from txmq.reconcile.storage import Folder
from txmq.reconcile.tables import LONE, Sums

__all__ = [
    "CARRIED_ON",
    "ReconciledDay",
    "Role",
    "TableFile",
    "Tables",
    "is_within",
    "messages_at",
    "messages_of_day",
    "transfers",
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


def transfers(entries: pa.Table) -> pa.Table:
    """The entries of transfers. All entries without a key that a bank wrote at one moment have
    one key (:mod:`txmq.reconcile.transfer`).
    """
    found = chosen(entries, is_in(entries["kind"], TRANSFER_KINDS))
    if found["key"].null_count:
        moments = found["recorded_ms"].cast(pa.string())
        alone = pc.binary_join_element_wise(found["bank"], moments, LONE)
        found = _with(found, "key", pc.coalesce(found["key"], alone))
    return found


def messages_of_day(messages: pa.Table, window: DayWindow) -> pa.Table:
    """The messages that were stored or decided on a day, as known at its end."""
    known = messages_at(messages, window.end_ms)
    stored = known["stored_ms"]
    is_undecided = is_in(known["state"], ("prepared", "sent"))
    decided = pc.coalesce(known["decided_ms"], stored)
    moment = pc.if_else(is_undecided, stored, decided)
    was_there = pc.less(stored, window.end_ms)
    return chosen(known, pc.and_(was_there, is_within(moment, window)))


def messages_at(messages: pa.Table, end_ms: int) -> pa.Table:
    """The messages as known at a moment: later decisions are masked."""
    decided = pc.coalesce(messages["decided_ms"], messages["stored_ms"])
    is_known = pc.or_(pc.equal(messages["state"], "sent"), pc.less(decided, end_ms))
    if not pc.all(is_known, min_count=0).as_py():
        masked = pc.if_else(is_known, messages["state"], "prepared")
        messages = _with(messages, "state", masked)
        for name in {"queue_offset", "decided_ms", "decided_by", "reason"}.intersection(
            messages.column_names
        ):
            nothing = pa.scalar(None, messages[name].type)
            messages = _with(messages, name, pc.if_else(is_known, messages[name], nothing))
    if messages["key"].null_count:
        alone = pc.binary_join_element_wise("log/#", messages["position"].cast(pa.string()), "")
        messages = _with(messages, "key", pc.coalesce(messages["key"], alone))
    return messages


def is_within(moments: pa.ChunkedArray, window: DayWindow) -> pa.ChunkedArray:
    """True for each moment of a day."""
    is_after = pc.greater_equal(moments, window.start_ms)
    return pc.and_(is_after, pc.less(moments, window.end_ms))


def _with(rows: pa.Table, name: str, column: Any) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), rows.field(name), column)
