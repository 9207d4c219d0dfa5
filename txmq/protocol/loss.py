"""The record of a loss that an operator accepted: the missing part of the log, and the reason."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple, Self

import msgspec

from txmq.errors import CorruptRecord

__all__ = ["LOSS", "AcceptedLoss"]

_MAGIC: Final = 0x7478_6C73
LOSS: Final = _MAGIC.to_bytes(4, "big")
"""The bytes after the size in every record of a loss."""

_HEAD: Final = Struct(">II")


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
        return _HEAD.pack(_HEAD.size + len(text), _MAGIC) + text

    @classmethod
    def unpack(cls, data: bytes, position: int) -> Self:
        """Decode a record; ``position`` is its position in the log.

        Raises:
            CorruptRecord: The bytes are not a valid record of a loss.
        """
        try:
            return msgspec.json.decode(data[_HEAD.size :], type=cls)
        except msgspec.MsgspecError as error:
            raise CorruptRecord(position, f"the record of a loss is broken: {error}") from error
