"""Durations and sizes: their types in settings, and their texts. Pure, and fast to import."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, NewType, TypeAlias

from txmq.errors import ConfigError

__all__ = [
    "DURATION_EXAMPLES", "SIZE_EXAMPLES", "UNSET", "Duration", "DurationLike", "OptionalDuration",
    "OptionalSize", "Size", "SizeLike", "parse_duration", "parse_size", "seconds", "show_duration",
    "show_size",
]  # fmt: skip

DURATION_EXAMPLES: Final = "such as 20s, 500ms, 3h or 2d"
SIZE_EXAMPLES: Final = "such as 64KiB, 1GiB, 4MB or 1000"

DurationLike: TypeAlias = float | str
"""Seconds, or a text such as ``"20s"``, ``"500ms"`` or ``"1h30m"``."""

SizeLike: TypeAlias = int | str
"""Bytes, or a text such as ``"64KiB"`` or ``"16MiB"``."""

if TYPE_CHECKING:
    # Descriptors tell type checkers that a field takes texts and reads as a number. mypy
    # understands them only in classes that it does not know to be frozen.

    class Duration:
        """The type of a setting that is a duration."""

        def __init__(self, value: float) -> None: ...
        def __get__(self, instance: object, owner: type | None = None) -> float: ...
        def __set__(self, instance: object, value: DurationLike) -> None: ...

    class Size:
        """The type of a setting that is a size."""

        def __init__(self, value: int) -> None: ...
        def __get__(self, instance: object, owner: type | None = None) -> int: ...
        def __set__(self, instance: object, value: SizeLike) -> None: ...

    class OptionalDuration:
        """The type of a setting that is a duration or ``None``."""

        def __get__(self, instance: object, owner: type | None = None) -> float | None: ...
        def __set__(self, instance: object, value: DurationLike | None) -> None: ...

    class OptionalSize:
        """The type of a setting that is a size or ``None``."""

        def __get__(self, instance: object, owner: type | None = None) -> int | None: ...
        def __set__(self, instance: object, value: SizeLike | None) -> None: ...

else:
    Duration = NewType("Duration", float)
    Size = NewType("Size", int)
    OptionalDuration = Duration | None
    OptionalSize = Size | None

UNSET: Final[Any] = None
"""The default of an optional duration or size."""

_SECONDS: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_BYTES: Final = {
    "TiB": 1024**4, "GiB": 1024**3, "MiB": 1024**2, "KiB": 1024,
    "TB": 1000**4, "GB": 1000**3, "MB": 1000**2, "KB": 1000, "B": 1,
}  # fmt: skip
_ANY_CASE: Final = {unit.lower(): size for unit, size in _BYTES.items()}
_AMOUNT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def show_duration(seconds: float) -> str:
    """A duration in its largest unit."""
    for unit, length in _SECONDS.items():
        if seconds and (seconds / length).is_integer():
            return f"{int(seconds / length)}{unit}"
    return f"{seconds}"


def show_size(size: int) -> str:
    """A size in its largest binary unit."""
    for unit, length in _BYTES.items():
        if size and size % length == 0 and unit.endswith("iB"):
            return f"{size // length}{unit}"
    return f"{size}"


def parse_duration(text: str) -> float:
    """The seconds in ``20s``, ``500ms``, ``3h``, ``2d``, ``1h30m``; a plain number is seconds.

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
        raise ValueError(f"a duration {DURATION_EXAMPLES}")
    return total


def parse_size(text: str) -> int:
    """The bytes in ``64KiB``, ``1GiB``, ``4MB``; a plain number is bytes.

    Raises:
        ValueError: The text is not a size, or not a whole number of bytes.
    """
    found = _AMOUNT.fullmatch(text.strip())
    unit = None if found is None else _ANY_CASE.get(found[2].lower() or "b")
    if found is None or unit is None or not (float(found[1]) * unit).is_integer():
        raise ValueError(f"a size {SIZE_EXAMPLES}")
    return int(found[1]) * unit if found[1].isdecimal() else int(float(found[1]) * unit)


def seconds(name: str, value: DurationLike, *, least: float = 0.0) -> float:
    """The seconds of a duration that a caller gave for a parameter.

    Args:
        name: The parameter, for the error.
        value: Seconds, or a text.
        least: The shortest duration.

    Raises:
        ConfigError: The value is not a duration, or is shorter than ``least``.
    """
    takes = f"a duration of at least {show_duration(least)}" if least else "a duration"
    try:
        found = parse_duration(value) if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if least <= found < math.inf and not isinstance(value, bool):
        return found
    raise ConfigError(f"{name} cannot be {value!r}; it takes {takes} {DURATION_EXAMPLES}")
