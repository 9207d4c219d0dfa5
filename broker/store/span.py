"""The unit in which the log is written: the records of one turn of the loop under one checksum.

A span is there whole or not at all: nothing in it is acknowledged before it was written in full.
Its head also tells how much of the log was durable when it was written. That is how recovery tells
a tail torn by a crash, which may be cut, from damage to bytes that somebody was promised, which may
not: a bad span that a later head declares durable is damage.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from txmq.protocol.checksum import crc32

__all__ = ["HEAD_BYTES", "MAGIC", "SpanHead", "head", "read_head"]

MAGIC: Final = 0x7478_6D71
"""``txmq``; no record of RocketMQ's starts like this."""

_FIELDS: Final = Struct(">IIqqII")
_CHECK: Final = Struct(">I")
HEAD_BYTES: Final = _FIELDS.size + _CHECK.size


class SpanHead(NamedTuple):
    """What stands before a span's records."""

    size: int
    position: int
    durable: int
    checksum: int
    records: int


def head(position: int, durable: int, payload: bytes, records: int) -> bytes:
    """The bytes that go before a payload."""
    fields = _FIELDS.pack(
        HEAD_BYTES + len(payload), MAGIC, position, durable, crc32(payload), records
    )
    return fields + _CHECK.pack(crc32(fields))


def read_head(data: bytes, at: int, position: int) -> SpanHead | None:
    """The head that starts at a place, or ``None`` where none does.

    Args:
        data: Bytes of the log.
        at: Where in ``data`` to look.
        position: Where in the log that place is; a head written for elsewhere does not count.
    """
    if at + HEAD_BYTES > len(data):
        return None
    size, magic, where, durable, checksum, records = _FIELDS.unpack_from(data, at)
    if magic != MAGIC or where != position or size < HEAD_BYTES:
        return None
    (check,) = _CHECK.unpack_from(data, at + _FIELDS.size)
    if crc32(data[at : at + _FIELDS.size]) != check:
        return None
    return SpanHead(size, where, durable, checksum, records)
