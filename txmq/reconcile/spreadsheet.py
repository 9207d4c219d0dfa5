"""Rows as a spreadsheet: CSV, or XLSX with the least that Office Open XML needs. Pure.

A number is a number, and every other cell is text. No text of a ledger becomes a formula: XLSX
marks each text as such, and CSV gets an apostrophe before a text that would begin one.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final, TypeAlias
from xml.sax.saxutils import escape

from txmq.printable import printable

__all__ = ["Cell", "as_csv", "as_xlsx"]

Cell: TypeAlias = str | int | Decimal | None

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_MAIN: Final = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE: Final = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE: Final = "http://schemas.openxmlformats.org/package/2006"
_TYPE: Final = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_HEAD: Final = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_PARTS: Final = {
    "[Content_Types].xml": (
        f'<Types xmlns="{_PACKAGE}/content-types">'
        '<Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{_TYPE}.sheet.main+xml"/>'
        f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{_TYPE}.worksheet+xml"/>'
        "</Types>"
    ),
    "_rels/.rels": (
        f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="rId1" '
        f'Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>'
    ),
    "xl/workbook.xml": (
        f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>'
        '<sheet name="breaks" sheetId="1" r:id="rId1"/></sheets></workbook>'
    ),
    "xl/_rels/workbook.xml.rels": (
        f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="rId1" '
        f'Type="{_OFFICE}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>'
    ),
}


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> bytes:
    """Rows under headings, as CSV in UTF-8 with a mark of the encoding."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(columns)
    for row in rows:
        texts = (printable(cell) if isinstance(cell, str) else cell for cell in row)
        writer.writerow(
            f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
            for cell in texts
        )
    return out.getvalue().encode("utf-8-sig")


def as_xlsx(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> bytes:
    """Rows under headings, as the one sheet of a workbook."""
    drawn = "".join(f"<row>{''.join(map(_cell, row))}</row>" for row in (columns, *rows))
    sheet = f'<worksheet xmlns="{_MAIN}"><sheetData>{drawn}</sheetData></worksheet>'
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in {**_PARTS, "xl/worksheets/sheet1.xml": sheet}.items():
            file.writestr(zipfile.ZipInfo(name), _HEAD + text)  # Without the time of writing.
    return out.getvalue()


def _cell(value: Cell) -> str:
    if value is None:
        return "<c/>"
    if isinstance(value, int | Decimal):
        return f"<c><v>{value}</v></c>"
    text = escape(printable(value))
    return f'<c t="inlineStr"><is><t xml:space="preserve">{text}</t></is></c>'
