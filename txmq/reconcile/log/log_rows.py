"""The rows of a broker's log as Arrow, with the number of the broker.

A log position and a queue are unique at one broker only. The number of the broker is therefore
part of both, above their own bits, so that everything after the extract compares plain numbers.
The number must be the same every night, since open items carry their rows into the next day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from txmq.protocol.checksum import crc32
from txmq.reconcile.extract.table_writer import arrow_schema
from txmq.reconcile.tables import TableSchema

__all__ = ["BrokerLog", "GroupOffset", "LogRows", "arrow_batches", "number_brokers"]

_ROWS_A_BATCH: Final = 64 * 1024
_BITS: Final = {"position": 48, "queue": 16}
"""The bits of a column below the broker's number."""
_NUMBERS: Final = 1 << 15
"""Positions are signed numbers of 64 bits, and queues of 32."""


class GroupOffset(NamedTuple):
    """A row of ``offsets``."""

    group: str
    topic: str
    queue: int
    next_offset: int


class LogRows(NamedTuple):
    """Rows of a log that will not change any more."""

    records: int
    """The number of records behind them."""
    position: int
    """A log in a directory was read up to here; 0 in a cluster, whose queues have no common end."""
    messages: Sequence[pa.RecordBatch]
    failures: Sequence[pa.RecordBatch] = ()
    gone: int = 0
    """The number of decisions on half messages that were deleted: they have no row."""


class BrokerLog(NamedTuple):
    """The log of one broker."""

    number: int
    offsets: Sequence[GroupOffset]
    rows: Iterator[LogRows]


def number_brokers(names: Iterable[str]) -> dict[str, int]:
    """The numbers of a cluster's brokers; they depend on the names, so that a new broker does not
    change those of the others.

    If two names have the same number, which happens to one pair in 30,000, one takes the next.
    """
    numbers: dict[int, str] = {}
    for name in sorted(names):
        number = crc32(name.encode()) % _NUMBERS
        while number in numbers:
            number = (number + 1) % _NUMBERS
        numbers[number] = name
    return {name: number for number, name in numbers.items()}


def arrow_batches(table: TableSchema, rows: Sequence[Any], broker: int) -> Iterator[pa.RecordBatch]:
    """The rows of a table, of the broker with a number."""
    schema = arrow_schema(table)
    for first in range(0, len(rows), _ROWS_A_BATCH):
        some = rows[first : first + _ROWS_A_BATCH]
        columns = []
        for field in schema:
            column = pa.array(map(attrgetter(field.name), some), field.type, size=len(some))
            if broker and field.name in _BITS:
                high = pa.scalar(broker << _BITS[field.name], field.type)
                column = pc.add(column, high)
            columns.append(column)
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
