"""The tables of a reconciliation: one definition of their columns for Arrow and SQL; pure.

The tables of an extract are the same for every kind of source. A run makes the others from them.

Money is a whole number of minor units, a moment is milliseconds since 1970 in UTC, and a key begins
with the name of its bank (``icbc/4711``), since two banks may use the same numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, get_type_hints

from msgspec import Struct

LIMIT: Final = 1 << 63
"""All numbers in tables are below this; hash totals are sums modulo this."""
LOWER_HALF: Final = (1 << 32) - 1
"""A mask for the lower half of a number. Sums of halves fit into 64 bits, whatever the numbers."""


def join_halves(low: int | None, high: int | None) -> int:
    """A sum from the sums of the lower and upper halves of its numbers; 0 without any."""
    return (low or 0) + ((high or 0) << 32)


Sums: TypeAlias = Counter[tuple[str, str, str]]
"""Sums of money and counts of rows, by name, class or bank, and currency."""


class Column(NamedTuple):
    """A column, nullable or not."""

    name: str
    type: str
    """``string``, ``long``, ``int``, ``boolean`` or ``decimal(38,0)``, as Spark names them."""
    is_optional: bool

    @property
    def spark(self) -> str:
        """Its type as SQL names it."""
        return "bigint" if self.type == "long" else self.type


class TableSchema(NamedTuple):
    """A table."""

    name: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns."""
        return tuple(column.name for column in self.columns)

    @property
    def ddl(self) -> str:
        """Its columns in SQL, each with its type."""
        return ", ".join(f"`{column.name}` {column.spark}" for column in self.columns)


LONE: Final = "/@"
"""Separates the bank and the moment in the key of rows that name no transfer."""
Int32: TypeAlias = Annotated[int, "int"]


class EntryRow(NamedTuple):
    """A row of ``entries``, with its bank."""

    id: int | None  # the row's number in the bank's book
    key: str | None  # the transfer's id after its bank's name; NULL if the row names no transfer
    kind: str  # debit, credit, return, recall, fee, or other if it belongs to no transfer
    role: str  # the kind of account: customer, clearing, suspense or capital
    account: str
    amount: int  # the change of the balance
    currency: str
    booked_ms: int  # the moment of the booking
    recorded_ms: int  # when the row was written; booked_ms if the bank has one moment
    bank: str

    @property
    def is_lone(self) -> bool:
        """True if the row names no transfer."""
        return self.key == f"{self.bank}{LONE}{self.recorded_ms}"


class MessageRow(Struct, gc=False):
    """A row of ``messages``."""

    key: str | None  # the transfer; NULL if the message does not name it
    id: str  # the message id, which all of its copies share
    payer: str | None
    payee: str | None
    amount: int | None
    currency: str | None
    state: str  # sent, prepared, parked, committed or rolled_back
    topic: str
    queue: Int32  # with the broker's number in the upper bits
    queue_offset: int | None  # the offset in the queue; NULL until the message is visible
    stored_ms: int
    decided_ms: int | None
    decided_by: str | None  # producer, check, operator or broker
    reason: str | None  # the operator's reason for a decision
    position: int  # the position in the log, with the broker's number in the upper bits
    problem: str | None  # why its body could not be read


class FailureRow(Struct, gc=False):
    """A row of ``failures``."""

    key: str | None  # the transfer
    id: str  # the message id
    group: str  # the consumer group
    state: str  # retrying or dead
    attempts: Int32
    stored_ms: int
    reason: str | None  # the reason for the dead letter
    position: int  # the position in the log, with the broker's number in the upper bits


class GroupOffset(NamedTuple):
    """A row of ``offsets``."""

    group: str
    topic: str
    queue: Int32
    next_offset: int  # the offset of the first unacknowledged message


def _table(name: str, text: str) -> TableSchema:
    """A table from lines of text: columns, their type (``?`` if nullable), and what they hold."""
    found: list[Column] = []
    for line in text.strip().splitlines():
        names, type_ = re.split(r"  +", line.strip())[:2]
        is_optional = type_.endswith("?")
        found += [Column(one, type_.rstrip("?"), is_optional) for one in names.split(", ")]
    return TableSchema(name, tuple(found))


_TYPES: Final[Mapping[Any, str]] = {
    str: "string", str | None: "string?", int: "long", int | None: "long?", Int32: "int"
}  # fmt: skip


def _table_of(name: str, row: type) -> TableSchema:
    """A table that has the fields of a row as its columns."""
    hints = get_type_hints(row, include_extras=True)
    return _table(name, "\n".join(f"{name}  {_TYPES[hint]}" for name, hint in hints.items()))


BOOKED: Final = _table_of("entries", EntryRow)
"""The entries of open transfers, of any bank and day."""

ENTRIES: Final = TableSchema("entries", BOOKED.columns[:-1])
"""The entries of a bank on the day, without its name: one row for each side of a booking."""

OPENING: Final = _table("opening", """
    account       string
    role          string  as in entries
    currency      string
    amount        long
    rows          long    the number of entries
""")  # fmt: skip
"""The balance of each account when the day began: the sum of all earlier entries."""

LATER: Final = TableSchema("later", OPENING.columns)
"""The change of each account after the day, until the books were read."""

ACCOUNTS: Final = _table("accounts", """
    account, currency  string
    balance       long
""")  # fmt: skip
"""The bank's own table of accounts, as it was when the books were read."""

