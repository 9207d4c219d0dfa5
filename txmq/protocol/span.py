"""The layout of the log: files of spans. A file is named by the position of its first byte. A span
is the unit of writing: the records of one turn of the loop under one checksum.

A span counts whole or not at all: the broker acknowledges nothing in it before it is written in
full. The span's head also states how much of the log was durable at that time. So recovery can
distinguish a tail torn by a crash, which it may cut, from damage to acknowledged records, which it
may not: a bad span that a later head declares durable is damage.

Every head carries the random number of its log, so recovery recognizes files of another broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from txmq.errors import CorruptRecord, RemoteProtocolError
from txmq.protocol.checksum import crc32
from txmq.protocol.decision import MARKER, Decision
from txmq.protocol.loss import LOSS, AcceptedLoss
from txmq.protocol.record import Record, unpack

__all__ = [
    "FOLDER",
    "HEAD_BYTES",
    "MAGIC",
    "SUFFIX",
    "Found",
    "SpanHead",
    "checksum_in",
    "found_in",
    "head",
    "heads_in",
    "name_of",
    "read_head",
    "start_in",
]

FOLDER: Final = "log"
"""The folder of the log's files in a broker's directory."""

SUFFIX: Final = ".log"

MAGIC: Final = 0x7478_6D71
"""``txmq``; no record of RocketMQ's starts like this."""

_FIELDS: Final = Struct(">IIQqqII")
_CHECK: Final = Struct(">I")
HEAD_BYTES: Final = _FIELDS.size + _CHECK.size

_MAGIC_BYTES: Final = MAGIC.to_bytes(4, "big")

Found: TypeAlias = Record | Decision | AcceptedLoss
"""A record in a span."""


class SpanHead(NamedTuple):
    """The head of a span, before its records."""

    size: int
    log: int
    """The random number of the log it belongs to."""
    position: int
    durable: int
    checksum: int
    records: int


def name_of(start: int) -> str:
    """A file's name without suffix: twenty digits, so that names sort by position."""
    return f"{start:020d}"


def start_in(name: str) -> int | None:
    """The position of a file's first byte from its name, or ``None`` for other names."""
    digits = name.removesuffix(SUFFIX)
    if not digits.isdecimal() or name != f"{name_of(int(digits))}{SUFFIX}":
        return None
    return int(digits)


def head(log: int, position: int, durable: int, payload: bytes, records: int) -> bytes:
    """Encode the head of a payload."""
    fields = _FIELDS.pack(
        HEAD_BYTES + len(payload), MAGIC, log, position, durable, crc32(payload), records
    )
    return fields + _CHECK.pack(crc32(fields))


def checksum_in(data: bytes) -> int:
    """The payload's checksum in a head that was just encoded."""
    checksum: int = _FIELDS.unpack_from(data)[5]
    return checksum


def read_head(data: bytes, at: int, position: int) -> SpanHead | None:
    """The head at an index of the data, or ``None`` if there is no valid head.

    Args:
        data: Bytes of the log.
        at: The index in ``data``.
        position: That index's position in the log; a head for another position is invalid.
    """
    if at + HEAD_BYTES > len(data):
        return None
    size, magic, log, where, durable, checksum, records = _FIELDS.unpack_from(data, at)
    if magic != MAGIC or where != position or size < HEAD_BYTES:
        return None
    (check,) = _CHECK.unpack_from(data, at + _FIELDS.size)
    if crc32(data[at : at + _FIELDS.size]) != check:
        return None
    return SpanHead(size, log, where, durable, checksum, records)


def heads_in(data: bytes, position: int) -> Iterator[SpanHead]:
    """All valid heads in a piece of the log that begins at a position."""
    here = data.find(_MAGIC_BYTES, 4)
    while here >= 0:
        # The magic number comes after the head's first word.
        found = read_head(data, here - 4, position + here - 4)
        if found is not None:
            yield found
        here = data.find(_MAGIC_BYTES, here + 1)


def found_in(payload: bytes, position: int) -> Iterator[tuple[Found, int, bytes]]:
    """The items of an intact span: each decoded, with its position and its bytes.

    Args:
        payload: The span without its head.
        position: The payload's position in the log.

    Raises:
        CorruptRecord: A record is broken, or states another position.
    """
    at = 0
    while at < len(payload):
        where = position + at
        if payload[at + 4 : at + 8] == MARKER:
            size = int.from_bytes(payload[at : at + 4], "big")
            data = payload[at : at + size]
            yield Decision.unpack(data, where), where, data
            at += size
            continue
        if payload[at + 4 : at + 8] == LOSS:
            size = int.from_bytes(payload[at : at + 4], "big")
            data = payload[at : at + size]
            yield AcceptedLoss.unpack(data, where), where, data
            at += size
            continue
        try:
            record, after = unpack(payload, at)
        except RemoteProtocolError as error:
            # The checksum is right, so the writer wrote these bytes: a bug in the writer.
            raise CorruptRecord(where, str(error)) from error
        if record.position != where:
            raise CorruptRecord(where, f"a record states position {record.position}")
        yield record, where, payload[at:after]
        at = after
