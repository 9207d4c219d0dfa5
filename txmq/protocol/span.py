"""The layout of the log: its files, each named by the position of its first byte, and in them the
spans, which are the unit in which it is written: the records of one turn of the loop under one
checksum.

A span is there whole or not at all: nothing in it is acknowledged before it was written in full.
Its head also tells how much of the log was durable when it was written. That is how recovery tells
a tail torn by a crash, which may be cut, from damage to bytes that somebody was promised, which may
not: a bad span that a later head declares durable is damage.

Every head names the log that it was written for, by a random number. A file of another broker, or
a part of one, is recognized wherever it lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from txmq.errors import CorruptRecord, RemoteProtocolError
from txmq.protocol.checksum import crc32
from txmq.protocol.decision import MARKER, Decision
from txmq.protocol.loss import LOSS, Loss
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
"""Where in a broker's directory the files of the log are."""

SUFFIX: Final = ".log"

MAGIC: Final = 0x7478_6D71
"""``txmq``; no record of RocketMQ's starts like this."""

_FIELDS: Final = Struct(">IIQqqII")
_CHECK: Final = Struct(">I")
HEAD_BYTES: Final = _FIELDS.size + _CHECK.size

_MAGIC_BYTES: Final = MAGIC.to_bytes(4, "big")

Found: TypeAlias = Record | Decision | Loss
"""What a span holds."""


class SpanHead(NamedTuple):
    """What stands before a span's records."""

    size: int
    log: int
    """The log that it was written for."""
    position: int
    durable: int
    checksum: int
    records: int


def name_of(start: int) -> str:
    """A file's name, bare: twenty digits, so that names sort as positions do."""
    return f"{start:020d}"


def start_in(name: str) -> int | None:
    """The position of a file's first byte by its name, or ``None`` where it is no file of ours."""
    digits = name.removesuffix(SUFFIX)
    if not digits.isdecimal() or name != f"{name_of(int(digits))}{SUFFIX}":
        return None
    return int(digits)


def head(log: int, position: int, durable: int, payload: bytes, records: int) -> bytes:
    """The bytes that go before a payload."""
    fields = _FIELDS.pack(
        HEAD_BYTES + len(payload), MAGIC, log, position, durable, crc32(payload), records
    )
    return fields + _CHECK.pack(crc32(fields))


def checksum_in(data: bytes) -> int:
    """The payload's checksum, from a head that was just made."""
    checksum: int = _FIELDS.unpack_from(data)[5]
    return checksum


def read_head(data: bytes, at: int, position: int) -> SpanHead | None:
    """The head that starts at a place, or ``None`` where none does.

    Args:
        data: Bytes of the log.
        at: Where in ``data`` to look.
        position: Where in the log that place is; a head written for elsewhere does not count.
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
    """The heads in bytes that begin at a position of the log, wherever they may be in them."""
    here = data.find(_MAGIC_BYTES, 4)
    while here >= 0:
        # The magic number stands behind the head's first word.
        found = read_head(data, here - 4, position + here - 4)
        if found is not None:
            yield found
        here = data.find(_MAGIC_BYTES, here + 1)


def found_in(payload: bytes, position: int) -> Iterator[tuple[Found, int, bytes]]:
    """What a span holds that is whole: each record read, its position, and as it lies in the log.

    Args:
        payload: The span without its head.
        position: Where in the log that begins.

    Raises:
        CorruptRecord: A record is none, or says that it lies elsewhere.
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
            yield Loss.unpack(data, where), where, data
            at += size
            continue
        try:
            record, after = unpack(payload, at)
        except RemoteProtocolError as error:
            # The checksum holds, so these are the bytes that were written: a fault of the writer.
            raise CorruptRecord(where, str(error)) from error
        if record.position != where:
            raise CorruptRecord(where, f"a record says it lies at {record.position}")
        yield record, where, payload[at:after]
        at = after
