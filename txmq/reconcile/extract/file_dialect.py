"""The values of files in a temporary SQLite database, and the SQL that converts them; pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, TypeAlias

from txmq.reconcile.extract.sqlite import SqliteDialect, floored, milliseconds
from txmq.reconcile.rules import Bank, BankFiles, Day

__all__ = ["RECORDED", "FileDialect", "stored_value"]

RECORDED: Final = "moment of recording"
"""The column with the moment at which a row of a dated file counts."""

_CACHED: Final = 1 << 16
"""The SQL converts each value several times, and files repeat many values."""
_LONG: Final = range(-(1 << 63), 1 << 63)
_TIMES: Final = re.compile(r"%[HIMSfcXTsp]")

_Function: TypeAlias = Callable[..., int | None]


def stored_value(value: Any, decimal: str) -> Any:
    """A value of a file for SQLite: a text, or a whole number.

    Raises:
        ValueError: It is neither, or has a character that SQLite cannot store.
    """
    match value:
        case None | "":
            return None
        case str() if "\0" not in value:
            return value
        case bool():
            return str(value).lower()
        case int():
            return value if value in _LONG else str(value)
        case Decimal() | float():
            text = format(value, "f") if isinstance(value, Decimal) else repr(value)
            return text.replace(".", decimal)
        case date():
            return value.isoformat()
    raise ValueError(f"{value!r} is not a text or a number; a dot in a name leads into an object")


class FileDialect(SqliteDialect):
    """SQL expressions for amounts and moments as a bank writes them.

    Args:
        bank: The bank.
        files: Its files.
        day: The business dates: a date without a time is the last moment of its date.
        start_ms: A row counts from this moment on, however early it was booked.
    """

    place: Mapping[str, str] = {"file": "txmq_file", "line": "txmq_line"}

    def __init__(self, bank: Bank, files: BankFiles, day: Day, start_ms: int) -> None:
        self._start_ms = start_ms
        self.functions: Mapping[str, _Function] = {
            "txmq_file_minor": lru_cache(_CACHED)(_amount_parser(files.decimal, files.grouping)),
            "txmq_file_moment": lru_cache(_CACHED)(_moment_parser(bank, files, day)),
        }
        """The functions of one and two arguments that the expressions use."""

    def minor(self, column: str, scale: str) -> str:
        return f"txmq_file_minor({self.quoted(column)}, {scale})"

    def moment(self, column: str, held: str, zone: str) -> str:
        del held, zone
        found = f"txmq_file_moment({self.quoted(column)}, 0)"
        return f"max({found}, {self._start_ms})" if column == RECORDED else found


def _amount_parser(decimal: str, grouping: str) -> _Function:
    groups = rf"|[0-9]{{1,3}}(?:{re.escape(grouping)}[0-9]{{3}})+" if grouping else ""
    pattern = re.compile(rf"\s*([+-]?(?:[0-9]+{groups}))(?:{re.escape(decimal)}([0-9]+))?\s*")

    def parse(value: int | str | None, scale: int | None) -> int | None:
        found = pattern.fullmatch(str(value))
        if found is None or scale is None:
            return None
        fraction, digits = (found[2] or "").rstrip("0"), len(str(scale)) - 1
        whole = found[1].replace(grouping, "") if grouping else found[1]
        minor = int(whole + fraction.ljust(digits, "0"))
        return minor if len(fraction) <= digits and minor in _LONG else None

    return parse


def _moment_parser(bank: Bank, files: BankFiles, day: Day) -> _Function:
    time, form, zone = bank.entries.time, files.moments, bank.zone
    factor = {"milliseconds": 1, "seconds": 1000}.get(time, 0)

    def parse(value: int | str | None, _: int) -> int | None:
        if factor and not files.is_statement:
            return floored(value, factor)
        if not isinstance(value, str):
            return None
        with suppress(ValueError, OverflowError):
            found = _read(value.strip(), form)
            if not isinstance(found, datetime):
                # Nobody knows the time, so grace counts from the end of the date.
                return day.window(found).end_ms - 1
            is_local = found.tzinfo is None if files.is_statement else time == "timestamp"
            return milliseconds(found, zone if is_local else "")
        return None

    return parse


def _read(text: str, form: str) -> date:
    """A moment, or a date without a time."""
    if form:
        found = datetime.strptime(text, form)  # noqa: DTZ007 - the rules name the zone
        return found if _TIMES.search(form) else found.date()
    with suppress(ValueError):
        return date.fromisoformat(text)
    return datetime.fromisoformat(text)
