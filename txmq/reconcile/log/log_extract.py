"""The extract of a day's log: its tables as Parquet, with their control totals.

The log is cut into stretches of one size. Each is collapsed by itself, in several processes if
there is much to read, and then they are joined in order. So the same log gives the same rows in
the same order on any machine.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from txmq.errors import ReconcileRefused, RemoteProtocolError
from txmq.protocol import record as records
from txmq.protocol.bodies import ConsumerOffsets
from txmq.protocol.checked_body import unpack
from txmq.protocol.record import Record
from txmq.reconcile.extract.extraction import ExtractedLog
from txmq.reconcile.extract.table_writer import TableWriter, arrow_schema
from txmq.reconcile.log.collapse import Collapse, OpenEnds
from txmq.reconcile.log.files import LogFiles, OpenFile
from txmq.reconcile.log.flows import Flows
from txmq.reconcile.log.spans import STRETCH_BYTES, LogStretch, find_start, records_from, stretches
from txmq.reconcile.rules import DayWindow, Flow, Money, Rules
from txmq.reconcile.tables import FAILURES, MESSAGES, OFFSETS, TableSchema
from txmq.runtime.clock import Clock, SystemClock

__all__ = ["extract_log"]

_SOURCE: Final = "log"
_OFFSETS: Final = "config/offsets.json"
_ROWS_A_BATCH: Final = 64 * 1024
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


class _Job(NamedTuple):
    """The inputs that every process needs."""

    flows: tuple[Flow, ...]
    money: Mapping[str, Money]
    window: DayWindow


def extract_log(
    rules: Rules,
    window: DayWindow,
    directory: Path,
    *,
    processes: int | None = None,
    stretch_bytes: int = STRETCH_BYTES,
    clock: Clock = _CLOCK,
) -> ExtractedLog:
    """Write the log's rows of a day below ``directory/log``: messages, failures and offsets.

    The broker may keep running. The offsets of its groups are read first, so that only messages
    in the extract count as delivered.

    Args:
        rules: They name the broker's directory, and the messages that count.
        window: The day.
        directory: The target directory.
        processes: The number of processes that read; one for each processor if left out.
        stretch_bytes: The size of a stretch; the order of rows depends on it.
        clock: Stamps the reading.

    Raises:
        ReconcileRefused: The log is damaged, or does not reach back to the beginning of the day.
        ConfigError: The package that decompresses a body is not installed.
    """
    broker = Path(rules.log.directory)
    job = _Job(rules.log.flow, rules.money, window)
    whole = Collapse(Flows(rules.log.flow, rules.money), window)
    position = count = 0
    with ExitStack() as stack:
        writers = [
            stack.enter_context(TableWriter(table, directory / _SOURCE / table.name))
            for table in (MESSAGES, FAILURES, OFFSETS)
        ]
        messages, failures, offsets = writers
        _write(offsets, _offsets_batches(broker))
        log = stack.enter_context(LogFiles(broker, window.start_ms))
        moment_ms = clock.wall_ms()
        todo = list(stretches((file.file for file in log.files), stretch_bytes))
        for part in _parts(log, job, todo, processes):
            count, position = count + part.records, part.end
            _write(messages, part.messages)
            _write(failures, part.failures)
            whole.join(part.open_ends, partial(_half_at, log))
            _write(messages, _batches(MESSAGES, whole.messages))
            whole.messages.clear()
        whole.finish()
        _write(messages, _batches(MESSAGES, whole.messages))
    # The broker keeps no totals, so the control totals are those of the written rows.
    tables = tuple(writer.extracted(_SOURCE) for writer in writers)
    return ExtractedLog(tables, position, moment_ms, count, whole.gone)


# Stretches


def _parts(
    log: LogFiles, job: _Job, todo: list[LogStretch], processes: int | None
) -> Iterator[_Part]:
    """The collapsed stretches in order; each begins where the previous one ends."""
    at = -1
    opened = {file.file.start: file for file in log.files}
    for stretch, read in zip(todo, _read_stretches(log, job, todo, processes), strict=True):
        start = stretch.start if stretch.is_first else at
        part = read
        if part is None or part.start != start:
            # Its file was deleted and is open only here, or its first span was a message body
            # that looks like one, which any sender can write.
            part = _collapse(opened[stretch.file.start], stretch, job, start)
        at = part.end
        yield part


def _read_stretches(
    log: LogFiles, job: _Job, todo: list[LogStretch], processes: int | None
) -> Iterator[_Part | None]:
    wanted = (os.cpu_count() or 1) if processes is None else processes
    wanted = min(wanted, len(todo) // _STRETCHES_A_PROCESS)
    if wanted <= 1:
        opened = {file.file.start: file for file in log.files}
        yield from (_try_collapse(opened[stretch.file.start], stretch, job) for stretch in todo)
        return
    # Spawn and not fork: the caller may have threads, as every user of Spark has.
    pool = ProcessPoolExecutor(wanted, multiprocessing.get_context("spawn"))
    waiting: deque[Future[_Part | None]] = deque()
    try:
        for stretch in todo:
            waiting.append(pool.submit(_collapse_in_process, stretch, job))
            if len(waiting) > 2 * wanted:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise ReconcileRefused(f"a process that read the log has ended: {error}") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _collapse_in_process(stretch: LogStretch, job: _Job) -> _Part | None:
    try:
        with OpenFile(stretch.file) as opened:
            return _try_collapse(opened, stretch, job)
    except FileNotFoundError:
        return None


def _try_collapse(opened: OpenFile, stretch: LogStretch, job: _Job) -> _Part | None:
    """Collapse a stretch from where it seems to begin; ``None`` if that fails."""
    start = find_start(opened, stretch)
    try:
        return None if start is None else _collapse(opened, stretch, job, start)
    except ReconcileRefused:
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
        list(_batches(MESSAGES, collapse.messages)),
        list(_batches(FAILURES, collapse.failures)),
        collapse.open_ends(),
    )


def _half_at(log: LogFiles, position: int) -> Record | None:
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


# Rows


def _write(writer: TableWriter, batches: Iterable[pa.RecordBatch]) -> None:
    for batch in batches:
        writer.write(batch)


def _batches(table: TableSchema, rows: list[Any]) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(table)
    for first in range(0, len(rows), _ROWS_A_BATCH):
        some = rows[first : first + _ROWS_A_BATCH]
        columns = [
            pa.array(map(attrgetter(field.name), some), field.type, size=len(some))
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


class _Offset(NamedTuple):
    group: str
    topic: str
    queue: int
    next_offset: int


def _offsets_batches(broker: Path) -> Iterator[pa.RecordBatch]:
    """The offsets of the groups, as the broker last saved them.

    Raises:
        ReconcileRefused: Its file cannot be read.
    """
    path = broker / _OFFSETS
    try:
        saved = ConsumerOffsets.read(unpack(path.name, path.read_bytes()).text)
    except FileNotFoundError:
        return
    except (OSError, RemoteProtocolError) as error:
        raise ReconcileRefused(f"{path} cannot be read: {error}") from error
    rows = []
    for name, queues in saved.offset_table.items():
        topic, _, group = name.partition("@")
        rows += [_Offset(group, topic, queue, offset) for queue, offset in queues.items()]
    yield from _batches(OFFSETS, sorted(rows))
