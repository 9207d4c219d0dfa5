"""The values of settings: durations, sizes and others, from texts and as texts. Pure."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any, Final, Literal, NewType, get_args, get_origin

__all__ = ["Duration", "Size", "convert", "parse_duration", "parse_size", "show"]

Duration = NewType("Duration", float)
"""Seconds; written as ``20s``, ``500ms``, ``3h``."""

Size = NewType("Size", int)
"""Bytes; written as ``1GiB``, ``64KiB``, ``1000``."""

_SECONDS: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_BYTES: Final = {
    "TiB": 1024**4, "GiB": 1024**3, "MiB": 1024**2, "KiB": 1024,
    "TB": 1000**4, "GB": 1000**3, "MB": 1000**2, "KB": 1000, "B": 1,
}  # fmt: skip
_ANY_CASE: Final = {unit.lower(): size for unit, size in _BYTES.items()}
_AMOUNT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_TRUTHS: Final = {
    "true": True, "yes": True, "on": True, "1": True,
    "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip


def parse_duration(text: str) -> Duration:
    """Seconds of ``20s``, ``500ms``, ``3h``, ``2d``, ``1h30m``; a plain number is seconds.

    Raises:
        ValueError: The text is not a duration.
    """
    total, at = 0.0, 0
    text = text.strip()
    while at < len(text):
        found = _AMOUNT.match(text, at)
        if found is None or found[2].lower() not in ("", *_SECONDS):
            break
        if not found[2] and (at or found.end() < len(text)):
            break  # "1h30": thirty what?
        total += float(found[1]) * _SECONDS[found[2].lower() or "s"]
        at = found.end()
    if not text or at < len(text) or not math.isfinite(total):
        raise ValueError("a duration such as 20s, 500ms, 3h or 2d")
    return Duration(total)


def parse_size(text: str) -> Size:
    """Bytes of ``64KiB``, ``1GiB``, ``4MB``; a plain number is bytes.

    Raises:
        ValueError: The text is not a size, or not a whole number of bytes.
    """
    found = _AMOUNT.fullmatch(text.strip())
    unit = None if found is None else _ANY_CASE.get(found[2].lower() or "b")
    if found is None or unit is None or not (float(found[1]) * unit).is_integer():
        raise ValueError("a size such as 64KiB, 1GiB, 4MB or 1000")
    return Size(int(found[1]) * unit if found[1].isdecimal() else int(float(found[1]) * unit))


def show(kind: Any, value: object) -> str:
    """A value as a settings file has it."""
    if kind is Duration and isinstance(value, int | float):
        for unit, seconds in _SECONDS.items():
            if value and (value / seconds).is_integer():
                return f'"{int(value / seconds)}{unit}"'
    if kind is Size and isinstance(value, int):
        for unit, size in _BYTES.items():
            if value and value % size == 0 and unit.endswith("iB"):
                return f'"{value // size}{unit}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(show(None, item) for item in value)}]"
    return f'"{value}"' if isinstance(value, str) else f"{value}"


def _whole(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text.strip()):
        raise ValueError("a whole number")
    return int(text)


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError("a number")
    return found


def _truth(text: str) -> bool:
    found = _TRUTHS.get(text.strip().lower())
    if found is None:
        raise ValueError("true or false")
    return found


_FROM_TEXT: Final[dict[Any, Any]] = {
    bool: _truth,
    int: _whole,
    float: _number,
    str: str,
    Duration: parse_duration,
    Size: parse_size,
}
_NUMBERS: Final[dict[Any, Any]] = {int: int, float: int | float, Duration: int | float, Size: int}


def convert(kind: Any, value: object) -> object:
    """The value of one setting, from a text or from a value in a file.

    Raises:
        ValueError: The value is invalid; the text of the error is what the setting accepts.
    """
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        if value not in choices:
            raise ValueError(" or ".join(f'"{choice}"' for choice in choices))
        return value
    if get_origin(kind) is tuple:
        if isinstance(value, str):
            value = [item.strip() for item in value.split(",") if item.strip()]
        if not isinstance(value, list):
            raise ValueError("a list")
        return tuple(convert(get_args(kind)[0], item) for item in value)
    assert kind in _FROM_TEXT, f"settings of type {kind} are not supported"
    return _FROM_TEXT[kind](_as_text(kind, value))


def _as_text(kind: Any, value: object) -> str:
    # A file has typed values; those that fit become text, which is read like the other sources'.
    if isinstance(value, str):
        return value
    if kind is bool and isinstance(value, bool):
        return str(value)
    if kind in _NUMBERS and isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool):
        return format(Decimal(str(value)), "f")  # Without an exponent.
    if kind is str:
        raise ValueError("a text in quotes")
    return ""  # The reader refuses an empty text with its own error.
