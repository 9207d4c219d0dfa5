"""The record of a loss that an operator accepted: what the log no longer holds, and why the broker
goes on without it.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple, Self

import msgspec

from txmq.errors import CorruptRecord

__all__ = ["LOSS", "Loss"]

_MAGIC: Final = 0x7478_6C73
LOSS: Final = _MAGIC.to_bytes(4, "big")
"""What stands behind the size in every record of a loss."""

_HEAD: Final = Struct(">II")


class Loss(NamedTuple):
    """A part of the log that is missing, and the offsets at which its queues go on."""

    accepted_ms: int
    end: int
    """Where the log ended by the evidence; it ends where this record lies."""
    reason: str
    """What the operator said."""
    offsets: dict[str, dict[int, int]]
    """The next offset of each queue that may have lost messages, by topic and queue."""

    def pack(self) -> bytes:
        """The record to be stored."""
        text = msgspec.json.encode(self)
        return _HEAD.pack(_HEAD.size + len(text), _MAGIC) + text

    @classmethod
    def unpack(cls, data: bytes, position: int) -> Self:
        """Read a record; ``position`` is where in the log it was found.

        Raises:
            CorruptRecord: These are not the bytes of a loss.
        """
        try:
            return msgspec.json.decode(data[_HEAD.size :], type=cls)
        except msgspec.MsgspecError as error:
            raise CorruptRecord(position, f"the record of a loss is broken: {error}") from error
