"""Rows as CSV for a spreadsheet; pure.

No text of a ledger becomes a formula: a text that would begin one gets an apostrophe.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final, TypeAlias

from txmq.text import printable

__all__ = ["Cell", "as_csv"]

Cell: TypeAlias = str | int | Decimal | None

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> bytes:
    """Rows under headings, as CSV in UTF-8 with a mark of the encoding."""
    out = io.StringIO()
    csv.writer(out).writerows([columns, *(map(_csv_cell, row) for row in rows)])
    return out.getvalue().encode("utf-8-sig")


def _csv_cell(value: Cell) -> Cell:
    text = printable(value) if isinstance(value, str) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(_FORMULA) else text
