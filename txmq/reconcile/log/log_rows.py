"""The rows of a broker's log as Arrow, with the number of the broker.

A log position and a queue are unique at one broker only. The number of the broker is therefore
part of both, above their own bits, so that everything after the extract compares plain numbers.
The number must be the same every night, since open items carry their rows into the next day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from txmq.protocol.checksum import crc32
from txmq.reconcile.extract.table_writer import arrow_schema
from txmq.reconcile.log.collapse import Collapse, HalfOf
from txmq.reconcile.log.flows import Flows
from txmq.reconcile.rules import DayWindow, Flow, Money
from txmq.reconcile.tables import FAILURES, MESSAGES, OFFSETS, TableSchema

__all__ = ["BrokerDay", "GroupOffset", "LogReading", "LogRows", "number_brokers"]

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

    messages: pa.RecordBatch
    failures: pa.RecordBatch
    gone: int
    """The number of decisions on half messages that were deleted: they have no row."""
    records: int
    """The number of records behind them."""
    position: int
    """A log in a directory was read up to here; 0 in a cluster, whose queues have no common end."""


class LogReading(NamedTuple):
    """The logs of all brokers, ready to be read."""

    moment_ms: int
    """The time at which the logs end."""
    offsets: Sequence[pa.RecordBatch]
    rows: Iterator[LogRows]
    brokers: tuple[str, ...] = ()
    """The brokers of a cluster."""
    notes: tuple[str, ...] = ()
    """What the logs cannot tell."""


class BrokerDay(NamedTuple):
    """What each process needs to read a day from the log of one broker."""

    number: int
    flows: tuple[Flow, ...]
    money: Mapping[str, Money]
    window: DayWindow

    def collapse(self, half_of: HalfOf | None = None) -> Collapse:
        """Begin to collapse records; see :class:`Collapse`."""
        return Collapse(Flows(self.flows, self.money), self.window, half_of)

    def take_rows(self, collapse: Collapse, records: int = 0, position: int = 0) -> LogRows:
        """Take the rows that will not change any more out of a collapse."""
        messages = self._batch(MESSAGES, collapse.messages)
        failures = self._batch(FAILURES, collapse.failures)
        rows = LogRows(messages, failures, collapse.gone, records, position)
        collapse.messages.clear()
        collapse.failures.clear()
        collapse.gone = 0
        return rows

    def offsets(self, rows: Sequence[GroupOffset]) -> pa.RecordBatch:
        """The rows of ``offsets`` as Arrow."""
        return self._batch(OFFSETS, rows)

    def _batch(self, table: TableSchema, rows: Sequence[Any]) -> pa.RecordBatch:
        schema = arrow_schema(table)
        columns = []
        for field in schema:
            column = pa.array(map(attrgetter(field.name), rows), field.type, size=len(rows))
            if self.number and field.name in _BITS:
                high = pa.scalar(self.number << _BITS[field.name], field.type)
                column = pc.add(column, high)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=schema)


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
