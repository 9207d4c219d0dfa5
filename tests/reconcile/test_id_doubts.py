"""Ids that programs changed on the way: which items may be one transfer."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reconcile.breaks import rules, transfer
from tests.reconcile.extracts import DAY
from txmq.reconcile.arrow import arrow_schema
from txmq.reconcile.items import LONG, BreakLife, with_doubts
from txmq.reconcile.tables import ITEMS
from txmq.reconcile.transfer import TransferRows

DEBIT = {
    "debits": 1, "debited": 100, "messages": 0, "ordered": 0, "credits": 0, "credited": 0,
    "payer": "alice", "payee": None,
}  # fmt: skip
CREDIT = DEBIT | {
    "debits": 0, "debited": 0, "messages": 1, "ordered": 100, "credits": 1, "credited": 100,
    "payee": "bob",
}  # fmt: skip


def found(*items):
    """The doubt and the suggestion of each item, which is its key and facts."""
    life = BreakLife(rules(), DAY, {})
    rows = [
        life.item(
            transfer(f"icbc/{key}", "debit-without-message") | facts, TransferRows(f"icbc/{key}")
        )
        for key, facts in items
    ]
    table = with_doubts(pa.Table.from_pylist(rows, arrow_schema(ITEMS)))
    assert table.schema == arrow_schema(ITEMS)
    return [(row["id_doubt"], row["suggestion"]) for row in table.to_pylist()]


LONG_ID = "x" * (LONG + 7)


@pytest.mark.parametrize(
    ("one", "other", "doubt"),
    [
        ("T-1", "t-1", "case"),
        ("T-1", " T-1", "blanks"),
        ("T-1", "T-1\u3000", "blanks"),
        ("caf\u00e9", "cafe\u0301", "form"),
        ("T-1 ", "t-1", "blanks, case"),
        (LONG_ID, LONG_ID[:LONG], "length"),
        (LONG_ID, LONG_ID[:-1] + "y", "length"),
        (LONG_ID.upper(), LONG_ID[:LONG], "case, length"),
    ],
)
def test_two_spellings_of_an_id_are_suggested_to_each_other(one, other, doubt):
    assert found((one, DEBIT), (other, CREDIT)) == [
        (doubt, f"icbc/{other}"),
        (doubt, f"icbc/{one}"),
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"credited": 99},
        {"ordered": 101},
        {"currency": "USD"},
        {"payer": "mallory"},
        {"credits": 2},
        {"debits": 1, "debited": 100},
        {"returns": 1, "returned": 100},
        {"credits": 0, "credited": 0, "messages": 0, "ordered": 0},
    ],
)
def test_nothing_is_suggested_if_a_fact_differs(change):
    assert found(("T-1", DEBIT), ("t-1", CREDIT | change)) == [("case", None)] * 2


def test_nothing_is_suggested_if_there_are_several_candidates():
    assert found(("T-1", DEBIT), ("t-1", CREDIT), (" T-1", CREDIT)) == [("blanks, case", None)] * 3


def test_an_id_may_be_doubtful_without_a_similar_one():
    assert found(("T-1", DEBIT), ("T-2 ", DEBIT), ("e\u0301", DEBIT), (LONG_ID, DEBIT)) == [
        (None, None), ("blanks", None), ("form", None), ("length", None),
    ]  # fmt: skip


def test_similar_ids_of_two_banks_are_not_suggested():
    life = BreakLife(rules(), DAY, {})
    items = [
        life.item(transfer(key, "debit-without-message") | facts, TransferRows(f"icbc/{key}"))
        for key, facts in (("icbc/T-1", DEBIT), ("ccb/t-1", CREDIT))
    ]

    table = with_doubts(pa.Table.from_pylist(items, arrow_schema(ITEMS)))

    assert table["suggestion"].to_pylist() == table["id_doubt"].to_pylist() == [None, None]


SPELLINGS = st.sampled_from(["T-1", "t-1", "T-1 ", "T-2", "t-2", "\u00e9", "e\u0301"])


@given(items=st.dictionaries(SPELLINGS, st.sampled_from([DEBIT, CREDIT])), random=st.randoms())
def test_suggestions_are_mutual_and_do_not_depend_on_the_order(items, random):
    shuffled = random.sample(list(items.items()), len(items))

    one, other = (
        dict(zip((f"icbc/{key}" for key, _ in some), found(*some), strict=True))
        for some in (list(items.items()), shuffled)
    )

    assert one == other
    for key, (_, suggestion) in one.items():
        assert suggestion is None or one[suggestion][1] == key
