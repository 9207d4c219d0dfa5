"""The tables of a day and of earlier ones, and the rows of them that belong to the day.

A table is a sequence of parts, which are files of Parquet: a worker anywhere can read them. Its
role says which rows take part: those inside the window of the day, with a key, and as decided at
its end. A ledger that is read after the day ended has later facts too. They are masked here, so
that a day has the same result whenever it is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from txmq.reconcile.classes import Class
from txmq.reconcile.columns import Numbers, chosen, hash_column, is_in, truths
from txmq.reconcile.extract.table_writer import arrow_schema
from txmq.reconcile.rules import TRANSFER_KINDS, DayWindow
from txmq.reconcile.sieve import PLAIN, SUSPECT, Others
from txmq.reconcile.storage import Folder
from txmq.reconcile.tables import LONE, MATCHES, Sums

__all__ = [
    "CARRIED_ON",
    "OLD",
    "READ_BY_SIEVE",
    "ReconciledDay",
    "Role",
    "Source",
    "TableFile",
    "Tables",
    "evidence_in",
    "matches_in",
    "messages_at",
    "rows_of",
    "with_keys",
]


class TableFile(NamedTuple):
    """A Parquet file of a table, which is one of its parts."""

    folder: Folder
    name: str
    bank: str | None = None
    """The bank of all rows; ``None`` if they are not of one bank, or have a column for it."""
    columns: Sequence[str] = ()
    """The columns of the table, if the file has those of other tables, too."""

    def pieces(self, names: Sequence[str] = ()) -> Iterator[pa.Table]:
        """The rows in pieces: all columns, or those of some that the file has."""
        known = self.columns or names
        own = [name for name in names or known if name in known]
        for batch in self.folder.batches(self.name, own):
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
Source: TypeAlias = tuple[Role, TableFile]
"""A part of a table with its role."""
Tables: TypeAlias = dict[Role, list[TableFile]]
"""The tables of a day and of earlier ones. Without a result of the day before, it has no
``BALANCES``."""
READ_BY_SIEVE: Final = {
    Role.ENTRIES: ("key", "kind", "role", "account", "amount", "currency", "booked_ms",
                   "recorded_ms", "id", "bank"),
    Role.MESSAGES: ("key", "id", "payer", "payee", "amount", "currency", "state", "stored_ms",
                    "decided_ms", "position"),
    Role.OPEN_ENTRIES: ("key",), Role.OPEN_MESSAGES: ("key",), Role.AGREED: ("key",),
}  # fmt: skip
"""The columns that the sieve reads; other tables have nothing for it."""
OLD: Final = frozenset({Role.OLD_ENTRIES, Role.OLD_MESSAGES})
"""The tables of other dates than this and the one before."""
_CLASSES: Final = pa.array(["", *(class_.value for class_ in PLAIN)])
"""The class of each code."""


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


def rows_of(source: Source, window: DayWindow, names: Sequence[str] = ()) -> Iterator[pa.Table]:
    """The rows of a table that take part, in pieces: all columns, or the named ones."""
    role, part = source
    for rows in part.pieces(names):
        match role:
            case Role.ENTRIES:
                yield chosen(rows, _is_within(rows["recorded_ms"], window))
            case Role.MESSAGES:
                yield _messages_of_day(rows, window)
            case Role.FAILURES | Role.OPEN_FAILURES:
                yield chosen(rows, pc.less(rows["stored_ms"], window.end_ms))
            case Role.OLD_ENTRIES:
                yield chosen(rows, pc.less(rows["recorded_ms"], window.start_ms))
            case Role.OLD_MESSAGES:
                earlier = chosen(rows, pc.less(rows["stored_ms"], window.start_ms))
                yield messages_at(earlier, window.end_ms)
            case _:
                yield rows


def with_keys(role: Role, rows: pa.Table) -> pa.Table:
    """The rows that belong to transfers, each with the key of its transfer.

    All entries without a key that a bank wrote at one moment have one key
    (:mod:`txmq.reconcile.transfer`).
    """
    if role not in {Role.ENTRIES, Role.OLD_ENTRIES}:
        return rows
    found = chosen(rows, is_in(rows["kind"], TRANSFER_KINDS))
    if found["key"].null_count:
        moments = found["recorded_ms"].cast(pa.string())
        alone = pc.binary_join_element_wise(found["bank"], moments, LONE)
        found = _with(found, "key", pc.coalesce(found["key"], alone))
    return found


def evidence_in(role: Role, rows: pa.Table, others: Others) -> tuple[pa.Table, pa.Table]:
    """The rows of transfers that do not plainly agree, and the matches of those that do."""
    plain, is_seen = others.look_up(hash_column(rows["key"]))
    # Of other dates only those transfers are known, whose money moved again.
    is_wanted = (plain == SUSPECT) & (is_seen if role in OLD else True)
    return rows.filter(pa.array(is_wanted)), matches_in(role, rows, plain)


def matches_in(role: Role, rows: pa.Table, plain: Numbers) -> pa.Table:
    """The matches of the plain transfers in rows of a table; ``plain`` are their codes."""
    schema = arrow_schema(MATCHES)
    if role is Role.MESSAGES:
        # A rolled-back transfer has no debit to find it by later.
        keys = rows["key"].filter(pa.array(plain == PLAIN[Class.ROLLED_BACK])).unique()
        nothing = (pa.repeat(value, len(keys)) for value in (Class.ROLLED_BACK.value, 0, ""))
        return pa.table([keys, *nothing], schema=schema)
    if role is not Role.ENTRIES:
        return schema.empty_table()
    is_customer = pc.equal(rows["role"], "customer")
    is_debit = truths(pc.and_(is_customer, pc.equal(rows["kind"], "debit")))
    is_plain = is_debit & (plain != SUSPECT)
    debits, code = rows.filter(pa.array(is_plain)), pa.array(plain[is_plain])
    columns = debits["key"], _CLASSES.take(code), pc.negate(debits["amount"])
    return pa.table([*columns, debits["currency"]], schema=schema)


def _messages_of_day(messages: pa.Table, window: DayWindow) -> pa.Table:
    """The messages that were stored or decided on a day, as known at its end."""
    known = messages_at(messages, window.end_ms)
    stored = known["stored_ms"]
    is_undecided = is_in(known["state"], ("prepared", "sent"))
    decided = pc.coalesce(known["decided_ms"], stored)
    moment = pc.if_else(is_undecided, stored, decided)
    was_there = pc.less(stored, window.end_ms)
    return chosen(known, pc.and_(was_there, _is_within(moment, window)))


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
            messages = _with(messages, name, pc.if_else(is_known, messages[name], None))
    if messages["key"].null_count:
        alone = pc.binary_join_element_wise("log/#", messages["position"].cast(pa.string()), "")
        messages = _with(messages, "key", pc.coalesce(messages["key"], alone))
    return messages


def _is_within(moments: pa.ChunkedArray, window: DayWindow) -> pa.ChunkedArray:
    """True for each moment of a day."""
    is_after = pc.greater_equal(moments, window.start_ms)
    return pc.and_(is_after, pc.less(moments, window.end_ms))


def _with(rows: pa.Table, name: str, column: Any) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), rows.field(name), column)
