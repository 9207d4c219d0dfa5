"""The extract of a day's log: its tables as Parquet, with their control totals.

The log is that of one broker or of several, in their directories or read over the wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from txmq.reconcile.extract.extraction import ExtractedLog
from txmq.reconcile.extract.table_writer import TableWriter
from txmq.reconcile.log.broker_numbers import with_broker
from txmq.reconcile.log.directory_log import directory_log, saved_offsets
from txmq.reconcile.log.files import LogFiles
from txmq.reconcile.log.parts import BrokerLog, CollapseJob, arrow_batches
from txmq.reconcile.log.spans import STRETCH_BYTES
from txmq.reconcile.rules import DayWindow, Rules
from txmq.reconcile.tables import FAILURES, MESSAGES, OFFSETS
from txmq.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["extract_log"]

_SOURCE: Final = "log"

_CLOCK: Final = SystemClock()


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
        spark: Its workers read a cluster; this process does if left out.
        processes: The number of processes that collapse; one for each processor if left out.
        stretch_bytes: The size of a stretch of a directory; the order of rows depends on it.
        clock: Stamps the reading.

    Raises:
        ReconcileRefused: The log is damaged, does not reach back to the beginning of the day, or
            cannot be read.
        ConfigError: The package that decompresses a body is not installed.
    """
    job = CollapseJob(rules.log.flow, window)
    notes: tuple[str, ...] = ()
    with ExitStack() as stack:
        if rules.log.cluster:
            from txmq.reconcile.log.cluster_extract import ClusterLogs, reading_folder

            folder = stack.enter_context(reading_folder(directory.parent))
            cluster = ClusterLogs(rules, job, folder, clock)
            cluster.fetch(spark)
            logs, moment_ms = cluster.logs(processes), cluster.plan.moment_ms
            notes = cluster.plan.notes
        else:
            brokers = [Path(place) for place in rules.log.places]
            offsets = [saved_offsets(broker) for broker in brokers]
            opened = [stack.enter_context(LogFiles(broker, window.start_ms)) for broker in brokers]
            moment_ms = clock.wall_ms()
            logs = (
                directory_log(number, offsets[number], log, job, processes, stretch_bytes)
                for number, log in enumerate(opened)
            )
        return _write_logs(logs, directory, moment_ms, notes)


def _write_logs(
    logs: Iterator[BrokerLog], directory: Path, moment_ms: int, notes: tuple[str, ...]
) -> ExtractedLog:
    ends: list[int] = []
    count = gone = 0
    with ExitStack() as stack:
        writers = [
            stack.enter_context(TableWriter(table, directory / _SOURCE / table.name))
            for table in (MESSAGES, FAILURES, OFFSETS)
        ]
        messages, failures, offsets = writers
        for log in logs:
            whole, number, end = log.whole, log.number, 0
            _write(offsets, arrow_batches(OFFSETS, log.offsets), number)
            for part in log.parts:
                count, end = count + part.records, part.end
                _write(messages, part.messages, number)
                _write(failures, part.failures, number)
                whole.join(part.open_ends, log.half_at)
                _write(messages, arrow_batches(MESSAGES, whole.messages), number)
                whole.messages.clear()
            whole.finish()
            _write(messages, arrow_batches(MESSAGES, whole.messages), number)
            gone += whole.gone
            ends.append(end)
    # The broker keeps no totals, so the control totals are those of the written rows.
    tables = tuple(writer.extracted(_SOURCE) for writer in writers)
    return ExtractedLog(tables, max(ends, default=0), moment_ms, count, gone, notes)


def _write(writer: TableWriter, batches: Iterable[pa.RecordBatch], number: int) -> None:
    for batch in batches:
        writer.write(with_broker(batch, number))
