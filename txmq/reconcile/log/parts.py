"""Parts of logs: each is collapsed by itself, in several processes if there is much to read, and
then all are joined in order. So the same log gives the same rows in the same order on any machine.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.table_writer import arrow_schema
from txmq.reconcile.log.collapse import Collapse, HalfAt, OpenEnds
from txmq.reconcile.rules import DayWindow, Flow
from txmq.reconcile.tables import FAILURES, MESSAGES, TableSchema

__all__ = [
    "BrokerLog",
    "CollapseJob",
    "GroupOffset",
    "LogPart",
    "arrow_batches",
    "collapsed_part",
    "in_processes",
]

_ROWS_A_BATCH: Final = 64 * 1024
_PARTS_A_PROCESS: Final = 4
"""Starting a process takes as long as reading two parts."""

T = TypeVar("T")
R = TypeVar("R")


class CollapseJob(NamedTuple):
    """The inputs that every process needs."""

    flows: tuple[Flow, ...]
    window: DayWindow


class LogPart(NamedTuple):
    """A collapsed part of a log."""

    start: int
    """The start of its first span."""
    end: int
    """The end of its last span."""
    records: int
    messages: list[pa.RecordBatch]
    failures: list[pa.RecordBatch]
    open_ends: OpenEnds


class GroupOffset(NamedTuple):
    """A row of ``offsets``."""

    group: str
    topic: str
    queue: int
    next_offset: int


class BrokerLog(NamedTuple):
    """The log of one broker: its parts in order, and what joins them."""

    number: int
    offsets: Sequence[GroupOffset]
    whole: Collapse
    parts: Iterator[LogPart]
    half_at: HalfAt


def collapsed_part(collapse: Collapse, start: int, end: int, records: int) -> LogPart:
    """A part from its collapsed records."""
    return LogPart(
        start,
        end,
        records,
        list(arrow_batches(MESSAGES, collapse.messages)),
        list(arrow_batches(FAILURES, collapse.failures)),
        collapse.open_ends(),
    )


def arrow_batches(table: TableSchema, rows: Sequence[Any]) -> Iterator[pa.RecordBatch]:
    """Rows of a table as Arrow."""
    schema = arrow_schema(table)
    for first in range(0, len(rows), _ROWS_A_BATCH):
        some = rows[first : first + _ROWS_A_BATCH]
        columns = [
            pa.array(map(attrgetter(field.name), some), field.type, size=len(some))
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def in_processes(work: Callable[[T], R], todo: Sequence[T], processes: int | None) -> Iterator[R]:
    """The results of some work in order; it is done here if there is little of it.

    Raises:
        ReconcileRefused: A process has ended.
    """
    wanted = (os.cpu_count() or 1) if processes is None else processes
    wanted = min(wanted, len(todo) // _PARTS_A_PROCESS)
    if wanted <= 1:
        yield from map(work, todo)
        return
    # Spawn and not fork: the caller may have threads, as every user of Spark has.
    pool = ProcessPoolExecutor(wanted, multiprocessing.get_context("spawn"))
    waiting: deque[Future[R]] = deque()
    try:
        for item in todo:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * wanted:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise ReconcileRefused(f"a process that read the log has ended: {error}") from error
    finally:
        pool.shutdown(cancel_futures=True)
