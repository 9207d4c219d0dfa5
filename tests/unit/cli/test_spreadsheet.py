"""Rows in a spreadsheet: numbers are numbers, and no text of a ledger is a formula."""

import csv
import io
import zipfile
from decimal import Decimal
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from txmq.cli.spreadsheet import as_csv, as_xlsx

MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
HOSTILE = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "<c>&", "0042", "\x00\ud800"]


def cells(data):
    """The cells of a sheet, row by row: their type and their text."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        assert file.testzip() is None
        parts = {name: ET.fromstring(file.read(name)) for name in file.namelist()}
    assert set(parts) == {
        "[Content_Types].xml", "_rels/.rels", "xl/workbook.xml", "xl/_rels/workbook.xml.rels",
        "xl/sheet.xml",
    }  # fmt: skip
    return [
        [(cell.get("t"), "".join(cell.itertext())) for cell in row]
        for row in parts["xl/sheet.xml"].iter(f"{MAIN}row")
    ]


def test_xlsx_has_numbers_and_texts():
    data = as_xlsx(["id", "amount"], [["0042", Decimal("-12.30")], [None, 7], ["=1+1", 0]])

    assert cells(data) == [
        [("inlineStr", "id"), ("inlineStr", "amount")],
        [("inlineStr", "0042"), (None, "-12.30")],
        [("inlineStr", ""), (None, "7")],
        [("inlineStr", "=1+1"), (None, "0")],
    ]
    assert data == as_xlsx(["id", "amount"], [["0042", Decimal("-12.30")], [None, 7], ["=1+1", 0]])


@given(st.lists(st.text() | st.sampled_from(HOSTILE), min_size=1, max_size=4))
def test_no_text_is_a_formula(texts):
    (row,) = cells(as_xlsx([], [texts]))[1:]
    assert [kind for kind, _ in row] == ["inlineStr"] * len(texts)

    read = list(csv.reader(io.StringIO(as_csv(["x"], [texts]).decode("utf-8-sig"), newline="")))
    assert len(read[1]) == len(texts)
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in read[1])


def test_csv_keeps_negative_numbers():
    assert as_csv(["a"], [[-5], [Decimal("-0.50")], ["-5"]]).decode("utf-8-sig").split() == [
        "a", "-5", "-0.50", "'-5",
    ]  # fmt: skip
