"""The tables of a reconciliation: one definition of their columns for Arrow, Spark and SQL; pure.

Extracts have the tables of ``SOURCES`` for every kind of source. A run makes the others from
these.

Money is a whole number of minor units, a moment is milliseconds since 1970 in UTC, and a key begins
with the name of its bank (``icbc/4711``), since two banks may use the same numbers.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

__all__ = [
    "ACCOUNTS",
    "BALANCES",
    "BOOKED",
    "ENTRIES",
    "FAILURES",
    "ITEMS",
    "LATER",
    "MATCHES",
    "MESSAGES",
    "OFFSETS",
    "OPENING",
    "PROOFS",
    "RECURRING",
    "SOURCES",
    "TOTALS",
    "Column",
    "TableSchema",
]

Type: TypeAlias = Literal["string", "long", "int", "boolean"]


class Column(NamedTuple):
    """A column, nullable or not."""

    name: str
    type: Type
    is_optional: bool
    about: str


class TableSchema(NamedTuple):
    """A table."""

    name: str
    about: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns."""
        return tuple(column.name for column in self.columns)

    @property
    def sql_types(self) -> dict[str, str]:
        """The type of each column in SQL."""
        words = {"string": "STRING", "long": "BIGINT", "int": "INT", "boolean": "BOOLEAN"}
        return {column.name: words[column.type] for column in self.columns}

    @property
    def ddl(self) -> str:
        """The columns as Spark and SQL declare them."""
        types = self.sql_types
        return ", ".join(
            f"{column.name} {types[column.name]}{'' if column.is_optional else ' NOT NULL'}"
            for column in self.columns
        )


def _required(name: str, type_: Type, about: str) -> Column:
    return Column(name, type_, False, about)


def _optional(name: str, type_: Type, about: str) -> Column:
    return Column(name, type_, True, about)


ENTRIES: Final = TableSchema(
    "entries",
    "The entries of a bank on the day: one row for each side of a booking.",
    (
        _optional("id", "long", "the row's number in the bank's book"),
        _optional("key", "string", "the transfer, after the name of its bank; NULL in other rows"),
        _required(
            "kind",
            "string",
            "debit, credit, return, recall, fee, or other if it is not part of a transfer",
        ),
        _required("role", "string", "the kind of account: customer, clearing, suspense or capital"),
        _required("account", "string", ""),
        _required("amount", "long", "the change of the balance"),
        _required("currency", "string", ""),
        _required("booked_ms", "long", "the moment of the booking"),
        _required(
            "recorded_ms", "long", "when the row was written; booked_ms if the bank has one moment"
        ),
    ),
)

BOOKED: Final = TableSchema(
    "entries",
    "The entries of open transfers, of any bank and day.",
    (*ENTRIES.columns, _required("bank", "string", "")),
)

OPENING: Final = TableSchema(
    "opening",
    "The balance of each account when the day began: the sum of all earlier entries.",
    (
        _required("account", "string", ""),
        _required("role", "string", "as in entries"),
        _required("currency", "string", ""),
        _required("amount", "long", ""),
        _required("rows", "long", "the number of entries"),
    ),
)

LATER: Final = TableSchema(
    "later",
    "The change of each account after the day, until the books were read.",
    OPENING.columns,
)

ACCOUNTS: Final = TableSchema(
    "accounts",
    "The bank's own table of accounts when the books are read.",
    (
        _required("account", "string", ""),
        _required("currency", "string", ""),
        _required("balance", "long", ""),
    ),
)

MESSAGES: Final = TableSchema(
    "messages",
    "The orders to the other bank: one row for each message, with its decision.",
    (
        _optional("key", "string", "the transfer; NULL if the message does not name it"),
        _required("id", "string", "the message id, which all of its copies share"),
        _optional("payer", "string", ""),
        _optional("payee", "string", ""),
        _optional("amount", "long", ""),
        _optional("currency", "string", ""),
        _required("state", "string", "sent, prepared, parked, committed or rolled_back"),
        _required("topic", "string", ""),
        _required("queue", "int", "after the number of the broker"),
        _optional("queue_offset", "long", "the offset in the queue; NULL until it is visible"),
        _required("stored_ms", "long", ""),
        _optional("decided_ms", "long", ""),
        _optional("decided_by", "string", "producer, check, operator or broker"),
        _optional("reason", "string", "the operator's reason for a decision"),
        _required("position", "long", "the position in the log, after the number of the broker"),
        _optional("problem", "string", "why its body could not be read"),
    ),
)

FAILURES: Final = TableSchema(
    "failures",
    "Messages that consumers gave back: they are retried, or are dead letters.",
    (
        _optional("key", "string", "the transfer"),
        _required("id", "string", "the message id"),
        _required("group", "string", "the consumer group"),
        _required("state", "string", "retrying or dead"),
        _required("attempts", "int", ""),
        _required("stored_ms", "long", ""),
        _optional("reason", "string", "the reason for the dead letter"),
        _required("position", "long", "the position in the log, after the number of the broker"),
    ),
)

OFFSETS: Final = TableSchema(
    "offsets",
    "The progress of each consumer group.",
    (
        _required("group", "string", ""),
        _required("topic", "string", ""),
        _required("queue", "int", ""),
        _required("next_offset", "long", "the offset of the first unacknowledged message"),
    ),
)

