"""The classes of transfers; pure.

Every transfer of a day is in exactly one class, so the classes add up to the banks' entries and the
log's messages. ``agreed`` classes need no action, ``open`` ones can still complete in time, and
``break`` ones need a person.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, Self, TypeAlias

__all__ = ["Class", "Group"]

Group: TypeAlias = Literal["agreed", "open", "break"]


class Class(StrEnum):
    """The classes of transfers, in the order of the checks: the first one that fits counts."""

    _value_: str
    group: Group
    meaning: str
    cause: str
    """The most likely cause. Agreed classes have neither a cause nor an action."""
    action: str

    # ``Class(name)`` finds a class by its name, so type checkers must see one required argument.
    def __new__(cls, name: str, group: Group = "break", text: str = "") -> Self:
        """Make a class; the lines of ``text`` are its meaning, its cause and its action."""
        made = str.__new__(cls, name)
        made._value_, made.group = name, group
        lines = [line.strip() for line in text.strip().splitlines()]
        made.meaning, made.cause, made.action = (*lines, "", "")[:3]
        return made

    # fmt: off
    DUPLICATE_ID = "duplicate-id", "break", """
        the id of a transfer was debited and ordered again on a later date
        the program that issues ids began anew, or an old transfer was repeated as a new one
        find out whether the customer ordered two transfers: else take the second one back"""
    DUPLICATE_DEBIT = "duplicate-debit", "break", """
        the payer was debited, or paid back, more than once
        a debit or a return was repeated, and the bank that pays has no unique key for it
        give a second debit back to the payer, or take a second return back; add a unique key"""
    DUPLICATE_CREDIT = "duplicate-credit", "break", """
        the ledger of the payee's bank has the same row more than once
        an import, a restored backup or a partition of the table was read twice
        remove the copies from the ledger, or correct what reads it"""
    DUPLICATE_MESSAGE = "duplicate-message", "break", """
        several messages with ids of their own order the same transfer
        a program sent the order again as a new message, or it is a forgery
        find the sender by the messages' ids; see that the payee's bank credited once"""
    DOUBLE_CREDIT = "double-credit", "break", """
        the payee was credited more than once, or was credited and the payer was paid back
        a message was handled twice without a guard, or returned although it was credited
        take the second credit back from the payee, or the return from the payer; add a guard"""
    CURRENCY_MISMATCH = "currency-mismatch", "break", """
        the sides of a transfer have different currencies
        a row or a message was changed, or a service took a default currency
        compare the three sides with the customer's order, and correct the wrong one"""
    AMOUNT_MISMATCH = "amount-mismatch", "break", """
        the amounts of the sides differ, a sign is wrong, or the message's amount is unreadable
        a row or a message was changed after the fact, or a fee was booked under the same id
        compare the three sides with the customer's order, and correct the wrong one"""
    ACCOUNT_MISMATCH = "account-mismatch", "break", """
        another account was booked than the message names, or gave back more than it had
        a row was changed, or a payment was posted to a wrong account by hand
        see which payer and payee the customer named, and move the money between these"""
    FEE_TOO_HIGH = "fee-too-high", "break", """
        the fee is higher than the rules allow, or than the amount of the transfer
        a wrong tariff, a fee that was booked twice, or a limit that is out of date
        compare the fee with the tariff: give back what is too much, or raise charges_max"""
    CREDIT_WITHOUT_MESSAGE = "credit-without-message", "break", """
        an account was credited or paid back, and no message that was ever visible ordered it
        it was booked by hand, or a transfer of this id was never made
        ask who booked it; take the money back from its receiver if the booking has no reason"""
    ROLLED_BACK_BUT_DEBITED = "rolled-back-but-debited", "break", """
        the payer was debited, and the message was rolled back
        the debit was committed outside its transaction, or a database lost its last commits
        pay the payer back or send it again; if the payee was credited, take that back first"""
    WRONG_BANK = "wrong-bank", "break", """
        a bank booked a side of the transfer that another bank should have booked
        it was posted by hand, or the bank that sent the order has also handled it
        take the booking back at the bank that has it, and have the right bank book it"""
    COMMITTED_BUT_NOT_DEBITED = "committed-but-not-debited", "break", """
        the message was committed, and the payer was not debited
        the debit was deleted, a database lost its last commits, or it was decided by hand
        debit the payer; or stop the message, and take the credit back if there is one"""
    MESSAGE_WITHOUT_DEBIT = "message-without-debit", "break", """
        a message outside any transaction orders a transfer that was not debited
        a forged message, or an outbox whose database lost its last commits
        find the sender by the message's id; take the credit back if there is one"""
    DEBIT_WITHOUT_MESSAGE = "debit-without-message", "break", """
        the payer was debited, and the other bank received no message
        no relay works on the outbox, or the message was lost before it was stored
        see that a relay runs; else pay the payer back or send the transfer again"""
    PARKED = "parked", "break", """
        the message is undecided: all checks answered UNKNOWN, or no service could be asked
        the service that answers checks is down, or cannot see its database
        decide it: txmq resolve, or txmq tx commit or rollback with the reason"""
    DEAD_LETTER = "dead-letter", "break", """
        the payee's bank could not handle the message, and gave it up
        the handler failed each time; the dead letter has the reason
        repair the handler and resend it (txmq dlq resend), or pay the payer back"""
    COMMITTED_UNDELIVERED = "committed-undelivered", "break", """
        the message waits for longer than it may, and no consumer has taken it
        the payee's bank does not consume, or is far behind
        see the group's progress (txmq group progress), and start its consumers"""
    DELIVERED_UNCREDITED = "delivered-uncredited", "break", """
        the payee's bank has taken the message, and the payee was not credited
        the credit was deleted, the handler is still retrying, or it reported success wrongly
        see the payee's bank's log for the message; credit the payee by hand if it must be"""
    RECALLED_UNRETURNED = "recalled-unreturned", "break", """
        the credit was taken back from the payee, and the payer was not paid back as much
        the return is under way, or the payer's bank has not booked it
        pay the payer back; after a wrong recall, have the transfer ordered again with a new id"""
    IN_FLIGHT = "in-flight", "open", """
        the transfer was under way when the day ended, for no longer than it may
        it began shortly before the cut-off
        none; it is matched on the next day, or becomes a break"""
    PRIOR_PERIOD = "prior-period", "break", """
        all sides agree, and they were booked into a day that is over
        a late or backdated booking
        have the change signed; reconcile that day again where the bank keeps one moment only"""
    EXPLAINED = "explained", "open", """
        a person has explained the break
        see the explanation and its author
        none, as long as its facts stay the same"""
    RETURNED = "returned", "agreed", """
        the payer was debited, and paid back all that the payee did not keep"""
    ROLLED_BACK = "rolled-back", "agreed", "the transfer was rolled back on all sides"
    MATCHED = "matched", "agreed", "all sides agree"
    # fmt: on
