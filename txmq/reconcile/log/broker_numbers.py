"""The numbers that keep the rows of several brokers apart.

A log position and a queue are unique at one broker only. The number of the broker is therefore
part of both, above their own bits, so that everything after the extract compares plain numbers.
The number must be the same every night, since open items carry their rows into the next day.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from txmq.protocol.checksum import crc32

__all__ = ["number_brokers", "with_broker"]

_POSITION_BITS: Final = 48
_QUEUE_BITS: Final = 16
_NUMBERS: Final = 1 << 15
"""Positions are signed numbers of 64 bits, and queues of 32."""

_COLUMNS: Final = {"position": _POSITION_BITS, "queue": _QUEUE_BITS}


def number_brokers(names: Iterable[str]) -> dict[str, int]:
    """The numbers of brokers by their names; a new broker does not change those of the others.

    Two names get the same number once in 30,000 pairs; then the later name takes the next one.
    """
    numbers: dict[str, int] = {}
    taken: set[int] = set()
    for name in sorted(names):
        number = crc32(name.encode()) % _NUMBERS
        while number in taken:
            number = (number + 1) % _NUMBERS
        taken.add(number)
        numbers[name] = number
    return numbers


def with_broker(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    """The rows of one broker with its number in their positions and queues."""
    for name, bits in _COLUMNS.items() if number else ():
        at = batch.schema.get_field_index(name)
        if at >= 0:
            field = batch.schema.field(at)
            high = pa.scalar(number << bits, field.type)
            batch = batch.set_column(at, field, pc.add(batch.column(at), high))
    return batch
