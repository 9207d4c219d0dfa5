"""Amounts as people write them: which are valid, and that parsing loses nothing."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from examples.bank_transfer.money import DIGITS, Money

CURRENCIES = sorted(DIGITS)


@given(st.integers(0, 10**15 - 1), st.sampled_from(CURRENCIES))
@example(0, "JPY")
@example(5, "CNY")
def test_a_printed_amount_parses_to_the_same_value(minor, currency):
    money = Money(minor, currency)

    written, _, behind = str(money).partition(" ")

    assert behind == currency
    assert Money.read(written, currency) == money
    assert Money.read(written.replace(",", ""), currency) == money
    assert Money.read(f"  {written}\n", currency) == money


@given(st.integers(1, 10**15 - 1), st.sampled_from(CURRENCIES))
def test_negative_amounts_are_printed_and_refused_as_input(minor, currency):
    written, _, _ = str(Money(-minor, currency)).partition(" ")

    assert written == "-" + str(Money(minor, currency)).partition(" ")[0]
    with pytest.raises(ValueError, match="is not an amount"):
        Money.read(written, currency)


@pytest.mark.parametrize(
    ("text", "minor"),
    [
        ("10000", 10_000_00),
        ("10,000.00", 10_000_00),
        ("0.5", 50),
        ("0.05", 5),
        ("007", 700),
        ("1,234,567.8", 1_234_567_80),
    ],
)
def test_amounts_in_yuan_are_read_as_fen(text, minor):
    assert Money.read(text, "CNY") == Money(minor, "CNY")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "NaN",
            "nan",
            "inf",
            "Infinity",
            "-0",
            "-1",
            "+1",
            "1e5",
            "1E5",
            "0x10",
            "1_000",
        ),
        *("١٢", "１２", "万", "½", "1²", "1 000", "1\u00a0000", "1\u2009000", "1'000", "1\x00"),
        *(",1", "1,", "1,00", "1,0000", "1,,000", "10,00", "1000,000", "1,000,00", "1.000,00"),
        *(".5", "5.", "1.2.3", "1.0,0", ".", ",", "10000.00 CNY", "¥10", "10;DROP", "ten"),
    ],
)
def test_malformed_amounts_are_refused(text):
    for currency in CURRENCIES:
        with pytest.raises(ValueError, match="is not an amount"):
            pytest.fail(f"it is {Money.read(text, currency)}")


@pytest.mark.parametrize(
    ("text", "currency"),
    [("0.001", "CNY"), ("1.000", "EUR"), ("1.0", "JPY"), ("1.00000000000000000001", "USD")],
)
def test_amounts_with_too_many_decimals_are_refused(text, currency):
    with pytest.raises(ValueError, match="digits after the point"):
        Money.read(text, currency)


@pytest.mark.parametrize("zeros", [16, 100, 4_290, 10_000, 100_000])
@pytest.mark.parametrize("one", ["1{}", "1{}.00"])
def test_amounts_of_more_than_15_digits_are_refused(zeros, one):
    with pytest.raises(ValueError, match="has more than 15 digits"):
        Money.read(one.format("0" * zeros), "CNY")


@pytest.mark.parametrize("currency", ["", "cny", "CNY ", "GBP", "\x00", "C" * 1_000])
def test_unknown_currencies_are_refused(currency):
    with pytest.raises(ValueError, match="is not a currency of these banks"):
        Money.read("1", currency)
    with pytest.raises(ValueError, match="is not a currency of these banks"):
        Money(1, currency)


@given(st.text(max_size=30), st.sampled_from(CURRENCIES))
def test_any_text_parses_as_an_amount_or_raises_value_error(text, currency):
    try:
        money = Money.read(text, currency)
    except ValueError:
        return

    assert 0 <= money.minor < 10**18
    assert Money.read(str(money).partition(" ")[0], currency) == money


@pytest.mark.parametrize("currency", CURRENCIES)
def test_the_error_for_a_malformed_amount_shows_a_valid_example(currency):
    with pytest.raises(ValueError, match="write one like") as refused:
        Money.read("ten", currency)

    shown = str(refused.value).rpartition(" ")[2]
    assert shown == str(Money.read(shown, currency)).partition(" ")[0]
