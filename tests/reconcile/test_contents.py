"""The hash of an extract's rows: the same in any order, and different if any row differs."""

import random
from collections import Counter

import pyarrow as pa
from hypothesis import given, note
from hypothesis import strategies as st

from txmq.reconcile.arrow import arrow_schema
from txmq.reconcile.contents import ContentHash
from txmq.reconcile.tables import Column, TableSchema

TABLE = TableSchema(
    "some",
    (
        Column("name", "string", True),
        Column("other", "string", True),
        Column("number", "long", True),
        Column("small", "int", True),
    ),
)
SCHEMA = arrow_schema(TABLE)
LONG = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["", "\0", "\0\0", "a", "a\0", "12345678", "123456789", "x" * 256, "x" * 257]),
    st.integers(250, 600).map(lambda size: "y" * size),
)
ROWS = st.lists(
    st.tuples(
        st.none() | TEXTS,
        st.none() | TEXTS,
        st.none() | LONG,
        st.none() | st.integers(-(2**31), 2**31 - 1),
    ),
    max_size=40,
)


def word(*batches):
    contents = ContentHash(TABLE)
    for rows in batches:
        columns = [list(row) for row in zip(*rows, strict=True)] or [[]] * len(SCHEMA)
        # A slice of something larger, as batches often are.
        arrays = [
            pa.array([*column[:1], *column], field.type)[len(column[:1]) :]
            for column, field in zip(columns, SCHEMA, strict=True)
        ]
        contents.add(pa.record_batch(arrays, SCHEMA))
    return contents.word


@given(ROWS, st.randoms(use_true_random=False), st.integers(0, 40))
def test_the_hash_depends_on_neither_row_order_nor_batches(rows, chance, cut):
    shuffled = chance.sample(rows, len(rows))

    assert word(shuffled[:cut], shuffled[cut:]) == word(rows)


@given(ROWS, ROWS)
def test_different_rows_have_different_hashes(one, other):
    assert (word(one) == word(other)) == (Counter(one) == Counter(other))


@given(ROWS.filter(bool), st.randoms(use_true_random=False), st.data())
def test_changing_any_cell_changes_the_hash(rows, chance, data):
    row, place = chance.randrange(len(rows)), chance.randrange(len(SCHEMA))
    others = data.draw(ROWS.filter(bool))
    changed = list(rows[row])
    changed[place] = others[0][place]
    edited = [*rows[:row], tuple(changed), *rows[row + 1 :]]
    note(f"row {row}, {SCHEMA.names[place]}: {others[0][place]!r}")

    assert (word(rows) == word(edited)) == (Counter(rows) == Counter(edited))


def test_swapping_two_accounts_changes_the_hash():
    chance = random.Random(7)
    rows = [(f"icbc/t-{index}", f"6222{index % 50:016}", index, 1) for index in range(2_000)]
    for _ in range(20):
        one, other = chance.sample(range(len(rows)), 2)
        swapped = list(rows)
        swapped[one] = (rows[one][0], rows[other][1], *rows[one][2:])
        swapped[other] = (rows[other][0], rows[one][1], *rows[other][2:])
        assert (word(swapped) == word(rows)) == (rows[one][1] == rows[other][1])
