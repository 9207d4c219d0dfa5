"""Several messages in one body, as request 320 carries them."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from txmq.errors import LocalProtocolError, RemoteProtocolError
from txmq.limits import BATCH_MESSAGES_MAX, PROPERTIES_BYTES_MAX

__all__ = ["BatchItem", "pack", "unpack"]

_HEAD = Struct(">IIIiI")
_SHORT = Struct(">H")
_FIXED_BYTES = _HEAD.size + _SHORT.size


class BatchItem(NamedTuple):
    """One message of a batch."""

    flag: int
    body: bytes
    properties: str


def pack(items: Iterable[tuple[int, bytes, str]]) -> bytes:
    """Write a batch of items: flag, body, and properties as text.

    Raises:
        LocalProtocolError: A message's properties are too long or hold half a character, or its
            flag is no 32-bit number.
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
    except (StructError, UnicodeEncodeError) as problem:
        raise LocalProtocolError(f"no batch can hold this: {problem}") from problem
    return b"".join(pieces)


def unpack(data: bytes) -> list[BatchItem]:
    """Read a batch.

    Raises:
        RemoteProtocolError: Its lengths do not fit together, it is empty, or it holds too many.
    """
    items: list[BatchItem] = []
    at = 0
    try:
        while at < len(data):
            size, _, _, flag, body_length = _HEAD.unpack_from(data, at)
            middle = at + _HEAD.size + body_length
            (property_length,) = _SHORT.unpack_from(data, middle)
            end = middle + 2 + property_length
            if end != at + size or end > len(data):
                raise RemoteProtocolError(f"a batch's message of {size} bytes holds {end - at}")
            text = data[middle + 2 : end].decode()
            items.append(BatchItem(flag, data[at + _HEAD.size : middle], text))
            at = end
            if len(items) > BATCH_MESSAGES_MAX:
                raise RemoteProtocolError(f"a batch holds more than {BATCH_MESSAGES_MAX} messages")
    except (StructError, UnicodeDecodeError) as problem:
        raise RemoteProtocolError(f"a batch is broken: {problem}") from problem
    if not items:
        raise RemoteProtocolError("a batch is empty")
    return items
