"""The extract of a day's log: its tables as Parquet, with their control totals.

The logs are those of one broker or several, in their directories or read from a cluster. The log
in a directory is cut into stretches of one size. Each is collapsed by itself, by Spark's workers or
in several processes if there is much to read, and then they are joined in order. So the same log
gives the same rows in the same order on any machine.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import pyarrow as pa

from txmq.errors import ReconcileRefused, RemoteProtocolError
from txmq.protocol import record as records
from txmq.protocol.bodies import ConsumerOffsets
from txmq.protocol.checked_body import unpack
from txmq.protocol.record import Record
from txmq.protocol.span import Decision
from txmq.reconcile.extract.extraction import ExtractedLog
from txmq.reconcile.extract.table_writer import TableWriter
from txmq.reconcile.log.collapse import Collapse, OpenEnds
from txmq.reconcile.log.files import LogFiles, OpenFile
from txmq.reconcile.log.flows import Flows
from txmq.reconcile.log.log_rows import BrokerLog, GroupOffset, LogRows, arrow_batches
from txmq.reconcile.log.spans import STRETCH_BYTES, LogStretch, find_start, records_from, stretches
from txmq.reconcile.rules import DayWindow, Flow, Money, Rules
from txmq.reconcile.tables import FAILURES, MESSAGES, OFFSETS
from txmq.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["extract_log"]

_SOURCE: Final = "log"
_OFFSETS: Final = "config/offsets.json"
_WORKERS_AT_ONCE: Final = 32
"""The stretches whose rows Spark's workers send together; this process holds them in memory."""
_STRETCHES_A_PROCESS: Final = 4
"""Starting a process takes as long as reading two stretches."""

_CLOCK: Final = SystemClock()


class _Part(NamedTuple):
    """A collapsed stretch."""

    start: int
    """The start of its first span."""
    end: int
    """The end of its last span."""
    records: int
    messages: list[pa.RecordBatch]
    failures: list[pa.RecordBatch]
    open_ends: OpenEnds


_ReadStretches: TypeAlias = Callable[["_Job", list[LogStretch]], Iterator[_Part | None]]
"""Collapses stretches in order; ``None`` stands for one that cannot be read there."""


class _Job(NamedTuple):
    """The inputs that every process needs."""

    flows: tuple[Flow, ...]
    money: Mapping[str, Money]
    window: DayWindow
    broker: int


def extract_log(
    rules: Rules,
    window: DayWindow,
    directory: Path,
    *,
    spark: SparkSession | None = None,
    processes: int | None = None,
    stretch_bytes: int = STRETCH_BYTES,
    clock: Clock = _CLOCK,
) -> ExtractedLog:
    """Write the log's rows of a day below ``directory/log``: messages, failures and offsets.

    The brokers may keep running. The offsets of their groups are read first, so that only messages
    in the extract count as delivered.

    Args:
        rules: They name the brokers, and the messages that count.
        window: The day.
        directory: The target directory.
        spark: Its workers read a cluster of brokers, and directories too if they are a cluster of
            Spark; this machine reads if left out.
        processes: The number of processes here that read directories; one for each processor if
            left out.
        stretch_bytes: The size of a stretch; the order of rows depends on it.
        clock: Stamps the reading.

    Raises:
        ReconcileRefused: A log is damaged, or does not reach back to the beginning of the day, or
            the cluster does not answer.
        ConfigError: The package that decompresses a body is not installed.
    """
    with ExitStack() as stack:
        brokers: tuple[str, ...] = ()
        notes: tuple[str, ...] = ()
        if rules.log.cluster:
            from txmq.reconcile.log.cluster_extract import cluster_logs

            reading = cluster_logs(rules, window, directory, spark, clock)
            plan, logs = stack.enter_context(reading)
            moment_ms, notes = plan.moment_ms, plan.notes
            brokers = tuple(broker.name for broker in plan.brokers)
        else:
            paths = [Path(place) for place in rules.log.places]
            offsets = [_saved_offsets(path) for path in paths]
            opened = [stack.enter_context(LogFiles(path, window.start_ms)) for path in paths]
            moment_ms = clock.wall_ms()
            read = _reader(spark, processes)
            logs = [
                BrokerLog(number, offsets[number], _rows_of(log, job, read, stretch_bytes))
                for number, log in enumerate(opened)
                for job in [_Job(rules.log.flow, rules.money, window, number)]
            ]
        writers = [
            stack.enter_context(TableWriter(table, directory / _SOURCE / table.name))
            for table in (MESSAGES, FAILURES, OFFSETS)
        ]
        ends, count, gone = [0], 0, 0
        for log in logs:
            _write(writers[2], arrow_batches(OFFSETS, log.offsets, log.number))
            for rows in log.rows:
                _write(writers[0], rows.messages)
                _write(writers[1], rows.failures)
                count, gone = count + rows.records, gone + rows.gone
                ends.append(rows.position)
    # The broker keeps no totals, so the control totals are those of the written rows.
    tables = tuple(writer.extracted(_SOURCE) for writer in writers)
    return ExtractedLog(tables, max(ends), moment_ms, count, gone, brokers, notes)


