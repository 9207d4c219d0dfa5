"""Opens accounts: ``python -m examples.bank_transfer.accounts --database URL ICBC-A=30,000.00``.

Existing accounts stay as they are.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from examples.bank_transfer.booking import wall_ms
from examples.bank_transfer.books import BALANCE_MAX, Account
from examples.bank_transfer.databases import Opening, create_books, engine, open_accounts
from examples.bank_transfer.money import DIGITS, Money
from examples.bank_transfer.orders import NUMBERS, is_number
from examples.bank_transfer.texts import words
from txmq.errors import TxmqError

__all__ = ["arguments", "main"]


def arguments() -> ArgumentParser:
    """The options of the command line."""
    parser = ArgumentParser(
        prog="python -m examples.bank_transfer.accounts", description="Open accounts at a bank."
    )
    parser.add_argument("--database", required=True, help="a URL of PostgreSQL or SQLite")
    parser.add_argument("--currency", default="CNY", choices=DIGITS, help="their currency (CNY)")
    parser.add_argument(
        "accounts", nargs="+", metavar="NUMBER=AMOUNT", help="such as ICBC-A=30,000.00"
    )
    return parser


def opening(text: str, currency: str) -> Opening:
    """An account from its text on the command line.

    Raises:
        ValueError: The text has another form, or the account is invalid.
    """
    number, equals, amount = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} has no amount; write NUMBER=AMOUNT, like ICBC-A=30,000.00")
    if not is_number(number):
        raise ValueError(f"{number!r} is not an account number: {NUMBERS}")
    money = Money.read(amount, currency)
    if money.minor > BALANCE_MAX:
        raise ValueError(f"an account holds at most {Money(BALANCE_MAX, currency)}")
    return Opening(number, f"customer {number}", money.minor, currency)


def open_missing(database: str, wanted: list[Opening]) -> list[Opening]:
    """Open the missing accounts, and return them.

    Raises:
        TxmqError: The database cannot be used.
        SQLAlchemyError: Likewise.
        ValueError: An account is named twice.
    """
    if len({account.number for account in wanted}) < len(wanted):
        raise ValueError("an account is named twice")
    create_books(database)
    made = engine(database)
    try:
        with Session(made) as session:
            there = set(session.scalars(select(Account.number)))
    finally:
        made.dispose()
    missing = [account for account in wanted if account.number not in there]
    open_accounts(database, missing, wall_ms())
    return missing


def main() -> None:
    """Open the accounts of the command line; if that fails, exit with 1 and a sentence."""
    given = arguments().parse_args()
    try:
        wanted = [opening(account, given.currency) for account in given.accounts]
        opened = open_missing(given.database, wanted)
    except (TxmqError, SQLAlchemyError, ValueError) as error:
        sys.exit(f"no account was opened: {words(error)}")
    for account in wanted:
        if account in opened:
            print(f"opened {account.number} with {Money(account.balance, account.currency)}")
        else:
            print(f"{account.number} exists already, and stays as it is")


if __name__ == "__main__":
    main()
