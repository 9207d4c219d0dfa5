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


class BatchItem(NamedTuple):
    """One message of a batch."""

    flag: int
    body: bytes
    properties: str


def pack(items: Iterable[BatchItem]) -> bytes:
    """Write a batch.

    Raises:
        LocalProtocolError: A message's properties are too long or hold half a character, or its
            flag is no 32-bit number.
    """
    pieces: list[bytes] = []
    try:
        for item in items:
            pieces += _pieces_of(item)
    except (StructError, UnicodeEncodeError) as problem:
        raise LocalProtocolError(f"no batch can hold this: {problem}") from problem
    return b"".join(pieces)


def _pieces_of(item: BatchItem) -> tuple[bytes, bytes, bytes, bytes]:
    flag, body, text = item
    property_bytes = text.encode()
    if len(property_bytes) > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(
            f"properties of {len(property_bytes)} bytes exceed {PROPERTIES_BYTES_MAX}"
        )
    size = _HEAD.size + len(body) + 2 + len(property_bytes)
    head = _HEAD.pack(size, 0, 0, flag, len(body))
    return head, body, _SHORT.pack(len(property_bytes)), property_bytes


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
