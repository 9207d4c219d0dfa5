"""Whatever rows a bank has, they come out of the extract as they went in."""

import re
import tempfile
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reconcile.extracts import JOURNAL, START_MS, Books, bank_of, book, in_order, rules_of
from txmq.errors import ReconcileRefused

BEYOND = "which does not fit into 64 bits"
LONG_MAX = (1 << 63) - 1
LONG = st.integers(-LONG_MAX, LONG_MAX)
WORD = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
ROW = st.fixed_dictionaries(
    {
        "id": st.none() | LONG,
        "transfer": st.none() | WORD,
        "account": WORD | st.sampled_from(["clearing", "capital", "it's", 'a "b"', "\\'"]),
        "amount": LONG,
        "currency": st.sampled_from(["CNY", "USD", "JPY"]),
        "kind": st.none() | st.sampled_from(["debit", "C", "return", "fee", "D'"]),
        "booked": st.integers(START_MS - 1000, START_MS + 86_401_000)
        | st.sampled_from([START_MS - 1, START_MS, START_MS + 86_399_999, START_MS + 86_400_000]),
    }
)
KINDS = {"debit": ["debit", "D'"], "credit": ["C"], "return": ["return"]}
KIND = {word: kind for kind, words in KINDS.items() for word in words}
ROLES = {"clearing": "clearing", "capital": "capital", "it's": "suspense", "\\'": "suspense"}


def expected(row):
    key = row["transfer"]
    return {
        "id": row["id"],
        "key": f"icbc/{key}" if key and key.strip(" ") else None,
        "kind": KIND.get(row["kind"], "other"),
        "role": ROLES.get(row["account"], "customer"),
        "account": row["account"],
        "amount": row["amount"],
        "currency": row["currency"],
        "booked_ms": row["booked"],
        "recorded_ms": row["booked"],
    }


@pytest.fixture(params=["postgresql", "sqlite"], scope="module")
def bank(request, postgres, tmp_path_factory):
    with book(request.param, postgres, tmp_path_factory.mktemp("any")) as found:
        found.kind = request.param
        found.journal([])
        types = {"amount": "TEXT", "booked": "TEXT"}
        if found.kind == "postgresql":
            types = {"amount": "NUMERIC(24, 4)", "booked": "TIMESTAMPTZ"}
        found.journal([], JOURNAL | types, name="typed")
        yield found


def books_of(bank, rows, table="journal", **told):
    """What the bank gives that has these rows."""
    bank.run(f"DELETE FROM {table}")
    bank.add(rows, name=table)
    with tempfile.TemporaryDirectory() as folder:
        return Books(rules_of(Path(folder), bank_of(bank, table=table, **told)))


def fit(rows):
    """Whether all sums of accounts before and after the day are numbers of 64 bits."""
    sums = Counter()
    for row in rows:
        period = (row["booked"] >= START_MS) + (row["booked"] >= START_MS + 86_400_000)
        sums[period, row["account"], row["currency"]] += row["amount"]
    return all(abs(sum_) < 1 << 63 for (period, *_), sum_ in sums.items() if period != 1)


def test_an_opening_sum_beyond_64_bits_is_refused(bank):
    row = {"id": 1, "transfer": None, "account": "a", "currency": "CNY", "kind": None}
    told = r"icbc/opening: the entries of account a add up to 9223372036854775808 CNY in minor"
    amounts = 31_923, (1 << 63) - 31_923
    rows = [row | {"amount": amount, "booked": START_MS - 1} for amount in amounts]

    with pytest.raises(ReconcileRefused, match=told):
        books_of(bank, rows, kinds=KINDS)


def test_accounts_that_fit_in_64_bits_may_have_a_larger_total(bank):
    row = {"id": 1, "transfer": None, "currency": "CNY", "kind": None, "booked": START_MS - 1}
    amounts = {"a": LONG_MAX, "b": LONG_MAX, "c": -LONG_MAX}
    rows = [row | {"account": name, "amount": amount} for name, amount in amounts.items()]
    rows += [row | {"account": "c", "amount": amount} for amount in (LONG_MAX, LONG_MAX, -1)]

    opening = books_of(bank, rows, kinds=KINDS).rows(table="opening")
    sums = {row["account"]: row["amount"] for row in opening}

    assert sums == amounts | {"c": LONG_MAX - 1}


@settings(max_examples=15)
@given(rows=st.lists(ROW, max_size=20))
def test_an_extract_has_the_rows_of_the_bank_unchanged(bank, rows):
    special = {"capital": ["capital"], "suspense": ["it's", "\\'"]}
    try:
        found = books_of(bank, rows, kinds=KINDS, **special)
    except ReconcileRefused as refused:
        if fit(rows) or not re.search(BEYOND, str(refused)):
            raise
        return
    entries, opening, later = (found.rows(table=name) for name in ("entries", "opening", "later"))

    end = START_MS + 86_400_000
    assert entries == in_order(expected(row) for row in rows if START_MS <= row["booked"] < end)
    for table, wanted in (
        (opening, [row for row in rows if row["booked"] < START_MS]),
        (later, [row for row in rows if row["booked"] >= end]),
    ):
        assert sum(row["amount"] for row in table) == sum(row["amount"] for row in wanted)
        assert sum(row["rows"] for row in table) == len(wanted)
        named = {(row["account"], row["role"], row["currency"]) for row in table}
        assert len(named) == len(table)


@settings(max_examples=15)
@given(
    rows=st.lists(
        st.tuples(
            st.decimals(-(10**15), 10**15, places=2, allow_nan=False),
            st.datetimes(datetime(2024, 11, 20), datetime(2024, 11, 20, 23, 59, 59, 999_999)),
        ),
        max_size=10,
    )
)
def test_decimals_and_moments_keep_all_their_digits(bank, rows):
    given_rows = [{"amount": amount, "booked": at.replace(tzinfo=UTC)} for amount, at in rows]
    if bank.kind == "sqlite":
        given_rows = [
            {"amount": str(amount), "booked": f"{at.isoformat(sep=' ')}+00:00"}
            for amount, at in rows
        ]

    found = books_of(bank, given_rows, "typed", units="major", time="timestamptz")

    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert [(entry["amount"], entry["booked_ms"]) for entry in found.rows()] == [
        (
            int(Decimal(amount) * 100),
            int((moment.replace(tzinfo=UTC) - epoch) / (epoch.resolution * 1000)),
        )
        for amount, moment in rows
    ]