ITEMS: Final = TableSchema(
    "items",
    "The transfers that are not agreed at the end of the day, and those that were closed on it.",
    (
        _required("break_id", "string", "the same on every day and in every run"),
        _required("key", "string", "the transfer"),
        _required("class", "string", "the name of a class"),
        _optional("was", "string", "the own class of an explained item"),
        _required("group", "string", "agreed, open or break, by the class"),
        _required("status", "string", "new, open, changed, reopened, explained or closed"),
        _required("amount", "long", "the amount at risk"),
        _required("currency", "string", ""),
        _required("holder", "string", "who has the money: payer, payee, both, nobody or transit"),
        _optional("debit_bank", "string", ""),
        _optional("credit_bank", "string", ""),
        _optional("payer", "string", "the account that was debited, or that the message names"),
        _optional("payee", "string", "the account that was credited, or that the message names"),
        _required("debits", "int", "the number of debits"),
        _required("debited", "long", "the sum of their amounts"),
        _required("returns", "int", ""),
        _required("returned", "long", ""),
        _required("credits", "int", ""),
        _required("credited", "long", ""),
        _required("messages", "int", "the number of visible messages with different ids"),
        _required("ordered", "long", "the amount in a message"),
        _optional("message_id", "string", "the id of one of them"),
        _optional("message_state", "string", "as in messages"),
        _optional("delivery", "string", "undelivered, unacknowledged, retrying, dead, consumed"),
        _optional("decided_by", "string", "as in messages"),
        _optional("reason", "string", "the reason for a decision by hand, or for a dead letter"),
        _required("is_late", "boolean", "true if an entry was booked into a day that was over"),
        _required("first_ms", "long", "the time of the first record"),
        _required("last_ms", "long", "the time of the last record"),
        _required(
            "first_seen",
            "string",
            "the business date on which it became an item, or was reopened",
        ),
        _required("age_days", "int", "business days since then"),
        _required("bucket", "string", "0, 1, 2-3, 4-7 or >7 business days"),
        _required("history", "string", "the changes: date, class and status, separated by commas"),
        _optional("explained_by", "string", ""),
        _optional("explanation", "string", ""),
        _optional("id_doubt", "string", "why its id may be wrong: blanks, form, case, length"),
        _optional("suggestion", "string", "the item that may be the other part of this transfer"),
    ),
)

BALANCES: Final = TableSchema(
    "balances",
    "Each account of each bank over the day.",
    (
        _required("bank", "string", ""),
        _required("account", "string", ""),
        _required("role", "string", "as in entries"),
        _required("currency", "string", ""),
        _required("opening", "long", "the opening balance by the bank's entries"),
        _required("opening_rows", "long", "the number of entries before the day"),
        _required("rows", "long", "the number of entries of the day"),
        _required("debit", "long", "the sum of their amounts in debits of transfers"),
        _required("return", "long", "in returns"),
        _required("credit", "long", "in credits, recalls and fees"),
        _required("other", "long", "in all other bookings"),
        _required("moved", "long", "in all bookings"),
        _required("closing", "long", "the sum of opening and moved"),
        _required("later", "long", "the change after the day, until the books were read"),
        _optional("told", "long", "the balance in the table of accounts"),
        _required("closing_rows", "long", "the number of entries of the day and before it"),
        _required("closed", "long", "the closing balance by the result of the day before"),
        _required("closed_rows", "long", "the number of entries by that result"),
        _optional("first_id", "long", "the least id of the day, if the bank's ids have no gaps"),
        _optional("closed_id", "long", "the greatest id before the day, by the day before"),
        _optional("last_id", "long", "the greatest id of the day and before it"),
    ),
)

PROOFS: Final = TableSchema(
    "proofs",
    "The balance proofs: two values that must be equal.",
    (
        _required("proof", "string", "roll-forward, account-table, conservation, clearing, …"),
        _optional("bank", "string", "NULL if the proof covers all banks"),
        _optional(
            "account", "string", "the account or the transfer; NULL if the proof covers all of them"
        ),
        _optional("currency", "string", ""),
        _required("expected", "long", ""),
        _required("found", "long", ""),
        _required("holds", "boolean", ""),
        _required("about", "string", "the proof in words"),
    ),
)

TOTALS: Final = TableSchema(
    "totals",
    "The sums of each class; the classes add up to the ledgers.",
    (
        _required("class", "string", ""),
        _required("group", "string", ""),
        _required("currency", "string", ""),
        _required("transfers", "long", ""),
        _required("debited", "long", ""),
        _required("returned", "long", ""),
        _required("credited", "long", ""),
        _required("ordered", "long", ""),
        _required("at_risk", "long", ""),
    ),
)

MATCHES: Final = TableSchema(
    "matches",
    "The transfers that are agreed.",
    (
        _required("key", "string", ""),
        _required("class", "string", "matched, returned or rolled-back"),
        _required("amount", "long", ""),
        _required("currency", "string", ""),
    ),
)

SOURCES: Final = (ENTRIES, OPENING, LATER, ACCOUNTS, MESSAGES, FAILURES, OFFSETS)
"""The tables of an extract; the first four for each bank, the others for the log."""

RECURRING: Final = frozenset({
    "bank", "bucket", "class", "credit_bank", "currency", "debit_bank", "decided_by", "delivery",
    "first_seen", "group", "holder", "kind", "message_state", "problem", "proof", "reason", "role",
    "state", "status", "topic", "was",
})  # fmt: skip
"""Columns with few distinct texts. Arrow's files have dictionaries for these alone: for keys and
accounts a dictionary takes time, and saves no more space than compression does.
"""
