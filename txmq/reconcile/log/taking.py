"""The log of a day is taken: its tables are written as Parquet, with their control totals.

The log is cut into stretches of one size, whoever reads them: each is collapsed by itself, in a
process of its own where there is much to read, and then they are joined in order. So the same log
gives the same rows in the same order on any machine.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from txmq.errors import ReconcileRefused, RemoteProtocolError
from txmq.protocol import record as records
from txmq.protocol.bodies import ConsumerOffsets
from txmq.protocol.checked_body import unpack
from txmq.protocol.record import Record
from txmq.reconcile.extract.manifest import Extracted
from txmq.reconcile.extract.writing import TableWriter, schema_of
from txmq.reconcile.log.collapse import Collapse, Loose
from txmq.reconcile.log.files import LogFiles, OpenFile
from txmq.reconcile.log.flows import Flows
from txmq.reconcile.log.spans import STRETCH_BYTES, Stretch, found_from, start_of, stretches
from txmq.reconcile.rules import Flow, Rules, Window
from txmq.reconcile.tables import FAILURES, MESSAGES, OFFSETS, Table
from txmq.runtime.clock import Clock, SystemClock

__all__ = ["TakenLog", "extract_log"]

_SOURCE: Final = "log"
_OFFSETS: Final = "config/offsets.json"
_ROWS_A_BATCH: Final = 64 * 1024
_STRETCHES_A_PROCESS: Final = 4
"""Starting a process takes as long as reading two stretches."""

_CLOCK: Final = SystemClock()


class TakenLog(NamedTuple):
    """What was taken of a log."""

    tables: tuple[Extracted, ...]
    """Messages, failures and offsets."""
    position: int
    """The log was read up to here: the watermark."""
    moment_ms: int
    """When that was the end of the log."""
    records: int
    """How many were read."""
    gone: int
    """Decisions on half messages whose file was deleted; they have no row."""


class _Part(NamedTuple):
    """What became of a stretch."""

    start: int
    """Where its first span begins."""
    end: int
    """Where its last span ends."""
    records: int
    messages: list[pa.RecordBatch]
    failures: list[pa.RecordBatch]
    loose: Loose


class _Job(NamedTuple):
    """What all processes are told."""

    flows: tuple[Flow, ...]
    window: Window


def extract_log(
    rules: Rules,
    window: Window,
    directory: Path,
    *,
    processes: int | None = None,
    stretch_bytes: int = STRETCH_BYTES,
    clock: Clock = _CLOCK,
) -> TakenLog:
    """Write what the log says of a day below ``directory/log``: messages, failures and offsets.

    The broker may run meanwhile. How far its groups have come is read first, so that nothing counts
    as delivered which was not yet stored in what is read.

    Args:
        rules: They say where the broker's directory is, and which messages count.
        window: The day.
        directory: Where to write.
        processes: How many read at once; as many as there are processors, if left out.
        stretch_bytes: How much of the log is collapsed by itself; rows come in another order where
            it is another number.
        clock: Tells when the log was read.

    Raises:
        ReconcileRefused: The log is damaged, or does not reach back to the beginning of the day.
        ConfigError: A package is not installed without which bodies cannot be opened.
    """
    broker = Path(rules.log.directory)
    job = _Job(rules.log.flow, window)
    whole = Collapse(Flows(rules.log.flow), window)
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

        def half_at(at: int) -> Record | None:
            return _half_at(log, at)

        cut = list(stretches((file.file for file in log.files), stretch_bytes))
        for part in _parts(log, job, cut, processes):
            count, position = count + part.records, part.end
            _write(messages, part.messages)
            _write(failures, part.failures)
            whole.join(part.loose, half_at)
            _write(messages, _batches(MESSAGES, whole.messages))
            whole.messages.clear()
        whole.finish()
        _write(messages, _batches(MESSAGES, whole.messages))
    # Nobody else counts a log; what was written of it is what it says.
    tables = tuple(writer.extracted(_SOURCE) for writer in writers)
    return TakenLog(tables, position, moment_ms, count, whole.gone)


# Stretches


def _parts(log: LogFiles, job: _Job, todo: list[Stretch], processes: int | None) -> Iterator[_Part]:
    """What became of each stretch, in order; each begins where the one before ends."""
    at = -1
    opened = {file.file.start: file for file in log.files}
    for stretch, part in zip(todo, _taken(log, job, todo, processes), strict=True):
        start = stretch.start if stretch.is_first else at
        if part is None or part.start != start:
            # Its file was deleted meanwhile, and is open only here; or what looks like its first
            # span is none. Anybody may send such a message.
            whole = _collapsed(opened[stretch.file.start], stretch, job, start)
        else:
            whole = part
        at = whole.end
        yield whole


def _taken(
    log: LogFiles, job: _Job, todo: list[Stretch], processes: int | None
) -> Iterator[_Part | None]:
    wanted = (os.cpu_count() or 1) if processes is None else processes
    wanted = min(wanted, len(todo) // _STRETCHES_A_PROCESS)
    if wanted <= 1:
        opened = {file.file.start: file for file in log.files}
        yield from (_guessed(opened[stretch.file.start], stretch, job) for stretch in todo)
        return
    # Not by fork: whoever calls may have threads, as everybody has who uses Spark.
    pool = ProcessPoolExecutor(wanted, multiprocessing.get_context("spawn"))
    waiting: deque[Future[_Part | None]] = deque()
    try:
        for stretch in todo:
            waiting.append(pool.submit(_collapsed_elsewhere, stretch, job))
            if len(waiting) > 2 * wanted:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise ReconcileRefused(f"a process that read the log has ended: {error}") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _collapsed_elsewhere(stretch: Stretch, job: _Job) -> _Part | None:
    try:
        with OpenFile(stretch.file) as opened:
            return _guessed(opened, stretch, job)
    except FileNotFoundError:
        return None


def _guessed(opened: OpenFile, stretch: Stretch, job: _Job) -> _Part | None:
    """What becomes of a stretch if it begins where it seems to; none where that cannot be."""
    start = start_of(opened, stretch)
    try:
        return None if start is None else _collapsed(opened, stretch, job, start)
    except ReconcileRefused:
        return None  # Whoever knows where it begins will see whether the log is damaged.


def _collapsed(opened: OpenFile, stretch: Stretch, job: _Job, start: int) -> _Part:
    collapse = Collapse(Flows(job.flows), job.window)
    at, count = start, 0
    for at, found in found_from(opened, start, stretch.end):  # noqa: B007 - it is where they end
        collapse.take(item for item, _ in found)
        count += len(found)
    return _Part(
        start,
        at,
        count,
        list(_batches(MESSAGES, collapse.messages)),
        list(_batches(FAILURES, collapse.failures)),
        collapse.loose(),
    )


def _half_at(log: LogFiles, position: int) -> Record | None:
    data = log.record_at(position)
    if data is None:
        return None
    try:
        record, _ = records.unpack(data)
    except RemoteProtocolError as error:
        raise ReconcileRefused(
            f"the log is damaged at position {position}, where a half message lies: {error}"
        ) from error
    if record.position != position:
        raise ReconcileRefused(f"no half message lies at position {position} of the log")
    return record


# Rows


def _write(writer: TableWriter, batches: Iterable[pa.RecordBatch]) -> None:
    for batch in batches:
        writer.write(batch)


def _batches(table: Table, rows: list[Any]) -> Iterator[pa.RecordBatch]:
    schema = schema_of(table)
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
    """How far groups have come, as the broker last saved it.

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