def _write(writer: TableWriter, batches: Iterable[pa.RecordBatch]) -> None:
    for batch in batches:
        writer.write(batch)


def _rows_of(
    log: LogFiles, job: _Job, read: _ReadStretches, stretch_bytes: int
) -> Iterator[LogRows]:
    """The rows of the log in a directory."""
    whole = Collapse(Flows(job.flows, job.money), job.window, partial(_half_of, log))
    todo = list(stretches((file.file for file in log.files), stretch_bytes))
    position = 0
    for part in _parts(log, job, todo, read):
        position = part.end
        whole.join(part.open_ends)
        messages = [*part.messages, *arrow_batches(MESSAGES, whole.messages, job.broker)]
        whole.messages.clear()
        yield LogRows(part.records, position, messages, part.failures)
    whole.finish()
    messages = list(arrow_batches(MESSAGES, whole.messages, job.broker))
    yield LogRows(0, position, messages, gone=whole.gone)


# Stretches


def _parts(
    log: LogFiles, job: _Job, todo: list[LogStretch], read: _ReadStretches
) -> Iterator[_Part]:
    """The collapsed stretches in order; each begins where the previous one ends."""
    at = -1
    opened = {file.file.start: file for file in log.files}
    for stretch, collapsed in zip(todo, read(job, todo), strict=True):
        start = stretch.start if stretch.is_first else at
        part = collapsed
        if part is None or part.start != start:
            # Its file is only here, or was deleted and is open only here, or its first span was a
            # message body that looks like one, which any sender can write.
            part = _collapse(opened[stretch.file.start], stretch, job, start)
        at = part.end
        yield part


def _reader(spark: SparkSession | None, processes: int | None) -> _ReadStretches:
    if spark is not None:
        # Not above: the processes that read here import this module, and need no Spark.
        from txmq.reconcile.spark import has_cluster

        if has_cluster(spark):
            return partial(_read_by_workers, spark=spark)
    return partial(_read_here, processes=processes)


def _read_by_workers(
    job: _Job, todo: list[LogStretch], spark: SparkSession
) -> Iterator[_Part | None]:
    context = spark.sparkContext
    collapse = partial(_try_collapse, job=job)
    at_once = min(2 * context.defaultParallelism, _WORKERS_AT_ONCE)
    for first in range(0, len(todo), at_once):
        some = todo[first : first + at_once]
        yield from context.parallelize(some, len(some)).map(collapse).collect()


def _read_here(job: _Job, todo: list[LogStretch], processes: int | None) -> Iterator[_Part | None]:
    wanted = (os.cpu_count() or 1) if processes is None else processes
    wanted = min(wanted, len(todo) // _STRETCHES_A_PROCESS)
    if wanted <= 1:
        yield from (_try_collapse(stretch, job) for stretch in todo)
        return
    # Spawn and not fork: the caller may have threads, as every user of Spark has.
    pool = ProcessPoolExecutor(wanted, multiprocessing.get_context("spawn"))
    waiting: deque[Future[_Part | None]] = deque()
    try:
        for stretch in todo:
            waiting.append(pool.submit(_try_collapse, stretch, job))
            if len(waiting) > 2 * wanted:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise ReconcileRefused(f"a process that read the log has ended: {error}") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _try_collapse(stretch: LogStretch, job: _Job) -> _Part | None:
    """Collapse a stretch from where it seems to begin; ``None`` if that fails."""
    try:
        with OpenFile(stretch.file) as opened:
            start = None if opened.is_short else find_start(opened, stretch)
            return None if start is None else _collapse(opened, stretch, job, start)
    except (OSError, ReconcileRefused):
        return None  # The caller knows the true start, and detects any damage.


def _collapse(opened: OpenFile, stretch: LogStretch, job: _Job, start: int) -> _Part:
    collapse = Collapse(Flows(job.flows, job.money), job.window)
    at, count = start, 0
    for at, found in records_from(opened, start, stretch.end):  # noqa: B007 - the end of the last span
        collapse.take(item for item, _ in found)
        count += len(found)
    return _Part(
        start,
        at,
        count,
        list(arrow_batches(MESSAGES, collapse.messages, job.broker)),
        list(arrow_batches(FAILURES, collapse.failures, job.broker)),
        collapse.open_ends(),
    )


def _half_of(log: LogFiles, decision: Decision) -> Record | None:
    position = decision.half_position
    data = log.record_at(position)
    if data is None:
        return None
    try:
        record, _ = records.unpack(data)
    except RemoteProtocolError as error:
        raise ReconcileRefused(
            f"the log is damaged at position {position}, which has a half message: {error}"
        ) from error
    if record.position != position:
        raise ReconcileRefused(f"position {position} of the log has no half message")
    return record


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
