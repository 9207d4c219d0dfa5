"""Settings on the wire: the text of Java's ``Properties``, in which servers are asked for settings
and receive new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from txmq.errors import RemoteProtocolError
from txmq.property_lines import PropertyError, read_properties

__all__ = ["dumps", "loads"]

_WRITTEN: Final = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_KEY_MARKS: Final = frozenset("=: #!")


def loads(data: bytes) -> dict[str, str]:
    """Read settings; of two with one name the later counts.

    Raises:
        RemoteProtocolError: It is not UTF-8, or an escape is broken.
    """
    try:
        return {entry.name: entry.value for entry in read_properties(data.decode())}
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"settings are not UTF-8: {error.reason}") from error
    except PropertyError as error:
        raise RemoteProtocolError(f"settings, line {error.line}: {error}") from error


def dumps(settings: Mapping[str, object]) -> bytes:
    """Write settings, one a line, in the order given; truths in Java's spelling."""
    return "".join(
        f"{_written(name, _KEY_MARKS)}={_written(_text(value), frozenset())}\n"
        for name, value in settings.items()
    ).encode()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _written(text: str, marks: frozenset[str]) -> str:
    written = "".join(_WRITTEN.get(mark, f"\\{mark}" if mark in marks else mark) for mark in text)
    # A blank in front would be taken for part of the separator.
    return f"\\{written}" if written.startswith(" ") else written
