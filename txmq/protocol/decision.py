"""The op marker: a small record with the decision about a half message.

RocketMQ writes a committed message a second time and an op message beside it. Here the body stays
where the half message put it. The marker is both the decision and the committed message's entry in
its queue; readers find the body through it.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from txmq.errors import CorruptRecord

__all__ = [
    "MARKER",
    "MARKER_BYTES",
    "REASON_BYTES_MAX",
    "Decision",
    "DecisionKind",
    "DecisionSource",
    "decided_ms_of",
    "marker_of",
]

_MAGIC: Final = 0x7478_6D6B
"""``txmk``; no record of RocketMQ's starts like this."""

MARKER: Final = _MAGIC.to_bytes(4, "big")
"""The bytes after the size in every marker."""

_FIELDS: Final = Struct(">IIqqqqqBBH")
MARKER_BYTES: Final = _FIELDS.size
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
        ) = _FIELDS.unpack_from(data)
        text = data[MARKER_BYTES : MARKER_BYTES + length]
        if magic != _MAGIC or size != MARKER_BYTES + length or len(text) != length:
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
    """Encode the fields of a :class:`Decision`; a plain function, as every END needs it."""
    fields = _FIELDS.pack(
        MARKER_BYTES + len(reason), _MAGIC, offset, half_position, half_offset, queue_offset,
        decided_ms, kind, source, len(reason),
    )  # fmt: skip
    return fields + reason


def decided_ms_of(data: bytes) -> int:
    """The time in a marker, without decoding the rest."""
    return int.from_bytes(data[_DECIDED_AT : _DECIDED_AT + 8], "big")
