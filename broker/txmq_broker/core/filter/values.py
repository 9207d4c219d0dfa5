"""Values of conditions, and their comparison, exactly as in Java.

A property is a text. In a comparison with a number or a truth value it is converted to that type;
if that fails, the whole condition does not match.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final, TypeAlias

from txmq.limits import FILTER_NUMBER_CHARS_MAX
from txmq_broker.core.filter.syntax import Number, NumberKind

__all__ = ["READERS", "Value", "double", "equal", "order", "truth", "whole", "whole_long"]

Value: TypeAlias = str | Number | bool | None

_WHOLE: Final = re.compile(r"[+-]?\d+")  # \d: Java also accepts digits of any script
_DOUBLE: Final = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<nan>NaN)|(?P<inf>Infinity)"
    r"|(?P<plain>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?"
    r"|(?P<hex>0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?)"
)
_UNLIKE: Final = -1  # A number never equals a truth value.
_BLANKS: Final = "".join(map(chr, range(0x21)))  # the characters that String.trim removes
_DOUBLE_CHARS: Final = "0123456789.eE+-"


def whole(text: str) -> int:
    """``Integer.valueOf``.

    Raises:
        ValueError: It is not a whole number of 32 bits.
    """
    return _whole(text, 1 << 31)


def whole_long(text: str) -> int:
    """``Long.valueOf``.

    Raises:
        ValueError: It is not a whole number of 64 bits.
    """
    return _whole(text, 1 << 63)


def _whole(text: str, end: int) -> int:
    if len(text) > FILTER_NUMBER_CHARS_MAX or not _WHOLE.fullmatch(text) or max(text) > "\uffff":
        raise ValueError("not a whole number")
    value = int(text)
    if not -end <= value < end:
        raise ValueError("a whole number is too large")
    return value


def double(text: str) -> float:
    """``Double.valueOf``.

    Raises:
        ValueError: It is not a number.
    """
    if len(text) < 20 and not text.strip(_DOUBLE_CHARS):
        return float(text)
    found = None
    if len(text) <= FILTER_NUMBER_CHARS_MAX:
        found = _DOUBLE.fullmatch(text.strip(_BLANKS))
    if found is None:
        raise ValueError("not a number")
    if found["nan"]:
        return math.nan
    value = math.inf if found["inf"] else _finite(found["plain"], found["hex"])
    return -value if found["sign"] == "-" else value


def _finite(plain: str | None, hexadecimal: str | None) -> float:
    if plain is not None:
        return float(plain)
    assert hexadecimal is not None
    try:
        return float.fromhex(hexadecimal)
    except OverflowError:
        return math.inf


def truth(text: str) -> bool:
    """``Boolean.valueOf``: any text but "true" is false."""
    return len(text) == 4 and text.lower() == "true"


READERS: Final[dict[NumberKind, Callable[[str], int | float]]] = {
    NumberKind.INT: whole,
    NumberKind.LONG: whole_long,
    NumberKind.DOUBLE: double,
}


def equal(left: Value, right: Value) -> bool | None:
    """Return true if two values are equal; unknown if only the left one is NULL.

    Raises:
        ValueError: The values cannot be compared.
    """
    if left is None:
        return True if right is None else None
    return right is not None and _compare(left, right) == 0


def order(left: str | Number, right: str | Number) -> int:
    """Compare two numbers: negative, 0 or positive. Texts are converted to numbers.

    Raises:
        ValueError: A text is not a number.
    """
    if isinstance(left, str) and isinstance(right, str):
        return _compare_doubles(double(left), double(right))
    return _compare(left, right)


def _compare(left: str | Number | bool, right: str | Number | bool) -> int:
    if isinstance(left, str):
        return _compare_text(left, right)
    if isinstance(left, bool):
        if isinstance(right, str):
            # RocketMQ converts the wrong side here, fails, and drops the message.
            raise ValueError("a truth value is compared with a text")  # noqa: TRY004
        return left - right if isinstance(right, bool) else _UNLIKE
    if isinstance(right, bool):
        return _UNLIKE
    return _compare_numbers(left, _read(right, left.kind) if isinstance(right, str) else right)


def _compare_text(left: str, right: str | Number | bool) -> int:
    if isinstance(right, str):
        return (left > right) - (left < right)
    if isinstance(right, bool):
        return truth(left) - right
    return _compare_numbers(_read(left, right.kind), right)


def _read(text: str, kind: NumberKind) -> Number:
    return Number(kind, READERS[kind](text))


def _compare_numbers(left: Number, right: Number) -> int:
    if NumberKind.DOUBLE in (left.kind, right.kind):
        # Large whole numbers lose their last digits here, as they do in Java.
        return _compare_doubles(float(left.value), float(right.value))
    return (left.value > right.value) - (left.value < right.value)


def _compare_doubles(left: float, right: float) -> int:
    """``Double.compareTo``: NaN is the greatest value, and -0.0 is less than 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right != 0:
        return 0
    first, second = _rank(left), _rank(right)
    return (first > second) - (first < second)


def _rank(value: float) -> tuple[bool, float]:
    return math.isnan(value), 0.0 if math.isnan(value) else math.copysign(1.0, value)
