"""The tables that reconciliation is made of: their columns, once for Arrow, Spark and SQL; pure.

Every source is written in the first six, whatever it looks like where it comes from. The others are
what a run makes of them.

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
    "Table",
]

Type: TypeAlias = Literal["string", "long", "int", "boolean"]


class Column(NamedTuple):
    """A column, whose place may be empty or not."""

    name: str
    type: Type
    is_optional: bool
    about: str


class Table(NamedTuple):
    """A table."""

    name: str
    about: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What its columns are called."""
        return tuple(column.name for column in self.columns)

    @property
    def ddl(self) -> str:
        """Its columns as Spark and SQL declare them."""
        words = {"string": "STRING", "long": "BIGINT", "int": "INT", "boolean": "BOOLEAN"}
        return ", ".join(
            f"{column.name} {words[column.type]}{'' if column.is_optional else ' NOT NULL'}"
            for column in self.columns
        )


def _is(name: str, type_: Type, about: str) -> Column:
    return Column(name, type_, False, about)


def _may(name: str, type_: Type, about: str) -> Column:
    return Column(name, type_, True, about)


ENTRIES: Final = Table(
    "entries",
    "What a bank has booked on the day: one row for each side of a booking.",
    (
        _may("id", "long", "the row's number in the bank's book"),
        _may("key", "string", "the transfer, with its bank's name before it; none for other rows"),
        _is("kind", "string", "debit, credit, return, or other: what no transfer has made"),
        _is("role", "string", "whose account: customer, clearing, suspense or capital"),
        _is("account", "string", ""),
        _is("amount", "long", "what the account has more"),
        _is("currency", "string", ""),
        _is("booked_ms", "long", "the moment that decides on the day"),
        _is("recorded_ms", "long", "when it was written; the same where the bank keeps one moment"),
    ),
)

OPENING: Final = Table(
    "opening",
    "What each account had when the day began: the sum of all entries before.",
    (
        _is("account", "string", ""),
        _is("role", "string", "as in entries"),
        _is("currency", "string", ""),
        _is("amount", "long", ""),
        _is("rows", "long", "how many entries"),
    ),
)

LATER: Final = Table(
    "later",
    "What each account has had since the day was over, until the books were read.",
    OPENING.columns,
)

ACCOUNTS: Final = Table(
    "accounts",
    "What the bank's own table of accounts says when the books are read.",
    (_is("account", "string", ""), _is("currency", "string", ""), _is("balance", "long", "")),
)

MESSAGES: Final = Table(
    "messages",
    "What was told to the other bank: one row for each message, with what was decided about it.",
    (
        _may("key", "string", "the transfer; none where the message does not say"),
        _is("id", "string", "the message's own, which all of its copies have"),
        _may("payer", "string", ""),
        _may("payee", "string", ""),
        _may("amount", "long", ""),
        _may("currency", "string", ""),
        _is("state", "string", "sent, prepared, parked, committed or rolled_back"),
        _is("topic", "string", ""),
        _is("queue", "int", ""),
        _may("queue_offset", "long", "its place there; none before it is seen"),
        _is("stored_ms", "long", ""),
        _may("decided_ms", "long", ""),
        _may("decided_by", "string", "producer, check, operator or broker"),
        _may("reason", "string", "what was said to a decision by hand"),
        _is("position", "long", "where it lies in the log"),
        _may("problem", "string", "why its body could not be read"),
    ),
)

FAILURES: Final = Table(
    "failures",
    "Messages that consumers gave back: they come again, or are dead letters.",
    (
        _may("key", "string", "the transfer"),
        _is("id", "string", "the message's"),
        _is("group", "string", "of consumers"),
        _is("state", "string", "retrying or dead"),
        _is("attempts", "int", ""),
        _is("stored_ms", "long", ""),
        _may("reason", "string", "why it is dead"),
        _is("position", "long", "where it lies in the log"),
    ),
)

OFFSETS: Final = Table(
    "offsets",
    "How far each group of consumers has come.",
    (
        _is("group", "string", ""),
        _is("topic", "string", ""),
        _is("queue", "int", ""),
        _is("next_offset", "long", "of the first message that is not acknowledged"),
    ),
)

