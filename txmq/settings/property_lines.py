"""Java's ``Properties`` format, read as Java 17 reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = ["PropertyError", "PropertyLine", "read_properties"]

_BREAK: Final = re.compile(r"\r\n|\n|\r")
_BLANKS: Final = " \t\f"
_NAME: Final = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SEPARATOR: Final = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class PropertyLine(NamedTuple):
    """One entry of a properties text."""

    line: int
    """The number of its first line, from 1."""

    name: str
    value: str


class PropertyError(ValueError):
    """A line cannot be read; ``line`` is its number, from 1."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


def read_properties(text: str) -> Iterator[PropertyLine]:
    r"""Yield the entries in the order of the text; a name can occur several times.

    Raises:
        PropertyError: A ``\u`` escape has fewer than four digits, or is a lone surrogate.
    """
    for number, line in _logical_lines(text):
        name = _NAME.match(line)
        assert name is not None
        gap = _SEPARATOR.match(line, name.end())
        assert gap is not None
        yield PropertyLine(number, _plain(number, name.group()), _plain(number, line[gap.end() :]))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    held, first = "", 0
    for number, raw in enumerate(_BREAK.split(text), 1):
        line = raw.lstrip(_BLANKS)
        if not held:
            if not line or line[0] in "#!":
                continue
            first = number
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            held += line[:-1]
            continue
        yield first, held + line
        held = ""
    if held:
        yield first, held


def _plain(number: int, text: str) -> str:
    if "\\" not in text:
        return text

    def unescape(found: re.Match[str]) -> str:
        escape = found.group(1)
        if escape == "u":
            raise PropertyError(number, "an escape \\u takes four hexadecimal digits")
        if len(escape) == 5:
            return chr(int(escape[1:], 16))
        return _ESCAPED.get(escape, escape)

    try:
        # Two escaped surrogates make one character; a single one makes none.
        joined = _ESCAPE.sub(unescape, text).encode("utf-16", "surrogatepass")
        return joined.decode("utf-16")
    except UnicodeDecodeError as error:
        raise PropertyError(number, "an escape \\u is half of a character") from error
