"""The logs in the directories of brokers.

A log is cut into stretches of one size. Each is collapsed by itself, by Spark's workers or in
several processes if there is much to read, and then they are joined in order. So the same log
gives the same rows in the same order on any machine.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from txmq.errors import ReconcileRefused, RemoteProtocolError
from txmq.protocol.bodies import ConsumerOffsets
from txmq.protocol.checked_body import unpack
from txmq.protocol.span import Found
from txmq.reconcile.log.collapse import OpenEnds
from txmq.reconcile.log.files import LogFiles, OpenFile, open_log
from txmq.reconcile.log.log_rows import BrokerDay, GroupOffset, LogReading, LogRows
from txmq.reconcile.log.spans import LogStretch, records_from, stretches
from txmq.reconcile.rules import DayWindow, Rules
from txmq.runtime.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["read_directories"]

_OFFSETS: Final = "config/offsets.json"
_WORKERS_AT_ONCE: Final = 32
"""The stretches whose rows Spark's workers send together; this process holds them in memory."""
_STRETCHES_A_PROCESS: Final = 4
"""Starting a process takes as long as reading two stretches."""

_Collapsed: TypeAlias = tuple[LogRows, OpenEnds]
_Collapse: TypeAlias = Callable[[LogStretch], _Collapsed | None]
_CollapseAll: TypeAlias = Callable[
    [_Collapse, Iterator[LogStretch]], Iterator[tuple[LogStretch, _Collapsed | None]]
]
"""Collapses stretches in order; ``None`` stands for one that cannot be read there."""


@contextmanager
def read_directories(
    rules: Rules,
    window: DayWindow,
    spark: SparkSession | None,
    processes: int | None,
    stretch_bytes: int,
    clock: Clock,
) -> Iterator[LogReading]:
    """Open the logs in directories; see :func:`txmq.reconcile.log.log_extract.extract_log`.

    Raises:
        ReconcileRefused: A log is missing, or does not reach back to the beginning of the day.
    """
    paths = [Path(place) for place in rules.log.places]
    days = [BrokerDay(number, rules.log.flow, rules.money, window) for number in range(len(paths))]
    offsets = [day.offsets(_saved_offsets(path)) for day, path in zip(days, paths, strict=True)]
    with ExitStack() as stack:
        logs = [stack.enter_context(open_log(path, window.start_ms)) for path in paths]
        size = sum(file.file.end - file.file.start for log in logs for file in log.opened)
        most = size // (stretch_bytes * _STRETCHES_A_PROCESS)
        collapse_all = _collapse_all(spark, min(processes or os.cpu_count() or 1, most))
        rows = chain.from_iterable(
            _rows(log, day, stretch_bytes, collapse_all)
            for log, day in zip(logs, days, strict=True)
        )
        yield LogReading(clock.wall_ms(), offsets, rows)


def _rows(
    log: LogFiles, day: BrokerDay, stretch_bytes: int, collapse_all: _CollapseAll
) -> Iterator[LogRows]:
    whole = day.collapse(log.half_of)
    opened = {file.file: file for file in log.opened}
    todo = chain.from_iterable(stretches(file, stretch_bytes) for file in log.opened)
    for stretch, collapsed in collapse_all(partial(_try_collapse, day), todo):
        # Its file may be only here, or was deleted and is open only here.
        rows, ends = collapsed or _collapse(day, opened[stretch.file], stretch)
        yield rows
        whole.join(ends)
        yield day.take_rows(whole)
    whole.finish()
    yield day.take_rows(whole)


def _collapse_all(spark: SparkSession | None, processes: int) -> _CollapseAll:
    if spark is not None:
        # Not above: the processes that read here import this module, and need no Spark.
        from txmq.reconcile.spark import has_cluster

        if has_cluster(spark):
            return partial(_collapse_by_workers, spark)
    return partial(_collapse_here, processes)


def _collapse_by_workers(
    spark: SparkSession, collapse: _Collapse, todo: Iterator[LogStretch]
) -> Iterator[tuple[LogStretch, _Collapsed | None]]:
    context = spark.sparkContext
    at_once = min(2 * context.defaultParallelism, _WORKERS_AT_ONCE)
    while some := list(islice(todo, at_once)):
        found = context.parallelize(some, len(some)).map(collapse).collect()
        yield from zip(some, found, strict=True)


def _collapse_here(
    processes: int, collapse: _Collapse, todo: Iterator[LogStretch]
) -> Iterator[tuple[LogStretch, _Collapsed | None]]:
    if processes <= 1:
        yield from ((stretch, None) for stretch in todo)
        return
    # Spawn and not fork: the caller may have threads, as every user of Spark has.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    waiting: deque[tuple[LogStretch, Future[_Collapsed | None]]] = deque()
    try:
        for stretch in todo:
            waiting.append((stretch, pool.submit(collapse, stretch)))
            if len(waiting) > 2 * processes:
                first, future = waiting.popleft()
                yield first, future.result()
        for stretch, future in waiting:
            yield stretch, future.result()
    except BrokenProcessPool as error:
        raise ReconcileRefused(f"a process that read the log has ended: {error}") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _try_collapse(day: BrokerDay, stretch: LogStretch) -> _Collapsed | None:
    """Collapse a stretch; ``None`` if it cannot be read here."""
    try:
        with OpenFile(stretch.file) as opened:
            return None if opened.is_short else _collapse(day, opened, stretch)
    except (OSError, ReconcileRefused):
        return None  # The caller reads it again, and raises the error.


def _collapse(day: BrokerDay, opened: OpenFile, stretch: LogStretch) -> _Collapsed:
    collapse, position, count = day.collapse(), stretch.start, 0

    def found() -> Iterator[Found]:
        nonlocal position, count
        for item, start, data in records_from(opened, stretch.start, stretch.end):
            yield item
            position, count = start + len(data), count + 1

    collapse.take(found())
    return day.take_rows(collapse, count, position), collapse.open_ends()


def _saved_offsets(broker: Path) -> list[GroupOffset]:
    """The offsets of the groups, as the broker last saved them.

    Raises:
        ReconcileRefused: Its file cannot be read.
    """
    path = broker / _OFFSETS
    try:
        saved = ConsumerOffsets.read(unpack(path.name, path.read_bytes()).text)
    except FileNotFoundError:
        return []
    except (OSError, RemoteProtocolError) as error:
        raise ReconcileRefused(f"{path} cannot be read: {error}") from error
    rows = []
    for name, queues in saved.offset_table.items():
        topic, _, group = name.partition("@")
        rows += [GroupOffset(group, topic, queue, offset) for queue, offset in queues.items()]
    return sorted(rows)