ITEMS: Final = Table(
    "items",
    "The transfers that are not agreed at the end of the day, and those that were closed on it.",
    (
        _is("break_id", "string", "the same on every day and in every run"),
        _is("key", "string", "the transfer"),
        _is("class", "string", "the name of a class"),
        _may("was", "string", "the class of what is explained"),
        _is("group", "string", "agreed, open or break, as the class"),
        _is("status", "string", "new, open, changed, reopened, explained or closed"),
        _is("amount", "long", "what is at risk"),
        _is("currency", "string", ""),
        _is("holder", "string", "who has the money: payer, payee, both, nobody or transit"),
        _may("debit_bank", "string", ""),
        _may("credit_bank", "string", ""),
        _may("payer", "string", "the account that was debited, or that the message names"),
        _may("payee", "string", "the account that was credited, or that the message names"),
        _is("debits", "int", "how many"),
        _is("debited", "long", "their sum"),
        _is("returns", "int", ""),
        _is("returned", "long", ""),
        _is("credits", "int", ""),
        _is("credited", "long", ""),
        _is("messages", "int", "those with ids of their own that were visible"),
        _is("ordered", "long", "what a message says"),
        _may("message_id", "string", "of one of them"),
        _may("message_state", "string", "as in messages"),
        _may("delivery", "string", "undelivered, unacknowledged, retrying, dead, consumed"),
        _may("decided_by", "string", "as in messages"),
        _may("reason", "string", "of a decision by hand, or of a dead letter"),
        _is("is_late", "boolean", "whether something was booked into a day that was over"),
        _is("first_ms", "long", "when it was first heard of"),
        _is("last_ms", "long", "and last"),
        _is(
            "first_seen",
            "string",
            "the business date on which it was first an item, or was one again",
        ),
        _is("age_days", "int", "business days since then"),
        _is("bucket", "string", "0, 1, 2-3, 4-7 or >7 of them"),
        _is("history", "string", "all that it was: date, class and status, separated by commas"),
        _may("explained_by", "string", ""),
        _may("explanation", "string", ""),
    ),
)

BALANCES: Final = Table(
    "balances",
    "Each account of each bank over the day.",
    (
        _is("bank", "string", ""),
        _is("account", "string", ""),
        _is("role", "string", "as in entries"),
        _is("currency", "string", ""),
        _is("opening", "long", "what the bank says it had"),
        _is("rows", "long", "entries of the day"),
        _is("moved", "long", "their sum"),
        _is("closing", "long", "opening and moved"),
        _is("later", "long", "what came after the day, until the books were read"),
        _may("told", "long", "what the table of accounts said then"),
        _is("closing_rows", "long", "entries of the day and before it, as the bank says"),
        _may("last_id", "long", "the greatest of their numbers that was seen, where none may miss"),
    ),
)

PROOFS: Final = Table(
    "proofs",
    "What was proved of the balances: what has to be equal, and is or is not.",
    (
        _is("proof", "string", "roll-forward, account-table, conservation, clearing, …"),
        _may("bank", "string", "none where it is about all of them"),
        _may("account", "string", "or the transfer; none where it is about all of them"),
        _may("currency", "string", ""),
        _is("expected", "long", ""),
        _is("found", "long", ""),
        _is("holds", "boolean", ""),
        _is("about", "string", "in words"),
    ),
)

TOTALS: Final = Table(
    "totals",
    "What each class has; the classes add up to what the ledgers have.",
    (
        _is("class", "string", ""),
        _is("group", "string", ""),
        _is("currency", "string", ""),
        _is("transfers", "long", ""),
        _is("debited", "long", ""),
        _is("returned", "long", ""),
        _is("credited", "long", ""),
        _is("ordered", "long", ""),
        _is("at_risk", "long", ""),
    ),
)

MATCHES: Final = Table(
    "matches",
    "The transfers that are agreed.",
    (
        _is("key", "string", ""),
        _is("class", "string", "matched, returned or rolled-back"),
        _is("amount", "long", ""),
        _is("currency", "string", ""),
    ),
)

SOURCES: Final = (ENTRIES, OPENING, LATER, ACCOUNTS, MESSAGES, FAILURES, OFFSETS)
"""What an extract holds; the first four of each bank, the others of the log."""

RECURRING: Final = frozenset({
    "bank", "bucket", "class", "credit_bank", "currency", "debit_bank", "decided_by", "delivery",
    "first_seen", "group", "holder", "kind", "message_state", "problem", "proof", "reason", "role",
    "state", "status", "topic", "was",
})  # fmt: skip
"""Columns of few texts that come again and again. Files keep a dictionary of these and of no
others: of keys and accounts it takes its time, and gives no room back that compression would not.
"""
