"""The layout of the log: files of spans. A file is named by the position of its first byte. A span
is the unit of writing: the records of one turn of the loop under one checksum.

A span counts whole or not at all: the broker acknowledges nothing in it before it is written in
full. The span's head also states how much of the log was durable at that time. So recovery can
distinguish a tail torn by a crash, which it may cut, from damage to acknowledged records, which it
may not: a bad span that a later head declares durable is damage.

Every head carries the random number of its log, so recovery recognizes files of another broker,
and the epoch of the leadership that wrote it. An older format, with a magic number of its own, has
a count in the place of the epoch; its epoch is 0.

Besides messages, a span holds markers, each with the decision about a half message, and records of
losses that an operator accepted. RocketMQ writes a committed message a second time, and an op
message as well. Here the body stays where the half message put it. The marker is both the decision
and the committed message's entry in its queue; readers find the body through it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple, Self, TypeAlias

import msgspec

from txmq.errors import CorruptRecord, RemoteProtocolError
from txmq.protocol.checksum import crc32
from txmq.protocol.record import SMALLEST, Record, stored_ms_of, unpack

__all__ = [
    "CHECKSUM_AT",
    "FOLDER",
    "HEAD_BYTES",
    "LOSS",
    "MAGIC",
    "MARKER",
    "MARKER_BYTES",
    "REASON_BYTES_MAX",
    "SUFFIX",
    "AcceptedLoss",
    "Decision",
    "DecisionKind",
    "DecisionSource",
    "Found",
    "SpanHead",
    "ends_in",
    "found_in",
    "head",
    "head_of",
    "heads_in",
    "marker_of",
    "moment_of",
    "name_of",
    "read_head",
    "start_in",
]

MARKER_MAGIC: Final = 0x7478_6D6B
"""``txmk``; no record of RocketMQ's starts like this."""

MARKER: Final = MARKER_MAGIC.to_bytes(4, "big")
"""The bytes after the size in every marker."""

MARKER_FIELDS: Final = Struct(">IIqqqqqBBH")
MARKER_BYTES: Final = MARKER_FIELDS.size
_DECIDED_AT: Final = 40
REASON_BYTES_MAX: Final = 1024
"""The operator's name and reason; callers refuse longer texts."""


class DecisionKind(IntEnum):
    """The decision about a half message."""

    COMMITTED = 1
    ROLLED_BACK = 2
    PARKED = 3


class DecisionSource(IntEnum):
    """The origin of a decision."""

    PRODUCER = 1
    CHECK = 2
    OPERATOR = 3
    BROKER = 4


_KINDS: Final = {int(kind): kind for kind in DecisionKind}
_SOURCES: Final = {int(source): source for source in DecisionSource}
"""Every pulled committed message needs its marker decoded, and calling an enum is slow."""


class Decision(NamedTuple):
    """The contents of a marker."""

    kind: DecisionKind
    source: DecisionSource
    offset: int
    """The marker's offset in the op queue."""
    half_position: int
    half_offset: int
    queue_offset: int
    """The committed message's offset in its queue; -1 if this marker adds no message."""
    decided_ms: int
    reason: str = ""

    def pack(self) -> bytes:
        """The bytes to store."""
        return marker_of(*self[:-1], self.reason.encode())

    @classmethod
    def unpack(cls, data: bytes, position: int) -> Decision:
        """Decode a marker; bytes after it are ignored. ``position`` is its position in the log.

        Raises:
            CorruptRecord: The bytes are not a valid marker.
        """
        if len(data) < MARKER_BYTES:
            raise CorruptRecord(position, "a marker ends in the middle")
        (
            size,
            magic,
            offset,
            half_position,
            half_offset,
            queue_offset,
            decided_ms,
            kind,
            source,
            length,
        ) = MARKER_FIELDS.unpack_from(data)
        text = data[MARKER_BYTES : MARKER_BYTES + length]
        if magic != MARKER_MAGIC or size != MARKER_BYTES + length or len(text) != length:
            raise CorruptRecord(position, "a marker's length or magic number is wrong")
        try:
            return cls(
                _KINDS[kind],
                _SOURCES[source],
                offset,
                half_position,
                half_offset,
                queue_offset,
                decided_ms,
                text.decode(),
            )
        except (KeyError, UnicodeDecodeError) as error:
            raise CorruptRecord(position, f"a marker is broken: {error!r}") from error


def marker_of(
    kind: int,
    source: int,
    offset: int,
    half_position: int,
    half_offset: int,
    queue_offset: int,
    decided_ms: int,
    reason: bytes,
) -> bytes:
    """Encode the fields of a :class:`Decision`; a plain function for speed: every END needs it."""
    fields = MARKER_FIELDS.pack(
        MARKER_BYTES + len(reason), MARKER_MAGIC, offset, half_position, half_offset, queue_offset,
        decided_ms, kind, source, len(reason),
    )  # fmt: skip
    return fields + reason


_LOSS_MAGIC: Final = 0x7478_6C73
LOSS: Final = _LOSS_MAGIC.to_bytes(4, "big")
"""The bytes after the size in every record of a loss."""

