"""Breaks exported as CSV: no text of a ledger is a formula in a spreadsheet."""

import csv
import io
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from txmq.cli.reconcile import as_csv

HOSTILE = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "<c>&", "0042", "\x00\ud800"]


@given(st.lists(st.text() | st.sampled_from(HOSTILE), min_size=1, max_size=4))
def test_exported_text_is_never_a_formula(texts):
    read = list(csv.reader(io.StringIO(as_csv(["x"], [texts]).decode("utf-8-sig"), newline="")))
    assert len(read[1]) == len(texts)
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in read[1])


def test_exported_negative_numbers_stay_numbers():
    assert as_csv(["a"], [[-5], [Decimal("-0.50")], ["-5"]]).decode("utf-8-sig").split() == [
        "a", "-5", "-0.50", "'-5",
    ]  # fmt: skip