MESSAGES: Final = _table_of("messages", MessageRow)
"""The orders to the other bank: one row for each message, with its decision."""

FAILURES: Final = _table_of("failures", FailureRow)
"""Messages that consumers gave back: they are retried, or are dead letters."""

OFFSETS: Final = _table_of("offsets", GroupOffset)
"""The progress of each consumer group."""

ITEMS: Final = _table("items", """
    break_id       string   the same on every day and in every run
    key            string   the transfer
    class          string   the name of a class
    was            string?  the own class of an explained item
    group          string   agreed, open or break, by the class
    status         string   new, open, changed, reopened, explained or closed
    amount         long     the amount at risk
    currency       string
    holder         string   who has the money: payer, payee, both, nobody or transit
    debit_bank, credit_bank  string?
    payer          string?  the account that was debited, or that the message names
    payee          string?  the account that was credited, or that the message names
    debits         int      the number of debits
    debited        long     the sum of their amounts
    returns        int
    returned       long
    credits        int
    credited       long
    messages       int      the number of visible messages with different ids
    ordered        long     the amount in a message
    message_id     string?  the id of one of them
    message_state  string?  as in messages
    delivery       string?  undelivered, unacknowledged, retrying, dead, consumed
    decided_by     string?  as in messages
    reason         string?  the reason for a decision by hand, or for a dead letter
    is_late        boolean  true if an entry was booked into a day that was over
    first_ms       long     the time of the first record
    last_ms        long     the time of the last record
    first_seen     string   the business date on which it became an item, or was reopened
    age_days       int      business days since then
    bucket         string   0, 1, 2-3, 4-7 or >7 business days
    history        string   the changes: date, class and status, separated by commas
    explained_by, explanation  string?
    id_doubt       string?  why its id may be wrong: blanks, form, case, length
    suggestion     string?  the item that may be the other part of this transfer
""")  # fmt: skip
"""The transfers that are not agreed at the end of the day, and those that were closed on it."""

FOLDED_ITEMS: Final = TableSchema("items", (*ITEMS.columns, Column("fold", "string", False)))
"""Items with their folded key: items with an equal ``fold`` may be one transfer."""

SUMS: Final = _table("sums", """
    name, of, currency  string
    value         decimal(38,0)
""")  # fmt: skip
"""Sums of money and counts of rows, as in :data:`Sums`."""

BALANCES: Final = _table("balances", """
    bank, account  string
    role          string  as in entries
    currency      string
    opening       long    the opening balance by the bank's entries
    opening_rows  long    the number of entries before the day
    rows          long    the number of entries of the day
    debit         long    the sum of their amounts in debits of transfers
    return        long    in returns
    credit        long    in credits, recalls and fees
    other         long    in all other bookings
    moved         long    in all bookings
    closing       long    the sum of opening and moved
    later         long    the change after the day, until the books were read
    told          long?   the balance in the table of accounts
    closing_rows  long    the number of entries of the day and before it
    closed        long    the closing balance by the result of the day before
    closed_rows   long    the number of entries by that result
    first_id      long?   the least id of the day, if the bank's ids have no gaps
    closed_id     long?   the greatest id before the day, by the day before
    last_id       long?   the greatest id of the day and before it
""")  # fmt: skip
"""The balances of each bank's accounts over the day."""

PROOFS: Final = _table("proofs", """
    proof         string   roll-forward, account-table, conservation, clearing, …
    bank          string?  NULL if the proof covers all banks
    account       string?  the account or the transfer; NULL if the proof covers all of them
    currency      string?
    expected, found  long
    holds         boolean
    about         string   the proof in words
    first_seen    string?  a difference: the date that it comes from; NULL for a proof as a whole
""")  # fmt: skip
"""The balance proofs: two values that must be equal. A difference has a row, on its own date and on
each later one until it is corrected."""

TOTALS: Final = _table("totals", """
    class, group, currency  string
    transfers, debited, returned, credited, ordered, at_risk  long
""")  # fmt: skip
"""The sums of each class; the classes add up to the ledgers."""

MATCHES: Final = _table("matches", """
    key           string
    class         string  matched, returned or rolled-back
    amount        long
    currency      string
""")  # fmt: skip
"""The transfers that are agreed."""

BANK_TABLES: Final = {table.name: table for table in (ENTRIES, OPENING, LATER, ACCOUNTS)}
"""The tables of an extract for each bank."""

LOG_TABLES: Final = {table.name: table for table in (MESSAGES, FAILURES, OFFSETS)}
"""The tables of an extract for the log."""

RESULTS: Final[Mapping[str, TableSchema]] = {
    "matches": MATCHES, "items": ITEMS, "closed": ITEMS, "entries": BOOKED, "messages": MESSAGES,
    "failures": FAILURES, "by_hand": MESSAGES, "proofs": PROOFS,
}  # fmt: skip
"""The tables of a run that have rows of single transfers."""

TABLES: Final = {**RESULTS, "balances": BALANCES, "totals": TOTALS}
"""All tables of a run."""

RECURRING: Final = frozenset({
    "bank", "bucket", "class", "credit_bank", "currency", "debit_bank", "decided_by", "delivery",
    "first_seen", "group", "holder", "kind", "message_state", "problem", "proof", "reason", "role",
    "state", "status", "topic", "was",
})  # fmt: skip
"""Columns with few distinct texts. Files have dictionaries for these columns only: for keys and
accounts a dictionary takes time, and saves no more space than compression does."""
