"""Points in time as users write them on a command line. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from txmq.settings.units import parse_duration

__all__ = ["EARLIEST", "LATEST", "age_of", "moment_ms", "time_text"]

EARLIEST: Final = 0
LATEST: Final = -1

_NAMED: Final = {"earliest": EARLIEST, "latest": LATEST}
_MILLISECONDS_DIGITS: Final = 12
"""A bare number of at least this many digits is milliseconds since 1970: March 1973 or later."""


def moment_ms(text: str, now_ms: int) -> int:
    """A moment in milliseconds since 1970.

    A moment is ``earliest`` or ``latest``, a time such as ``2024-05-01T12:00`` (UTC unless it names
    a zone), milliseconds since 1970, or a duration before now: ``2h``.

    Raises:
        ValueError: The text has none of these forms.
    """
    text = text.strip()
    if text in _NAMED:
        return _NAMED[text]
    if text.isdecimal() and len(text) >= _MILLISECONDS_DIGITS:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        zoned = found if found.tzinfo else found.replace(tzinfo=UTC)
        return int(zoned.timestamp() * 1000)
    try:
        if not text.isdecimal():
            return now_ms - int(parse_duration(text) * 1000)
    except ValueError:
        pass
    raise ValueError(
        "a moment such as 2024-05-01T12:00, 2h (ago), earliest, latest, or milliseconds since 1970"
    )


def age_of(age_ms: int) -> str:
    """An age, roughly, in its largest suitable unit."""
    seconds = max(0, age_ms // 1000)
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def time_text(time_ms: int) -> str:
    """A moment, to the millisecond."""
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{time_ms % 1000:03d}Z"