_LOSS_HEAD: Final = Struct(">II")


class AcceptedLoss(NamedTuple):
    """A missing part of the log, and the offsets at which its queues continue."""

    accepted_ms: int
    end: int
    """The end of the log according to the evidence; the log really ended at this record."""
    reason: str
    """The operator's reason."""
    offsets: dict[str, dict[int, int]]
    """The next offset of each queue that may have lost messages, by topic and queue."""

    def pack(self) -> bytes:
        """The bytes to store."""
        text = msgspec.json.encode(self)
        return _LOSS_HEAD.pack(_LOSS_HEAD.size + len(text), _LOSS_MAGIC) + text

    @classmethod
    def unpack(cls, data: bytes, position: int) -> Self:
        """Decode a record; ``position`` is its position in the log.

        Raises:
            CorruptRecord: The bytes are not a valid record of a loss.
        """
        try:
            return msgspec.json.decode(data[_LOSS_HEAD.size :], type=cls)
        except msgspec.MsgspecError as error:
            raise CorruptRecord(position, f"the record of a loss is broken: {error}") from error


def moment_of(data: bytes) -> int | None:
    """The time at which a message was stored or decided, from the first bytes of its record.

    ``None`` if the bytes are too few, or belong to a loss.
    """
    if data[4:8] == LOSS:
        return None
    if data[4:8] == MARKER and len(data) >= MARKER_BYTES:
        return int.from_bytes(data[_DECIDED_AT : _DECIDED_AT + 8], "big")
    return stored_ms_of(data) if len(data) >= SMALLEST else None


FOLDER: Final = "log"
"""The folder of the log's files in a broker's directory."""

SUFFIX: Final = ".log"

MAGIC: Final = 0x7478_6D65
"""``txme``; no record of RocketMQ's starts like this."""

_OLD_MAGIC: Final = 0x7478_6D71
"""``txmq``, in heads from before there were epochs."""

_MAGICS: Final = (MAGIC, _OLD_MAGIC)

_FIELDS: Final = Struct(">IIQqqII")
_PLACE: Final = Struct(">IIQq")
_CHECK: Final = Struct(">I")
HEAD_BYTES: Final = _FIELDS.size + _CHECK.size
CHECKSUM_AT: Final = 32
"""Where a head holds the payload's checksum, in four bytes."""

_MAGIC_PREFIX: Final = MAGIC.to_bytes(4, "big")[:3]
"""Both magic numbers begin with it."""

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
    epoch: int
    """The epoch of the leadership that wrote it; 0 for a broker without copies."""


def name_of(start: int) -> str:
    """A file's name without suffix: twenty digits, so that names sort by position."""
    return f"{start:020d}"


def start_in(name: str) -> int | None:
    """The position of a file's first byte from its name, or ``None`` for other names."""
    digits = name.removesuffix(SUFFIX)
    if not digits.isdecimal() or name != f"{name_of(int(digits))}{SUFFIX}":
        return None
    return int(digits)


def head(log: int, position: int, durable: int, payload: bytes | memoryview, epoch: int) -> bytes:
    """Encode the head of a payload."""
    return head_of(log, position, durable, len(payload), crc32(payload), epoch)


def head_of(log: int, position: int, durable: int, size: int, checksum: int, epoch: int) -> bytes:
    """Encode the head of a payload of this size, with this checksum."""
    fields = _FIELDS.pack(HEAD_BYTES + size, MAGIC, log, position, durable, checksum, epoch)
    return fields + _CHECK.pack(crc32(fields))


def read_head(data: bytes, at: int, position: int) -> SpanHead | None:
    """The head at an index of the data, or ``None`` if there is no valid head.

    Args:
        data: Bytes of the log.
        at: The index in ``data``.
        position: That index's position in the log; a head for another position is invalid.
    """
    if at + HEAD_BYTES > len(data):
        return None
    size, magic, log, where, durable, checksum, epoch = _FIELDS.unpack_from(data, at)
    if magic not in _MAGICS or where != position or size < HEAD_BYTES:
        return None
    (check,) = _CHECK.unpack_from(data, at + _FIELDS.size)
    if crc32(data[at : at + _FIELDS.size]) != check:
        return None
    return SpanHead(size, log, where, durable, checksum, epoch if magic == MAGIC else 0)


def ends_in(data: bytes, position: int) -> Iterator[int]:
    """The ends of the spans in a piece of the log that begins with a span.

    The last end may lie behind the piece. No checksum is computed, so readers must check the spans.
    """
    here = 0
    while here + HEAD_BYTES <= len(data):
        size, magic, _, where = _PLACE.unpack_from(data, here)
        if magic not in _MAGICS or where != position + here or size < HEAD_BYTES:
            return
        here += size
        yield position + here


def heads_in(data: bytes, position: int) -> Iterator[SpanHead]:
    """All valid heads in a piece of the log that begins at a position."""
    here = data.find(_MAGIC_PREFIX, 4)
    while here >= 0:
        # The magic number comes after the head's first word.
        found = read_head(data, here - 4, position + here - 4)
        if found is not None:
            yield found
        here = data.find(_MAGIC_PREFIX, here + 1)


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
