"""The JSON dialect that RocketMQ's Java side reads and, in places, writes.

It also allows bare integer or word keys, objects as keys, single quotes and trailing commas.
Callers try strict JSON first, because msgspec is much faster, and fall back to this reader. The
writer serves the few bodies that Java accepts only with objects as keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from txmq.errors import RemoteProtocolError
from txmq.limits import JSON_DEPTH_MAX

__all__ = ["BYTES_MAX", "NOT_STRICT", "Key", "ObjectKey", "Value", "loads", "object_keyed"]

ObjectKey: TypeAlias = tuple[tuple[str, "Value"], ...]
"""An object used as a key: its members, sorted by name."""

Key: TypeAlias = "str | ObjectKey"
Value: TypeAlias = "bool | int | float | str | list[Value] | dict[Key, Value] | None"

NOT_STRICT: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors of msgspec for text that is not strict JSON of the wanted type; invalid UTF-8 and deep
nesting raise Python's errors. Callers that catch them try :func:`loads` next.
"""

BYTES_MAX: Final = 1024 * 1024
"""The longest text for this reader, which takes a second to read it; msgspec reads 16 MiB in 0.1 s.
The largest real texts are statistics of a thousand queues, at 200 bytes each."""

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_PLAIN: Final = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "v": "\v"}
_NAMES: Final[dict[str, Value]] = {"true": True, "false": False, "null": None}
_DIGITS_MAX: Final = 40


def loads(data: bytes, limit: int = BYTES_MAX) -> Value:
    """Decode one value; only white space may follow it.

    Raises:
        RemoteProtocolError: The text is not in this dialect, too deeply nested or too long.
    """
    if len(data) > limit:
        raise RemoteProtocolError(f"{len(data)} bytes of text are not strict JSON, and too long")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"text is not UTF-8: {error.reason}") from error
    reader = _FastjsonReader(text)
    value = reader.value(0)
    if reader.skip() != len(text):
        raise reader.fault("more text after the value")
    return value


def object_keyed(pairs: Iterable[tuple[object, object]]) -> bytes:
    """Encode a map whose keys are objects, the only form Java accepts for maps by queue."""
    encode = msgspec.json.encode
    return b"{" + b",".join(encode(key) + b":" + encode(value) for key, value in pairs) + b"}"


class _FastjsonReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def fault(self, what: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"JSON: {what} at character {self._at}")

    def skip(self) -> int:
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return self._at

    def _peek(self) -> str:
        self.skip()
        return self._text[self._at : self._at + 1]

    def value(self, depth: int) -> Value:
        if depth > JSON_DEPTH_MAX:
            raise self.fault(f"nested deeper than {JSON_DEPTH_MAX}")
        head = self._peek()
        if head == "{":
            return self._object(depth)
        if head == "[":
            return self._array(depth)
        if head in _PLAIN:
            return self._string(head)
        return self._number_or_name()

    def _object(self, depth: int) -> dict[Key, Value]:
        self._at += 1
        members: dict[Key, Value] = {}
        while True:
            head = self._peek()
            if head == "}":
                self._at += 1
                return members
            key = self._key(head, depth)
            if self._peek() != ":":
                raise self.fault("missing colon after a key")
            self._at += 1
            members[key] = self.value(depth + 1)
            self._comma("}")

    def _key(self, head: str, depth: int) -> Key:
        if head == "{":
            if depth >= JSON_DEPTH_MAX:
                raise self.fault(f"nested deeper than {JSON_DEPTH_MAX}")
            members = self._object(depth + 1)
            named: list[tuple[str, Value]] = []
            for name, value in members.items():
                if not isinstance(name, str) or isinstance(value, list | dict):
                    raise self.fault("an object used as a key holds more than plain values")
                named.append((name, value))
            return tuple(sorted(named, key=lambda member: member[0]))
        if head in _PLAIN:
            return self._string(head)
        found = _WORD.match(self._text, self._at) or _NUMBER.match(self._text, self._at)
        if found is None:
            raise self.fault("missing key")
        self._at = found.end()
        return found.group()

    def _array(self, depth: int) -> list[Value]:
        self._at += 1
        items: list[Value] = []
        while self._peek() != "]":
            items.append(self.value(depth + 1))
            self._comma("]")
        self._at += 1
        return items

    def _comma(self, closing: str) -> None:
        head = self._peek()
        if head == ",":
            self._at += 1
        elif head != closing:
            raise self.fault(f"missing comma or {closing}")

    def _string(self, quote: str) -> str:
        self._at += 1
        parts: list[str] = []
        while True:
            plain = _PLAIN[quote].match(self._text, self._at)
            assert plain is not None
            parts.append(plain.group())
            self._at = plain.end()
            head = self._text[self._at : self._at + 1]
            self._at += 1
            if head == quote:
                return self._joined(parts)
            if head == "":
                raise self.fault("unterminated string")
            parts.append(self._escape())

    def _joined(self, parts: list[str]) -> str:
        text = "".join(parts)
        try:
            # Pairs of escaped surrogates become one character; a lone surrogate is an error.
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError as error:
            raise self.fault("lone surrogate") from error

    def _escape(self) -> str:
        head = self._text[self._at : self._at + 1]
        self._at += 1
        if head in ("u", "x"):
            size = 4 if head == "u" else 2
            digits = self._text[self._at : self._at + size]
            if not re.fullmatch(rf"[0-9a-fA-F]{{{size}}}", digits):
                raise self.fault("invalid escape")
            self._at += size
            return chr(int(digits, 16))
        if head == "":
            raise self.fault("unterminated string")
        return _ESCAPES.get(head, head)

    def _number_or_name(self) -> Value:
        found = _NUMBER.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
            if len(found.group()) > _DIGITS_MAX:
                raise self.fault("number too long")
            return float(found.group()) if found[1] or found[2] else int(found.group())
        word = _WORD.match(self._text, self._at)
        if word is None or word.group() not in _NAMES:
            raise self.fault("missing value")
        self._at = word.end()
        return _NAMES[word.group()]
