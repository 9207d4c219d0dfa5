"""A footer is put in order without a byte of it moving, whatever it holds."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.errors import ReconcileRefused
from txmq.reconcile.footers import TAIL, footer_size, with_encodings_in_order

ROWS = st.integers(0, 40)


def written(rows, columns, groups):
    """A file with statistics, nested columns, metadata and as many groups of rows."""
    table = pa.table(
        {
            **{f"n{index}": pa.array(range(rows), pa.int64()) for index in range(columns)},
            "s": [f"text {index % 3}" if index % 4 else None for index in range(rows)],
            "d": pa.array([index / 7 for index in range(rows)], pa.float64()),
            "b": pa.array([index % 2 == 0 for index in range(rows)], pa.bool_()),
            "l": pa.array([[index] * (index % 3) for index in range(rows)], pa.list_(pa.int32())),
        }
    )
    sink = pa.BufferOutputStream()
    table = table.replace_schema_metadata({"long": "x" * 300, "empty": ""})
    pq.write_table(table, sink, row_group_size=max(1, -(-rows // groups)))
    return sink.getvalue().to_pybytes()


def in_order(data):
    start = len(data) - TAIL - footer_size(data[-TAIL:])
    footer = with_encodings_in_order(data[start:-TAIL])
    return data[:start] + footer + data[-TAIL:]


def encodings(data):
    """Of every column of every group."""
    known = pq.ParquetFile(pa.BufferReader(data)).metadata
    return [
        known.row_group(group).column(index).encodings
        for group in range(known.num_row_groups)
        for index in range(known.num_columns)
    ]


@given(rows=ROWS, columns=st.integers(0, 20), groups=st.integers(1, 4))
def test_nothing_changes_but_the_order_of_encodings(rows, columns, groups):
    data = written(rows, columns, groups)
    ordered = in_order(data)

    assert len(ordered) == len(data)
    assert in_order(ordered) == ordered
    assert [sorted(encoding) for encoding in encodings(ordered)] == [
        sorted(encoding) for encoding in encodings(data)
    ]
    assert pq.read_table(pa.BufferReader(ordered)).equals(pq.read_table(pa.BufferReader(data)))


@given(st.randoms(use_true_random=False))
def test_encodings_in_any_order_come_to_the_same(chance):
    data = written(20, 2, 2)
    # PLAIN, RLE and RLE_DICTIONARY, as a list of three numbers: each twice, and in one byte.
    shuffled, found = data, 0
    mark = next(item for item in (bytes((0x35, *p)) for p in permutations()) if item in data)
    while (found := shuffled.find(mark, found)) >= 0:
        codes = list(mark[1:])
        chance.shuffle(codes)
        shuffled = shuffled[: found + 1] + bytes(codes) + shuffled[found + 4 :]
        found += 4

    assert in_order(shuffled) == in_order(data)
    first = encodings(in_order(data))[0]
    assert first == ("PLAIN", "RLE", "RLE_DICTIONARY")


def permutations():
    from itertools import permutations

    return permutations((0, 6, 16))


@pytest.mark.parametrize("tail", [b"", b"PAR1", b"\1\0\0\0PARE"])
def test_what_is_no_parquet_file_is_told(tail):
    with pytest.raises(ReconcileRefused, match="not written as Parquet"):
        footer_size(tail)
