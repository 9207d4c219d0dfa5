"""Rows that name no transfer: which of them are one booking."""

from hypothesis import given
from hypothesis import strategies as st

from txmq.reconcile.tables import EntryRow
from txmq.reconcile.transfer import split_bookings

AT_MS = 1_732_060_800_000


def entry(id_, amount, role="customer", kind="debit", currency="CNY"):
    place = "customer" if role == "customer" else "1900"
    where = kind, role, place, amount, currency, AT_MS, AT_MS, "icbc"
    return EntryRow(id_, f"icbc/@{AT_MS}", *where)


def keys(*rows):
    return {(row.id, row.role): row.key for row in split_bookings(rows)}


def test_a_row_belongs_to_the_clearing_row_of_the_opposite_amount():
    assert keys(entry(7, -5), entry(8, 5, "clearing")) == {
        (7, "customer"): "icbc/#7", (8, "clearing"): "icbc/#7",
    }  # fmt: skip


def test_rows_of_another_kind_amount_sign_or_currency_are_separate_bookings():
    others = [
        entry(8, 5, "clearing", kind="credit"),
        entry(9, 6, "clearing"),
        entry(10, -5, "clearing"),
        entry(11, 5, "clearing", currency="USD"),
    ]

    assert set(keys(entry(7, -5), *others).values()) == {f"icbc/#{id_}" for id_ in range(7, 12)}


def test_rows_without_an_id_are_named_by_their_time():
    rows = [entry(None, -5), entry(None, 5, "clearing")]

    assert set(keys(*rows).values()) == {f"icbc/#{AT_MS}"}
    assert rows[0].is_lone
    assert not rows[0]._replace(key="icbc/4711").is_lone


ROW = st.tuples(st.sampled_from([-5, 5]), st.sampled_from(["customer", "clearing"]))


@given(rows=st.lists(ROW, max_size=12), random=st.randoms())
def test_no_row_is_lost_and_their_order_does_not_matter(rows, random):
    entries = [entry(id_, *row) for id_, row in enumerate(rows)]
    shuffled = random.sample(entries, len(entries))

    found = list(split_bookings(shuffled))

    assert sorted(row.id for row in found) == [row.id for row in entries]
    assert keys(*entries) == keys(*shuffled)
    of = {}
    for row in found:
        of.setdefault(row.key, []).append(row)
    for some in of.values():
        assert len(some) == 1 or (len(some) == 2 and sum(row.amount for row in some) == 0)
    alone = [row for some in of.values() if len(some) == 1 for row in some]
    for leg in (row for row in alone if row.role == "customer"):
        assert not any(row.role == "clearing" and row.amount == -leg.amount for row in alone)
