"""Packs the records of a batch in one go if all have the same size.

The bytes that they share are joined with the bytes that differ. Then their numbers are written in
columns: the first bytes of all numbers, the second bytes, and so on.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, Literal, NamedTuple

from txmq.protocol import record as records
from txmq.protocol.checksum import crc32

__all__ = ["EqualRecords", "PackedRecords", "checksums_of"]

_WORD_BYTES: Final = 4
_LONG_BYTES: Final = 8
_WITHOUT_SIGN: Final = bytes([byte & 0x7F for byte in range(256)])
_WORD_COLUMNS: Final = [
    slice(byte if sys.byteorder == "big" else _WORD_BYTES - 1 - byte, None, _WORD_BYTES)
    for byte in range(_WORD_BYTES)
]
"""The byte columns of 32-bit words, the highest byte first. The words are packed in the machine's
byte order, which is faster.
"""

_LONG_COLUMNS: Final = [slice(byte, None, _LONG_BYTES) for byte in range(_LONG_BYTES)]
"""The byte columns of packed 64-bit numbers, the highest byte first."""


class PackedRecords(NamedTuple):
    """Packed records, with their entries for the queue and the key index."""

    data: bytearray
    entries: bytearray
    """Their entries in the queue."""
    positions: bytes
    """Their positions in the log, in eight bytes each."""
    key_positions: array[int]
    """For each key, the position of its record."""


class EqualRecords:
    """Packs records that differ only in their bodies, a few values, and the numbers derived from
    these.

    Everything that depends only on the sizes is computed once, because most batches are alike.

    Args:
        count: The number of records.
        head_size: The size of the bytes before a body.
        body_size: The size of a body.
        fixed: The bytes after a body: before, between and after the values.
        value_sizes: The sizes of the values; each value is a key.
        entry: The layout of an entry in the queue: position, size, tag's hash, checksum.

    Attributes:
        count: The number of records.
        size: The size of one record.
    """

    def __init__(
        self,
        count: int,
        head_size: int,
        body_size: int,
        fixed: Sequence[bytes],
        value_sizes: Sequence[int],
        entry: Struct,
    ) -> None:
        self._tail_size = sum(map(len, fixed)) + sum(value_sizes)
        self.count = count
        self.size = size = head_size + body_size + self._tail_size
        # The pieces to join: head, body, fixed, value, fixed, value, last and the next head.
        step = 2 * len(fixed)
        self._pieces = [b""] * (step * count + 1)
        for number, part in enumerate(fixed[:-1]):
            self._pieces[2 * number + 2 :: step] = [part] * count
        self._pieces[-1] = self._last = fixed[-1]
        self._heads = slice(step, -1, step)
        self._columns = [slice(at, None, step) for at in range(1, step, 2)]
        crcs = _columns_at(records.CRC_AT, _WORD_BYTES, size)
        self._first_crcs, *self._crcs = zip(crcs, _WORD_COLUMNS, strict=True)
        self._offsets = _columns_at(records.QUEUE_OFFSET_AT, _LONG_BYTES, size)
        self._positions = _columns_at(records.POSITION_AT, _LONG_BYTES, size)
        self._entry = entry
        self._entry_positions = _columns_at(0, _LONG_BYTES, entry.size)
        checksums = _columns_at(entry.size - _WORD_BYTES, _WORD_BYTES, entry.size)
        self._entry_checksums = list(zip(checksums, _WORD_COLUMNS, strict=True))
        self._words = Struct(f"{count}I").pack
        self._parts = _parts_of(size, count).unpack
        # Big integers with 64 bits for each record, and others with 64 bits for each key.
        numbers = range(count)
        self._ones, self._numbers = _lanes(numbers, "big")
        self._steps = self._numbers * size
        keys = [number for number in numbers for _ in value_sizes]
        self._key_bytes = _LONG_BYTES * len(keys)
        self._key_ones, key_numbers = _lanes(keys, sys.byteorder)
        self._key_steps = key_numbers * size

    def pack(
        self,
        queue_id: int,
        flag: int,
        offset: int,
        position: int,
        postmark: records.Postmark,
        columns: Sequence[Sequence[bytes]],
        tags_code: int,
    ) -> PackedRecords:
        """Pack the records.

        Args:
            queue_id: The queue.
            flag: The flag of all messages.
            offset: The first one's offset in the queue.
            position: The first one's position in the log.
            postmark: The postmark that all of them share.
            columns: All bodies; then, for each place, the values of all records.
            tags_code: The hash of their tag.

        Raises:
            struct.error: A number has too many bits.
        """
        count, size, ones = self.count, self.size, self._ones
        head, _ = records.head_of(
            queue_id, flag, offset, position, postmark, columns[0][0], self._tail_size
        )
        pieces = self._pieces[:]
        pieces[0] = head
        pieces[self._heads] = [self._last + head] * (count - 1)
        for place, column in zip(self._columns, columns, strict=True):
            pieces[place] = column
        data = bytearray().join(pieces)

        # The highest bit of a body's checksum is never stored.
        words = self._words(*map(crc32, columns[0]))
        place, word_column = self._first_crcs
        data[place] = words[word_column].translate(_WITHOUT_SIGN)
        for place, word_column in self._crcs:
            data[place] = words[word_column]
        packed = (offset * ones + self._numbers).to_bytes(_LONG_BYTES * count, "big")
        _write_changing(data, self._offsets, offset ^ (offset + count - 1), packed)
        packed = (position * ones + self._steps).to_bytes(_LONG_BYTES * count, "big")
        changing = position ^ (position + (count - 1) * size)
        _write_changing(data, self._positions, changing, packed)

        entries = bytearray(self._entry.pack(position, size, tags_code, 0) * count)
        _write_changing(entries, self._entry_positions, changing, packed)
        words = self._words(*map(crc32, self._parts(data)))
        for place, word_column in self._entry_checksums:
            entries[place] = words[word_column]
        key_positions = position * self._key_ones + self._key_steps
        key_words = array("Q", key_positions.to_bytes(self._key_bytes, sys.byteorder))
        return PackedRecords(data, entries, packed, key_words)


def checksums_of(data: bytes, size: int, count: int) -> tuple[int, ...]:
    """The checksums of ``count`` parts of this size.

    Raises:
        struct.error: There are several parts, and ``data`` does not have their total size.
    """
    if count == 1:
        return (crc32(data),)
    return tuple(map(crc32, _parts_of(size, count).unpack(data)))


def _columns_at(at: int, width: int, size: int) -> list[slice]:
    """The byte columns of a number of this width, at the same index of every part of this size."""
    return [slice(at + byte, None, size) for byte in range(width)]


def _write_changing(data: bytearray, places: Sequence[slice], changing: int, packed: bytes) -> None:
    """Write packed numbers into their columns, except the high bytes that all of them share.

    Args:
        data: The parts, each of which already holds the first number.
        places: The columns.
        changing: The bits in which the first and the last number differ.
        packed: The numbers.
    """
    for byte in range(_LONG_BYTES - (changing.bit_length() + 7) // 8, _LONG_BYTES):
        data[places[byte]] = packed[_LONG_COLUMNS[byte]]


def _lanes(numbers: Sequence[int], order: Literal["big", "little"]) -> tuple[int, int]:
    """Two big integers with 64 bits for each number: all ones, and the numbers themselves.

    In bytes of this order the first number comes first.
    """
    ones = (1).to_bytes(_LONG_BYTES, order) * len(numbers)
    lanes = b"".join([number.to_bytes(_LONG_BYTES, order) for number in numbers])
    return int.from_bytes(ones, order), int.from_bytes(lanes, order)


@lru_cache(maxsize=32)
def _parts_of(size: int, count: int) -> Struct:
    return Struct(f"{size}s" * count)
