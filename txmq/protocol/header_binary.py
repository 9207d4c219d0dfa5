"""RocketMQ's binary header: fixed numbers, a remark, then length-prefixed fields."""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from txmq.errors import LocalProtocolError, RemoteProtocolError
from txmq.limits import HEADER_FIELDS_MAX
from txmq.text import quantity

__all__ = ["BinaryHeader", "pack", "unpack"]

_FIXED = Struct(">hBhiii")
_LENGTH = Struct(">i")
_SHORT = Struct(">h")


class BinaryHeader(NamedTuple):
    """The contents of a binary header."""

    code: int
    language: int
    version: int
    opaque: int
    flag: int
    remark: str | None
    fields: dict[str, str]


def unpack(data: bytes) -> BinaryHeader:
    """Decode a header.

    Raises:
        RemoteProtocolError: Its lengths are inconsistent or its text is not UTF-8.
    """
    try:
        code, language, version, opaque, flag, remark_length = _FIXED.unpack_from(data)
        at = _FIXED.size
        remark = _text(data, at, remark_length) if remark_length else None
        at += max(remark_length, 0)
        (fields_length,) = _LENGTH.unpack_from(data, at)
        at += 4
        if fields_length < 0 or at + fields_length > len(data):
            claimed = quantity(fields_length, "byte")
            raise RemoteProtocolError(f"a binary header claims {claimed} of fields")
        fields = _fields(data, at, at + fields_length)
    except (StructError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"a binary header is broken: {error}") from error
    return BinaryHeader(code, language, version, opaque, flag, remark, fields)


def _fields(data: bytes, at: int, end: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    count = 0
    while at < end:
        count += 1
        if count > HEADER_FIELDS_MAX:
            raise RemoteProtocolError(f"a header has more than {HEADER_FIELDS_MAX} fields")
        (size,) = _SHORT.unpack_from(data, at)
        name = _text(data, at + 2, size)
        at += 2 + size
        (size,) = _LENGTH.unpack_from(data, at)
        fields[name] = _text(data, at + 4, size)
        at += 4 + size
    if at != end:
        raise RemoteProtocolError("a binary header's fields overrun their length")
    return fields


def _text(data: bytes, at: int, size: int) -> str:
    if size < 0 or at + size > len(data):
        raise RemoteProtocolError(f"a binary header claims a text of {quantity(size, 'byte')}")
    return data[at : at + size].decode()


def pack(header: BinaryHeader) -> bytes:
    """Encode a header.

    Raises:
        LocalProtocolError: A number does not fit this form (codes above 32767 never do), or a text
            holds a lone surrogate.
    """
    parts: list[bytes] = []
    try:
        remark = (header.remark or "").encode()
        for name, value in header.fields.items():
            key, text = name.encode(), value.encode()
            parts += (_SHORT.pack(len(key)), key, _LENGTH.pack(len(text)), text)
        fields = b"".join(parts)
        fixed = _FIXED.pack(
            header.code, header.language, header.version, header.opaque, header.flag, len(remark)
        )
    except (StructError, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"a binary header cannot hold this: {error}") from error
    return fixed + remark + _LENGTH.pack(len(fields)) + fields
