"""Tables that were written are gone through in pieces, and come to what they come to at once."""

from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from txmq.errors import ReconcileRefused
from txmq.reconcile.storage import LocalFolder
from txmq.reconcile.written_table import WrittenTable, top_rows

INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.sampled_from(["", "a", "b", "é", "中"])
ROWS = st.lists(st.fixed_dictionaries({"name": NAMES, "number": INT64}), max_size=40)
CUTS = st.lists(st.integers(0, 40), max_size=4)
SCHEMA = pa.schema([("name", pa.string()), ("number", pa.int64()), ("id", pa.int64())])
ORDER = ("-number", "id")


def in_pieces(rows, cuts):
    """Rows with an id for each, cut anywhere; some pieces have none."""
    rows = [row | {"id": number} for number, row in enumerate(rows)]
    ends = sorted({0, *(min(cut, len(rows)) for cut in cuts), len(rows)})
    pieces = [pa.Table.from_pylist(rows[a:b], SCHEMA) for a, b in pairwise(ends)]
    return rows, [SCHEMA.empty_table(), *pieces]


@given(ROWS, CUTS, st.integers(1, 5))
def test_the_first_rows_are_found(rows, cuts, most):
    rows, pieces = in_pieces(rows, cuts)
    rows.sort(key=lambda row: (-row["number"], row["id"]))
    assert top_rows(pieces, most, ORDER) == rows[:most]


def test_nothing_is_nothing():
    assert top_rows([], 3, ORDER) == []


def test_a_table_is_all_of_its_parts(tmp_path):
    for number in range(3):
        part = tmp_path / f"part-{number}.parquet"
        parquet.write_table(pa.table({"a": [number] * number, "b": [7] * number}), part)
    table = WrittenTable("items", LocalFolder(tmp_path))
    assert list(table.rows("a")) == [{"a": 1}, {"a": 2}, {"a": 2}]
    assert list(table.rows(where=pc.field("a") == 1)) == [{"a": 1, "b": 7}]


def test_what_cannot_be_read_is_told(tmp_path):
    (tmp_path / "part-0.parquet").write_bytes(b"PAR1, and then nothing")
    table = WrittenTable("items", LocalFolder(tmp_path))
    with pytest.raises(ReconcileRefused, match="the items cannot be read"):
        list(table.pieces())
