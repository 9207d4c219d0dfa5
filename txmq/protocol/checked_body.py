"""A small file with a checksum and its owner's name: a header line, then the text.

    {"name":"topics.json","owner":"5f0c...","size":1234,"checksum":305419896}
    { ... the text, size bytes long ... }

The checksum covers name, owner and text, so no bit of the file can change unnoticed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from txmq.errors import RemoteProtocolError
from txmq.protocol.checksum import crc32

__all__ = ["CheckedBody", "pack", "unpack"]

_HEADER_MAX: Final = 4096


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    owner: str
    size: int
    checksum: int


class CheckedBody(NamedTuple):
    """The text of an intact file, and the owner in its header."""

    owner: str
    text: bytes


def pack(name: str, owner: str, text: bytes) -> bytes:
    """The bytes of a file: the header line and the text."""
    return _header_line(name, owner, text) + text


def unpack(name: str, data: bytes) -> CheckedBody:
    """Read a file and verify every byte of it.

    Args:
        name: The name under which the file was packed.
        data: The whole file.

    Raises:
        RemoteProtocolError: The file differs from what :func:`pack` wrote; the text says how.
    """
    header, begins = _header_of(data)
    if header.name != name:
        raise RemoteProtocolError(f"it holds {header.name[:200]!r}")
    text = data[begins:]
    extra = len(text) - header.size
    if extra < 0:
        raise RemoteProtocolError(f"its last {-extra} bytes are missing")
    if extra > 0:
        raise RemoteProtocolError(f"{extra} foreign bytes follow its end")
    if data[:begins] != _header_line(name, header.owner, text):
        raise RemoteProtocolError("its bytes do not match its checksum")
    return CheckedBody(header.owner, text)


def _header_of(data: bytes) -> tuple[_Header, int]:
    if not data:
        raise RemoteProtocolError("it is empty")
    if not data.strip(b"\0"):
        raise RemoteProtocolError(f"it holds {len(data)} zeros and nothing else")
    begins = data.find(b"\n", 0, _HEADER_MAX) + 1
    try:
        return msgspec.json.decode(data[:begins], type=_Header), begins
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RemoteProtocolError("its first line is not a whole header") from error


def _header_line(name: str, owner: str, text: bytes) -> bytes:
    checksum = crc32(text, crc32(msgspec.json.encode([name, owner, len(text)])))
    return msgspec.json.encode(_Header(name, owner, len(text), checksum)) + b"\n"
