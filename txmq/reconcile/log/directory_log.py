"""The logs in the directories of brokers.

A log is cut into stretches of one size. Each is collapsed by itself, by Spark's workers or in
several processes if there is much to read, and then they are joined in order. So the same log
gives the same rows in the same order on any machine.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from txmq.errors import ReconcileRefused
from txmq.protocol.span import Found
from txmq.reconcile.log.broker_tables import check_names, read_tables
from txmq.reconcile.log.collapse import OpenEnds
from txmq.reconcile.log.files import STRETCH_BYTES, LogFiles, LogStretch, OpenFile, open_log
from txmq.reconcile.log.log_rows import BrokerDay, LogReading, LogRows
from txmq.reconcile.rules import DayWindow, Rules
from txmq.runtime.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["read_directories"]

_PROCESSES: Final = os.cpu_count() or 1
_WORKERS_AT_ONCE: Final = 32
"""The stretches whose rows Spark's workers send together; this process holds them in memory."""
_STRETCHES_A_PROCESS: Final = 4
"""Starting a process takes as long as reading two stretches."""

_Collapsed: TypeAlias = tuple[LogRows, OpenEnds]
_Collapse: TypeAlias = Callable[[LogStretch], _Collapsed | None]
_Results: TypeAlias = Iterator[tuple[LogStretch, _Collapsed | None]]
"""Stretches in order; ``None`` stands for one that was not read there."""


@contextmanager
def read_directories(
    rules: Rules, window: DayWindow, spark: SparkSession | None, clock: Clock
) -> Iterator[LogReading]:
    """Open the logs in directories.

    If ``spark`` is a cluster, its workers read them; otherwise this machine does.

    Raises:
        ReconcileRefused: A log is missing, or does not reach back to the beginning of the day.
    """
    paths = [Path(place) for place in rules.log.places]
    days = [BrokerDay(number, rules.log.flow, rules.money, window) for number in range(len(paths))]
    tables = [read_tables(path) for path in paths]
    check_names(rules.log.flow, tables)
    offsets = [day.offsets(own.offsets) for day, own in zip(days, tables, strict=True)]
    with ExitStack() as stack:
        logs = [stack.enter_context(open_log(path, window.start_ms)) for path in paths]
        rows = chain.from_iterable(map(_rows, logs, days, repeat(spark)))
        yield LogReading(clock.wall_ms(), offsets, rows)


def _rows(log: LogFiles, day: BrokerDay, spark: SparkSession | None) -> Iterator[LogRows]:
    whole = day.collapse(log.half_of)
    opened = {file.file: file for file in log.opened}
    todo = chain.from_iterable(file.stretches(STRETCH_BYTES) for file in log.opened)
    size = sum(file.end - file.start for file in opened)
    processes = min(_PROCESSES, size // (STRETCH_BYTES * _STRETCHES_A_PROCESS))
    collapse = partial(_try_collapse, day)
    if spark is not None and _has_cluster(spark):
        results = _collapse_by_workers(collapse, todo, spark)
    elif processes > 1:
        results = _collapse_in_processes(collapse, todo, processes)
    else:
        results = zip(todo, repeat(None))
    for stretch, collapsed in results:
        # Its file may be only here, or was deleted and is open only here.
        rows, ends = collapsed or _collapse(day, opened[stretch.file], stretch)
        yield rows
        whole.join(ends)
        yield day.take_rows(whole)
    whole.finish()
    yield day.take_rows(whole)


def _has_cluster(spark: SparkSession) -> bool:
    # Not above: the processes that read here import this module, and need no Spark.
    from txmq.reconcile.spark import has_cluster

    return has_cluster(spark)


def _collapse_by_workers(
    collapse: _Collapse, todo: Iterator[LogStretch], spark: SparkSession
) -> _Results:
    context = spark.sparkContext
    at_once = min(2 * context.defaultParallelism, _WORKERS_AT_ONCE)
    while some := list(islice(todo, at_once)):
        found = context.parallelize(some, len(some)).map(collapse).collect()
        yield from zip(some, found, strict=True)


def _collapse_in_processes(
    collapse: _Collapse, todo: Iterator[LogStretch], processes: int
) -> _Results:
    # Spawn and not fork: the caller may have threads, as every user of Spark has.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    results: _Results = iter(())
    try:
        while some := list(islice(todo, processes)):
            # They are read while the caller takes the results of those before them.
            following = zip(some, pool.map(collapse, some), strict=True)
            yield from results
            results = following
        yield from results
    except BrokenProcessPool as error:
        raise ReconcileRefused(f"a process that read the log has ended: {error}") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _try_collapse(day: BrokerDay, stretch: LogStretch) -> _Collapsed | None:
    """Collapse a stretch; ``None`` if it cannot be read here."""
    try:
        with OpenFile(stretch.file) as opened:
            return _collapse(day, opened, stretch)
    except (OSError, ReconcileRefused):
        return None  # The caller reads it again, and raises the error.


def _collapse(day: BrokerDay, opened: OpenFile, stretch: LogStretch) -> _Collapsed:
    collapse, position, count = day.collapse(), stretch.start, 0

    def found() -> Iterator[Found]:
        nonlocal position, count
        data = b""
        for item, position, data in opened.records(stretch.start, stretch.end):  # noqa: B007
            count += 1
            yield item
        position += len(data)  # The end of the last record.

    collapse.take(found())
    return day.take_rows(collapse, count, position), collapse.open_ends()
