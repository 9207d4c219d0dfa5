"""Tables read in pieces give the same rows as when read at once."""

from datetime import date
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet

from txmq.errors import ReconcileRefused
from txmq.reconcile.archive import items_of
from txmq.reconcile.results import Results
from txmq.reconcile.storage import LocalFolder


@pytest.mark.parametrize("most", [None, 1, 3, 99])
def test_the_first_items_are_found_across_all_parts(tmp_path, most):
    """The oldest first, then the largest, however the rows are spread over the files."""
    rows = [
        {"break_id": f"b{n}", "group": "break", "age_days": n * 7 % 5, "amount": n * 3 % 4}
        for n in range(20)
    ]
    home = tmp_path / "results/items/business_date=2026-03-10/run=one"
    home.mkdir(parents=True)
    for part in range(3):
        table = pa.Table.from_pylist(rows[part::3])
        parquet.write_table(table, home / f"part-{part}.parquet", row_group_size=2)
    run = SimpleNamespace(day=date(2026, 3, 10), run_id="one")

    found = items_of(Results(tmp_path), run, most=most)

    rows.sort(key=lambda row: (-row["age_days"], -row["amount"], row["break_id"]))
    assert found == rows[:most]


def test_a_table_is_read_from_all_its_parts(tmp_path):
    for number in range(3):
        part = tmp_path / f"part-{number}.parquet"
        columns = {"a": [number] * number, "b": [7] * number}
        schema = pa.schema(dict.fromkeys(columns, pa.int64()))
        parquet.write_table(pa.table(columns, schema), part)
    table = LocalFolder(tmp_path)
    assert list(table.rows("a")) == [{"a": 1}, {"a": 2}, {"a": 2}]
    assert list(table.rows(where=pc.field("a") == 1)) == [{"a": 1, "b": 7}]


def test_an_unreadable_part_is_refused(tmp_path):
    (tmp_path / "part-0.parquet").write_bytes(b"PAR1, and then nothing")
    table = LocalFolder(tmp_path)
    with pytest.raises(ReconcileRefused, match="cannot be read"):
        list(table.pieces())
