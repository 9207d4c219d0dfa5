"""Rows as CSV, or as XLSX with the least that Office Open XML needs. Pure.

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
_OPEN: Final = "http://schemas.openxmlformats.org"
_MAIN: Final = f"{_OPEN}/spreadsheetml/2006/main"
_OFFICE: Final = f"{_OPEN}/officeDocument/2006/relationships"
_TYPE: Final = "application/vnd.openxmlformats-"
_LINK: Final = (
    f'<Relationships xmlns="{_OPEN}/package/2006/relationships">'
    f'<Relationship Id="rId1" Type="{_OFFICE}/%s" Target="%s"/></Relationships>'
)
_PARTS: Final = {
    "[Content_Types].xml": f'<Types xmlns="{_OPEN}/package/2006/content-types">'
    f'<Default Extension="rels" ContentType="{_TYPE}package.relationships+xml"/>'
    f'<Default Extension="xml" ContentType="{_TYPE}officedocument.spreadsheetml.sheet.main+xml"/>'
    '<Override PartName="/xl/sheet.xml" '
    f'ContentType="{_TYPE}officedocument.spreadsheetml.worksheet+xml"/></Types>',
    "_rels/.rels": _LINK % ("officeDocument", "xl/workbook.xml"),
    "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>'
    '<sheet name="breaks" sheetId="1" r:id="rId1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": _LINK % ("worksheet", "sheet.xml"),
}


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> bytes:
    """Rows under headings, as CSV in UTF-8 with a mark of the encoding."""
    out = io.StringIO()
    csv.writer(out).writerows([columns, *(map(_csv_cell, row) for row in rows)])
    return out.getvalue().encode("utf-8-sig")


def as_xlsx(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> bytes:
    """Rows under headings, as the one sheet of a workbook."""
    drawn = "".join(f"<row>{''.join(map(_xml_cell, row))}</row>" for row in (columns, *rows))
    sheet = f'<worksheet xmlns="{_MAIN}"><sheetData>{drawn}</sheetData></worksheet>'
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in {**_PARTS, "xl/sheet.xml": sheet}.items():
            # A name alone gives the file a fixed time, so the same rows are the same bytes.
            file.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _csv_cell(value: Cell) -> Cell:
    text = printable(value) if isinstance(value, str) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(_FORMULA) else text


def _xml_cell(value: Cell) -> str:
    if isinstance(value, int | Decimal):
        return f"<c><v>{value}</v></c>"
    return f'<c t="inlineStr"><is><t>{escape(printable(value or ""))}</t></is></c>'
