"""The text of Java's ``Properties``, in which servers are asked for settings and told new ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from txmq.errors import RemoteProtocolError

__all__ = ["dumps", "loads"]

_BREAK: Final = re.compile(r"\r\n|\n|\r")
_BLANKS: Final = " \t\f"
_KEY: Final = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SEPARATOR: Final = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WRITTEN: Final = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_KEY_MARKS: Final = frozenset("=: #!")


def loads(data: bytes) -> dict[str, str]:
    """Read settings; of two with one name the later counts.

    Raises:
        RemoteProtocolError: It is not UTF-8, or an escape is broken.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as problem:
        raise RemoteProtocolError(f"settings are not UTF-8: {problem.reason}") from problem
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        key = _KEY.match(line)
        assert key is not None
        gap = _SEPARATOR.match(line, key.end())
        assert gap is not None
        found[_plain(key.group())] = _plain(line[gap.end() :])
    return found


def dumps(settings: Mapping[str, object]) -> bytes:
    """Write settings, one a line, in the order given; truths in Java's spelling."""
    return "".join(
        f"{_written(name, _KEY_MARKS)}={_written(_text(value), frozenset())}\n"
        for name, value in settings.items()
    ).encode()


def _logical_lines(text: str) -> Iterator[str]:
    held = ""
    for raw in _BREAK.split(text):
        line = raw.lstrip(_BLANKS)
        if not held and (not line or line[0] in "#!"):
            continue
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            held += line[:-1]
            continue
        yield held + line
        held = ""
    if held:
        yield held


def _plain(text: str) -> str:
    if "\\" not in text:
        return text
    try:
        # Escaped halves of one character meet here; a half alone is no character at all.
        joined = _ESCAPE.sub(_unescape, text).encode("utf-16", "surrogatepass")
        return joined.decode("utf-16")
    except UnicodeDecodeError as problem:
        raise RemoteProtocolError("settings: half a character") from problem


def _unescape(found: re.Match[str]) -> str:
    escape = found.group(1)
    if escape == "u":
        raise RemoteProtocolError("settings: a broken escape")
    if len(escape) == 5:
        return chr(int(escape[1:], 16))
    return _ESCAPED.get(escape, escape)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _written(text: str, marks: frozenset[str]) -> str:
    written = "".join(_WRITTEN.get(each, f"\\{each}" if each in marks else each) for each in text)
    # A blank in front would be taken for part of the separator.
    return f"\\{written}" if written.startswith(" ") else written
