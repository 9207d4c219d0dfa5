"""Records of equal sizes that follow each other, packed at once: those of a batch.

What they share is copied together with what differs. Then their numbers are written in columns: the
first bytes of all numbers, the second bytes, and so on.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

from txmq.protocol import record as records
from txmq.protocol.checksum import crc32

__all__ = [
    "checksums_of",
    "pack_equal",
    "packed_range",
    "repeated",
    "write_checksums",
    "write_range",
]

_WORD_BYTES: Final = 4
_LONG_BYTES: Final = 8
_WITHOUT_SIGN: Final = bytes([byte & 0x7F for byte in range(256)])


def pack_equal(
    head: bytes,
    offsets: range,
    positions: range,
    packed_positions: bytearray,
    bodies: Sequence[bytes],
    fixed: Sequence[bytes],
    values: Sequence[Sequence[bytes]],
) -> bytearray:
    """Pack the records.

    Args:
        head: The first record's bytes before its body. Those of the others have other checksums,
            offsets and positions.
        offsets: The offsets in the queue.
        positions: The positions in the log.
        packed_positions: The same, from :func:`packed_range`.
        bodies: The bodies.
        fixed: The bytes after the bodies: before, between and after the values.
        values: The values of all records, one sequence for each place.
    """
    count, step, size = len(bodies), 2 * len(values) + 2, positions.step
    pieces = [fixed[-1] + head] * (step * count + 1)
    pieces[0], pieces[-1] = head, fixed[-1]
    pieces[1::step] = bodies
    for number, column in enumerate(values):
        pieces[2 * number + 2 :: step] = [fixed[number]] * count
        pieces[2 * number + 3 :: step] = column
    data = bytearray().join(pieces)
    write_checksums(data, records.CRC_AT, size, map(crc32, bodies))
    data[records.CRC_AT :: size] = data[records.CRC_AT :: size].translate(_WITHOUT_SIGN)
    write_range(data, records.QUEUE_OFFSET_AT, size, offsets)
    write_range(data, records.POSITION_AT, size, positions, packed_positions)
    return data


def checksums_of(data: bytes | bytearray, size: int) -> map[int]:
    """The checksum of each part of this size."""
    return map(crc32, _parts_of(len(data) // size, size).unpack(data))


def write_checksums(data: bytearray, at: int, size: int, checksums: Iterable[int]) -> None:
    """Write a checksum into each part of this size, at an index of each part."""
    words = array("I", checksums)
    if sys.byteorder == "little":
        words.byteswap()
    column = bytearray(words)
    for byte in range(_WORD_BYTES):
        data[at + byte :: size] = column[byte::_WORD_BYTES]


def packed_range(numbers: range) -> bytearray:
    """The numbers in eight bytes each."""
    return bytearray(_longs(len(numbers)).pack(*numbers))


def repeated(packed: bytearray, times: int) -> array[int]:
    """Packed numbers as an array that holds each of them several times."""
    numbers = array("Q", bytes(packed))
    if sys.byteorder == "little":
        numbers.byteswap()
    if times == 1:
        return numbers
    whole = numbers * times
    for time in range(times):
        whole[time::times] = numbers
    return whole


def write_range(
    data: bytearray, at: int, size: int, numbers: range, packed: bytearray | None = None
) -> None:
    """Write a number into each part of this size, at an index of each part.

    All parts have the first number already, so only the bytes that change are written.

    Args:
        data: The parts.
        at: The index.
        size: The size of a part.
        numbers: One number for each part.
        packed: The same from :func:`packed_range`, if the caller has them.
    """
    first, last = numbers[0], numbers[-1]
    changing = ((first ^ last).bit_length() + 7) // 8
    if changing == 1:
        data[at + _LONG_BYTES - 1 :: size] = bytes(
            range(first & 255, (last & 255) + 1, numbers.step)
        )
        return
    if packed is None:
        packed = packed_range(numbers)
    for byte in range(_LONG_BYTES - changing, _LONG_BYTES):
        data[at + byte :: size] = packed[byte::_LONG_BYTES]


@lru_cache(maxsize=32)
def _parts_of(count: int, size: int) -> Struct:
    return Struct(f"{size}s" * count)


@lru_cache(maxsize=32)
def _longs(count: int) -> Struct:
    return Struct(f">{count}q")
