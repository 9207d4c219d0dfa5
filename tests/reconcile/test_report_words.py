"""Amounts, shares, durations and masked account numbers, as reports write them."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.reconcile.report.words import (
    amount,
    mask,
    moment,
    points,
    rate,
    seconds,
    signed,
)
from txmq.reconcile.summary import Past


def day(share, transfers=1):
    return Past("2026-11-20", transfers, share, 0, 0, {}, "clean")


MONEY = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    ("minor", "digits", "written"),
    [
        (0, 2, "0.00"),
        (5, 2, "0.05"),
        (-5, 2, "-0.05"),
        (123_456_789, 2, "1,234,567.89"),
        (-123_456_789, 2, "-1,234,567.89"),
        (1_234, 0, "1,234"),
        (1_234, 3, "1.234"),
        (2**53 + 1, 2, "90,071,992,547,409.93"),
        (2**63 - 1, 6, "9,223,372,036,854.775807"),
    ],
)
def test_an_amount_is_written_in_major_units(minor, digits, written):
    assert amount(minor, digits) == written


@given(MONEY, st.integers(0, 6))
def test_an_amount_is_written_exactly(minor, digits):
    assert Decimal(amount(minor, digits).replace(",", "")).scaleb(digits) == minor


def test_a_change_is_written_with_its_sign():
    assert (signed(5), signed(-5), signed(0)) == ("+5", "-5", "±0")
    assert signed(1_234_500, 2) == "+12,345.00"


@pytest.mark.parametrize(
    ("share", "written"),
    [
        (1.0, "100%"),
        (999_999_999 / 1_000_000_000, "99.999%"),
        (0.29, "29.000%"),
        (0.99957, "99.957%"),
        (0.0, "0.000%"),
        (1e-9, "0.000%"),
    ],
)
def test_a_share_is_never_rounded_up(share, written):
    assert rate(day(share)) == written


def test_a_difference_of_shares_is_written_in_points():
    assert points(day(0.9995), day(0.9993)) == "+0.020 points"
    assert points(day(0.9993), day(0.9995)) == "-0.020 points"
    assert points(day(1.0), day(1.0)) == "±0"


@pytest.mark.parametrize(
    ("time_s", "written"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (61.2, "1 min 1 s"), (7_325, "2 h 2 min")],
)
def test_durations_are_written_for_people(time_s, written):
    assert seconds(time_s) == written


@pytest.mark.parametrize(
    ("zone", "shown"),
    [("UTC", "2026-11-20 16:00:00+00:00"), ("Asia/Shanghai", "2026-11-21 00:00:00+08:00")],
)
def test_moments_are_in_the_zone_of_the_rules(zone, shown):
    assert moment(1_795_190_400_999, zone) == shown


@pytest.mark.parametrize("at_ms", [2**63 - 1, -(2**63), 10**15])
def test_a_moment_outside_the_calendar_is_written_in_milliseconds(at_ms):
    assert moment(at_ms, "Asia/Shanghai") == f"{at_ms} ms"


@pytest.mark.parametrize(
    ("account", "shown"),
    [
        ("6222020200110011", "62…0011"),
        ("6222 0202 0011 0011", "62…0011"),
        ("622202020011", "62…0011"),
        ("62220202001", "62…01"),
        ("ICBC-001", "IC…01"),
        ("1900-CC", "1900-CC"),
        ("clearing", "cl…ng"),
        ("9000", "9000"),
        ("", ""),
    ],
)
def test_an_account_number_is_masked_by_its_length(account, shown):
    assert mask(account) == shown


@given(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=8, max_size=40))
def test_at_least_half_of_a_long_account_number_stays_hidden(account):
    shown = mask(account)

    assert shown == mask(account)
    head, hidden, end = shown.partition("…")
    assert hidden
    assert 2 * (len(head) + len(end)) <= len(account)
    assert len(head) <= 2
    assert len(end) <= 4
