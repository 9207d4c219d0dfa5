"""Java's string hash and ``Properties`` format, as they occur on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from txmq.errors import RemoteProtocolError
from txmq.settings.property_lines import PropertyError, read_properties

__all__ = ["dumps", "loads", "string_hash"]


@lru_cache(maxsize=4096)
def string_hash(text: str) -> int:
    """``String.hashCode``: signed, 32 bits, over UTF-16 units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


_WRITTEN: Final = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_KEY_MARKS: Final = frozenset("=: #!")


def loads(data: bytes) -> dict[str, str]:
    """Decode settings; if a name occurs twice, its last entry counts.

    Raises:
        RemoteProtocolError: The text is not UTF-8, or an escape is invalid.
    """
    try:
        return {entry.name: entry.value for entry in read_properties(data.decode())}
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"settings are not UTF-8: {error.reason}") from error
    except PropertyError as error:
        raise RemoteProtocolError(f"settings, line {error.line}: {error}") from error


def dumps(settings: Mapping[str, object]) -> bytes:
    """Encode settings in order, one per line, with booleans in Java's spelling."""
    return "".join(
        f"{_written(name, _KEY_MARKS)}={_written(_text(value), frozenset())}\n"
        for name, value in settings.items()
    ).encode()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _written(text: str, marks: frozenset[str]) -> str:
    written = "".join(_WRITTEN.get(mark, f"\\{mark}" if mark in marks else mark) for mark in text)
    # A leading blank would count as part of the separator.
    return f"\\{written}" if written.startswith(" ") else written
