"""The classes of transfers, in the order of their checks; pure.

Every transfer of a day is in exactly one class, so that the classes add up to the entries of the
banks and the messages of the log. ``agreed`` classes need no action, ``open`` ones can still
complete in time, and ``break`` ones need a person.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal, NamedTuple, TypeAlias

__all__ = ["ABOUT", "About", "Class", "Group"]

Group: TypeAlias = Literal["agreed", "open", "break"]


class Class(StrEnum):
    """The class of a transfer."""

    DUPLICATE_ID = "duplicate-id"
    DUPLICATE_DEBIT = "duplicate-debit"
    DUPLICATE_CREDIT = "duplicate-credit"
    DUPLICATE_MESSAGE = "duplicate-message"
    DOUBLE_CREDIT = "double-credit"
    CURRENCY_MISMATCH = "currency-mismatch"
    AMOUNT_MISMATCH = "amount-mismatch"
    ACCOUNT_MISMATCH = "account-mismatch"
    FEE_TOO_HIGH = "fee-too-high"
    CREDIT_WITHOUT_MESSAGE = "credit-without-message"
    ROLLED_BACK_BUT_DEBITED = "rolled-back-but-debited"
    COMMITTED_BUT_NOT_DEBITED = "committed-but-not-debited"
    MESSAGE_WITHOUT_DEBIT = "message-without-debit"
    DEBIT_WITHOUT_MESSAGE = "debit-without-message"
    PARKED = "parked"
    DEAD_LETTER = "dead-letter"
    COMMITTED_UNDELIVERED = "committed-undelivered"
    DELIVERED_UNCREDITED = "delivered-uncredited"
    RECALLED_UNRETURNED = "recalled-unreturned"
    IN_FLIGHT = "in-flight"
    PRIOR_PERIOD = "prior-period"
    EXPLAINED = "explained"
    RETURNED = "returned"
    ROLLED_BACK = "rolled-back"
    MATCHED = "matched"


class About(NamedTuple):
    """The meaning of a class, and what to do about it."""

    group: Group
    meaning: str
    cause: str
    """The most likely one."""
    action: str


ABOUT: Final[dict[Class, About]] = {
    Class.DUPLICATE_ID: About(
        "break",
        "the id of a transfer was debited and ordered again on a later date",
        "the program that issues ids began anew, or an old transfer was repeated as a new one",
        "find out whether the customer ordered two transfers: else take the second one back",
    ),
    Class.DUPLICATE_DEBIT: About(
        "break",
        "the payer was debited, or paid back, more than once",
        "a debit or a return was repeated, and the bank that pays has no unique key for it",
        "give a second debit back to the payer, or take a second return back; add a unique key",
    ),
    Class.DUPLICATE_CREDIT: About(
        "break",
        "the ledger of the payee's bank has the same row more than once",
        "an import, a restored backup or a partition of the table was read twice",
        "remove the copies from the ledger, or correct what reads it",
    ),
    Class.DUPLICATE_MESSAGE: About(
        "break",
        "several messages with ids of their own order the same transfer",
        "a program sent the order again as a new message, or it is a forgery",
        "find the sender by the messages' ids; see that the payee's bank credited once",
    ),
    Class.DOUBLE_CREDIT: About(
        "break",
        "the payee was credited more than once, or was credited and the payer was paid back",
        "a message was handled twice without a guard, or returned although it was credited",
        "take the second credit back from the payee, or the return from the payer; add a guard",
    ),
    Class.CURRENCY_MISMATCH: About(
        "break",
        "the sides of a transfer have different currencies",
        "a row or a message was changed, or a service took a default currency",
        "compare the three sides with the customer's order, and correct the wrong one",
    ),
    Class.AMOUNT_MISMATCH: About(
        "break",
        "the amounts of the sides differ, a sign is wrong, or the message's amount is unreadable",
        "a row or a message was changed after the fact, or a fee was booked under the same id",
        "compare the three sides with the customer's order, and correct the wrong one",
    ),
    Class.ACCOUNT_MISMATCH: About(
        "break",
        "another account was booked than the message names, or gave back more than it had",
        "a row was changed, or a payment was posted to a wrong account by hand",
        "see which payer and payee the customer named, and move the money between these",
    ),
    Class.FEE_TOO_HIGH: About(
        "break",
        "the fee is more than the rules allow, or than the transfer; the amounts agree with it",
        "a wrong tariff, a fee that was booked twice, or a limit that is out of date",
        "compare the fee with the tariff: give back what is too much, or raise charges_max",
    ),
    Class.CREDIT_WITHOUT_MESSAGE: About(
        "break",
        "somebody was credited or paid back, and no message that was ever visible ordered it",
        "it was booked by hand, or a transfer of this id was never made",
        "ask who booked it; take the money back from its receiver if the booking has no reason",
    ),
    Class.ROLLED_BACK_BUT_DEBITED: About(
        "break",
        "the payer was debited, and the message was rolled back",
        "the debit was committed outside its transaction, or a database lost its last commits",
        "pay the payer back or send it again; if the payee was credited, take that back first",
    ),
    Class.COMMITTED_BUT_NOT_DEBITED: About(
        "break",
        "the message was committed, and the payer was not debited",
        "the debit was deleted, a database lost its last commits, or it was decided by hand",
        "debit the payer; or stop the message, and take the credit back if there is one",
    ),
    Class.MESSAGE_WITHOUT_DEBIT: About(
        "break",
        "a message outside any transaction orders a transfer that was not debited",
        "a forged message, or an outbox whose database lost its last commits",
        "find the sender by the message's id; take the credit back if there is one",
    ),
    Class.DEBIT_WITHOUT_MESSAGE: About(
        "break",
        "the payer was debited, and the other bank received no message",
        "no relay works on the outbox, or the message was lost before it was stored",
        "see that a relay runs; else pay the payer back or send the transfer again",
    ),
    Class.PARKED: About(
        "break",
        "the message is undecided: all checks answered UNKNOWN, or no service could be asked",
        "the service that answers checks is down, or cannot see its database",
        "decide it: txmq resolve, or txmq tx commit or rollback with the reason",
    ),
    Class.DEAD_LETTER: About(
        "break",
        "the payee's bank could not handle the message, and gave it up",
        "the handler failed each time; the dead letter has the reason",
        "repair the handler and resend it (txmq dlq resend), or pay the payer back",
    ),
    Class.COMMITTED_UNDELIVERED: About(
        "break",
        "the message waits for longer than it may, and no consumer has taken it",
        "the payee's bank does not consume, or is far behind",
        "see the group's progress (txmq group progress), and start its consumers",
    ),
    Class.DELIVERED_UNCREDITED: About(
        "break",
        "the payee's bank has taken the message, and the payee was not credited",
        "the credit was deleted, the handler is still retrying, or it reported success wrongly",
        "see the payee's bank's log for the message; credit the payee by hand if it must be",
    ),
    Class.RECALLED_UNRETURNED: About(
        "break",
        "the credit was taken back from the payee, and the payer was not paid back as much",
        "the return is under way, or the payer's bank has not booked it",
        "pay the payer back; if the recall was wrong, have it ordered again under a new id",
    ),
    Class.IN_FLIGHT: About(
        "open",
        "the transfer was under way when the day ended, for no longer than it may",
        "it began shortly before the cut-off",
        "none; it is matched on the next day, or becomes a break",
    ),
    Class.PRIOR_PERIOD: About(
        "break",
        "all sides agree, and they were booked into a day that is over",
        "a late or backdated booking",
        "have the change signed; reconcile that day again where the bank keeps one moment only",
    ),
    Class.EXPLAINED: About(
        "open",
        "a person has explained the break",
        "see the explanation and its author",
        "none, as long as its facts stay the same",
    ),
    Class.RETURNED: About(
        "agreed", "the payer was debited, and paid back all that the payee did not keep", "", ""
    ),
    Class.ROLLED_BACK: About("agreed", "the transfer was rolled back on all sides", "", ""),
    Class.MATCHED: About("agreed", "all sides agree", "", ""),
}
"""In the order of the checks: a transfer is in the first class that fits."""
