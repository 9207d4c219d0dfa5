"""Frames of a byte stream.

A frame is a 4-byte length, then a word with the header's form in its top byte and the header's
length in the low 24 bits, then the header, then the body. The reader keeps only bytes that arrived,
and refuses a length over the limit before it allocates memory.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from txmq.errors import LocalProtocolError, RemoteProtocolError
from txmq.limits import FRAME_BYTES_MAX
from txmq.quantity import quantity

__all__ = ["BINARY", "JSON", "Frame", "FrameReader", "frame"]

JSON = 0
"""The header is a JSON object."""

BINARY = 1
"""The header is in RocketMQ's binary form."""

_WORDS = Struct(">II")
_new = tuple.__new__  # Skips NamedTuple's constructor, because every message makes a frame.


class Frame(NamedTuple):
    """One frame: the header's form, the header, the body."""

    kind: int
    header: bytes
    body: bytes


class FrameReader:
    """Collects received bytes and returns complete frames."""

    __slots__ = ("_limit", "_wanted", "held")

    def __init__(self, limit: int = FRAME_BYTES_MAX) -> None:
        self._limit = limit
        # One buffer, not a list of pieces: a peer that writes single bytes must not cost more.
        self.held = bytearray()
        """Bytes of a frame that is not complete yet."""
        self._wanted = 8

    def feed(self, data: bytes) -> list[Frame]:
        """Add received bytes and return the frames they complete, in order.

        Raises:
            RemoteProtocolError: The lengths are inconsistent or over the limit, or the header's
                form is unknown. Earlier frames in the same data are lost with the connection.
        """
        if self.held:
            self.held += data
            if len(self.held) < self._wanted:
                return []
            data = bytes(self.held)
            self.held = bytearray()
        frames: list[Frame] = []
        at, end = 0, len(data)
        while end - at >= 8:
            length, word = _WORDS.unpack_from(data, at)
            header_length = word & 0xFFFFFF
            if length + 4 > self._limit or length < 4 + header_length or word > 0x1FFFFFF:
                raise RemoteProtocolError(
                    f"a frame claims {quantity(length, 'byte')} with a header of {header_length} "
                    f"in form {word >> 24}; the limit is {self._limit}"
                )
            stop = at + 4 + length
            if stop > end:
                self._wanted = stop - at
                break
            middle = at + 8 + header_length
            frames.append(_new(Frame, (word >> 24, data[at + 8 : middle], data[middle:stop])))
            at = stop
        else:
            self._wanted = 8
        if at < end:
            self.held += data[at:]
        return frames


def frame(kind: int, header: bytes, body: bytes = b"") -> bytes:
    """Encode one frame.

    Raises:
        LocalProtocolError: The frame would exceed the size that peers accept.
    """
    length = 4 + len(header) + len(body)
    if length + 4 > FRAME_BYTES_MAX or len(header) > 0xFFFFFF:
        raise LocalProtocolError(f"a frame of {length + 4} bytes exceeds {FRAME_BYTES_MAX}")
    return _WORDS.pack(length, kind << 24 | len(header)) + header + body
