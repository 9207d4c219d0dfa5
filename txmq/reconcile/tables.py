"""The tables that reconciliation is made of: their columns, once for Arrow, Spark and SQL; pure.

Extracts use the tables of ``SOURCES``, whatever the source looks like. A run makes the others
from these.

Money is a whole number of minor units, a moment is milliseconds since 1970 in UTC, and a key has
its bank's name before it (``icbc/4711``), since banks give out the same numbers.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

__all__ = [
    "ACCOUNTS",
    "BALANCES",
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
    def ddl(self) -> str:
        """Its columns as Spark and SQL declare them."""
        words = {"string": "STRING", "long": "BIGINT", "int": "INT", "boolean": "BOOLEAN"}
        return ", ".join(
            f"{column.name} {words[column.type]}{'' if column.is_optional else ' NOT NULL'}"
            for column in self.columns
        )


def _required(name: str, type_: Type, about: str) -> Column:
    return Column(name, type_, False, about)


def _optional(name: str, type_: Type, about: str) -> Column:
    return Column(name, type_, True, about)


ENTRIES: Final = TableSchema(
    "entries",
    "What a bank has booked on the day: one row for each side of a booking.",
    (
        _optional("id", "long", "the row's number in the bank's book"),
        _optional(
            "key", "string", "the transfer, with its bank's name before it; none for other rows"
        ),
        _required("kind", "string", "debit, credit, return, or other: what no transfer has made"),
        _required("role", "string", "whose account: customer, clearing, suspense or capital"),
        _required("account", "string", ""),
        _required("amount", "long", "what the account has more"),
        _required("currency", "string", ""),
        _required("booked_ms", "long", "the moment that decides on the day"),
        _required(
            "recorded_ms", "long", "when it was written; the same where the bank keeps one moment"
        ),
    ),
)

OPENING: Final = TableSchema(
    "opening",
    "What each account had when the day began: the sum of all entries before.",
    (
        _required("account", "string", ""),
        _required("role", "string", "as in entries"),
        _required("currency", "string", ""),
        _required("amount", "long", ""),
        _required("rows", "long", "how many entries"),
    ),
)

LATER: Final = TableSchema(
    "later",
    "What each account has had since the day was over, until the books were read.",
    OPENING.columns,
)

ACCOUNTS: Final = TableSchema(
    "accounts",
    "What the bank's own table of accounts says when the books are read.",
    (
        _required("account", "string", ""),
        _required("currency", "string", ""),
        _required("balance", "long", ""),
    ),
)

MESSAGES: Final = TableSchema(
    "messages",
    "What was told to the other bank: one row for each message, with what was decided about it.",
    (
        _optional("key", "string", "the transfer; none where the message does not say"),
        _required("id", "string", "the message's own, which all of its copies have"),
        _optional("payer", "string", ""),
        _optional("payee", "string", ""),
        _optional("amount", "long", ""),
        _optional("currency", "string", ""),
        _required("state", "string", "sent, prepared, parked, committed or rolled_back"),
        _required("topic", "string", ""),
        _required("queue", "int", ""),
        _optional("queue_offset", "long", "its place there; none before it is seen"),
        _required("stored_ms", "long", ""),
        _optional("decided_ms", "long", ""),
        _optional("decided_by", "string", "producer, check, operator or broker"),
        _optional("reason", "string", "what was said to a decision by hand"),
        _required("position", "long", "where it lies in the log"),
        _optional("problem", "string", "why its body could not be read"),
    ),
)

FAILURES: Final = TableSchema(
    "failures",
    "Messages that consumers gave back: they come again, or are dead letters.",
    (
        _optional("key", "string", "the transfer"),
        _required("id", "string", "the message's"),
        _required("group", "string", "of consumers"),
        _required("state", "string", "retrying or dead"),
        _required("attempts", "int", ""),
        _required("stored_ms", "long", ""),
        _optional("reason", "string", "why it is dead"),
        _required("position", "long", "where it lies in the log"),
    ),
)

OFFSETS: Final = TableSchema(
    "offsets",
    "How far each group of consumers has come.",
    (
        _required("group", "string", ""),
        _required("topic", "string", ""),
        _required("queue", "int", ""),
        _required("next_offset", "long", "of the first message that is not acknowledged"),
    ),
)

ITEMS: Final = TableSchema(
    "items",
    "The transfers that are not agreed at the end of the day, and those that were closed on it.",
    (
        _required("break_id", "string", "the same on every day and in every run"),
        _required("key", "string", "the transfer"),
        _required("class", "string", "the name of a class"),
        _optional("was", "string", "the class of what is explained"),
        _required("group", "string", "agreed, open or break, as the class"),
        _required("status", "string", "new, open, changed, reopened, explained or closed"),
        _required("amount", "long", "what is at risk"),
        _required("currency", "string", ""),
        _required("holder", "string", "who has the money: payer, payee, both, nobody or transit"),
        _optional("debit_bank", "string", ""),
        _optional("credit_bank", "string", ""),
        _optional("payer", "string", "the account that was debited, or that the message names"),
        _optional("payee", "string", "the account that was credited, or that the message names"),
        _required("debits", "int", "how many"),
        _required("debited", "long", "their sum"),
        _required("returns", "int", ""),
        _required("returned", "long", ""),
        _required("credits", "int", ""),
        _required("credited", "long", ""),
        _required("messages", "int", "those with ids of their own that were visible"),
        _required("ordered", "long", "what a message says"),
        _optional("message_id", "string", "of one of them"),
        _optional("message_state", "string", "as in messages"),
        _optional("delivery", "string", "undelivered, unacknowledged, retrying, dead, consumed"),
        _optional("decided_by", "string", "as in messages"),
        _optional("reason", "string", "of a decision by hand, or of a dead letter"),
        _required("is_late", "boolean", "whether something was booked into a day that was over"),
        _required("first_ms", "long", "when it was first heard of"),
        _required("last_ms", "long", "and last"),
        _required(
            "first_seen",
            "string",
            "the business date on which it was first an item, or was one again",
        ),
        _required("age_days", "int", "business days since then"),
        _required("bucket", "string", "0, 1, 2-3, 4-7 or >7 of them"),
        _required(
            "history", "string", "all that it was: date, class and status, separated by commas"
        ),
        _optional("explained_by", "string", ""),
        _optional("explanation", "string", ""),
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
        _required("opening", "long", "what the bank says it had"),
        _required("rows", "long", "entries of the day"),
        _required("moved", "long", "their sum"),
        _required("closing", "long", "opening and moved"),
        _required("later", "long", "what came after the day, until the books were read"),
        _optional("told", "long", "what the table of accounts said then"),
        _required("closing_rows", "long", "entries of the day and before it, as the bank says"),
        _optional(
            "last_id", "long", "the greatest of their numbers that was seen, where none may miss"
        ),
    ),
)

PROOFS: Final = TableSchema(
    "proofs",
    "What was proved of the balances: what has to be equal, and is or is not.",
    (
        _required("proof", "string", "roll-forward, account-table, conservation, clearing, …"),
        _optional("bank", "string", "none where it is about all of them"),
        _optional("account", "string", "or the transfer; none where it is about all of them"),
        _optional("currency", "string", ""),
        _required("expected", "long", ""),
        _required("found", "long", ""),
        _required("holds", "boolean", ""),
        _required("about", "string", "in words"),
    ),
)

TOTALS: Final = TableSchema(
    "totals",
    "What each class has; the classes add up to what the ledgers have.",
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
"""What an extract holds; the first four of each bank, the others of the log."""

RECURRING: Final = frozenset({
    "bank", "bucket", "class", "credit_bank", "currency", "debit_bank", "decided_by", "delivery",
    "first_seen", "group", "holder", "kind", "message_state", "problem", "proof", "reason", "role",
    "state", "status", "topic", "was",
})  # fmt: skip
"""Columns with few distinct texts. Files have dictionaries for these alone: for keys and
accounts a dictionary takes time, and saves no more space than compression does.
"""
