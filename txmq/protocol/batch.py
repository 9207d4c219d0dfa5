"""Several messages in one body, as in request 320."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError
from typing import TypeAlias

from txmq.errors import LocalProtocolError, RemoteProtocolError
from txmq.limits import BATCH_MESSAGES_MAX, PROPERTIES_BYTES_MAX
from txmq.quantity import quantity

__all__ = ["BatchItem", "pack", "unpack"]

_HEAD = Struct(">IIIiI")
_READ_HEAD = Struct(">I8xiI")
_SHORT = Struct(">H")
_HEAD_BYTES = _HEAD.size
_FIXED_BYTES = _HEAD.size + _SHORT.size


BatchItem: TypeAlias = tuple[int, bytes, str]
"""One message of a batch: flag, body, and properties as text."""


def pack(items: Iterable[BatchItem]) -> bytes:
    """Write a batch.

    Raises:
        LocalProtocolError: A message's properties are too long or hold half a character, or its
            flag is not a 32-bit number.
    """
    pieces: list[bytes] = []
    try:
        for flag, body, text in items:
            property_bytes = text.encode()
            length = len(property_bytes)
            if length > PROPERTIES_BYTES_MAX:
                raise LocalProtocolError(
                    f"properties of {length} bytes exceed {PROPERTIES_BYTES_MAX}"
                )
            size = len(body)
            pieces += (
                _HEAD.pack(_FIXED_BYTES + size + length, 0, 0, flag, size),
                body,
                _SHORT.pack(length),
                property_bytes,
            )
    except (StructError, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"a batch cannot hold this message: {error}") from error
    return b"".join(pieces)


def unpack(data: bytes) -> list[BatchItem]:
    """Read a batch.

    Raises:
        RemoteProtocolError: Its lengths are inconsistent, it is empty, or it holds too many.
    """
    items: list[BatchItem] = []
    at, stop = 0, len(data)
    head, short = _READ_HEAD.unpack_from, _SHORT.unpack_from
    try:
        for _ in range(BATCH_MESSAGES_MAX):
            if at == stop:
                break
            size, flag, body_length = head(data, at)
            start = at + _HEAD_BYTES
            middle = start + body_length
            end = middle + 2 + short(data, middle)[0]
            if end != at + size or end > stop:
                claimed = quantity(size, "byte")
                raise RemoteProtocolError(f"a batch's message of {claimed} holds {end - at}")
            items.append((flag, data[start:middle], data[middle + 2 : end].decode()))
            at = end
        else:
            if at < stop:
                raise RemoteProtocolError(f"a batch holds more than {BATCH_MESSAGES_MAX} messages")
    except (StructError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"a batch is broken: {error}") from error
    if not items:
        raise RemoteProtocolError("a batch is empty")
    return items
