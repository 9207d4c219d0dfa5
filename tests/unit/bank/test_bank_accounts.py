"""Accounts from the command line: valid numbers and balances within the limit."""

import pytest

from examples.bank_transfer.accounts import opening
from examples.bank_transfer.databases import Opening


def test_an_account_option_sets_number_and_opening_balance():
    assert opening("ICBC-A=30,000.00", "CNY") == Opening("ICBC-A", "customer ICBC-A", 30_000_00)
    assert opening("ICBC-A=10,000,000,000,000.00", "CNY").balance == 10**15


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("icbc-a=5", "'icbc-a' is not an account number: it has up to 34"),
        ("capital=5", "'capital' is not an account number"),
        ("=5", "'' is not an account number"),
        ("A" * 35 + "=5", "is not an account number"),
        ("ICBC-A", "'ICBC-A' has no amount; write NUMBER=AMOUNT"),
        ("ICBC-A=-5", "'-5' is not an amount"),
        ("ICBC-A=10,000,000,000,000.01", "an account holds at most 10,000,000,000,000.00 CNY"),
    ],
)
def test_an_invalid_account_option_is_refused(written, words):
    with pytest.raises(ValueError, match="account|amount") as error:
        opening(written, "CNY")

    assert words in str(error.value)
