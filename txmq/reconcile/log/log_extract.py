"""The extract of a day's log: its tables as Parquet, with their control totals.

The logs are those of one broker or several, in their directories or read from a cluster.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from txmq.reconcile.extract.manifest import ExtractedSource
from txmq.reconcile.extract.table_writer import TableWriter
from txmq.reconcile.log.directory_log import read_directories
from txmq.reconcile.rules import DayWindow, Rules
from txmq.reconcile.tables import FAILURES, MESSAGES, OFFSETS
from txmq.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["extract_log"]

_SOURCE: Final = "log"


def extract_log(
    rules: Rules,
    window: DayWindow,
    directory: Path,
    *,
    spark: SparkSession | None = None,
    clock: Clock | None = None,
) -> ExtractedSource:
    """Write the log's rows of a day below ``directory/log``: messages, failures and offsets.

    The brokers may keep running. The offsets of their groups are read first, so that only messages
    in the extract count as delivered.

    Args:
        rules: They name the brokers, and the messages that count.
        window: The day.
        directory: The target directory.
        spark: Its workers read a cluster of brokers, and directories too if they are a cluster of
            Spark; this machine reads if left out.
        clock: This machine's clock.

    Raises:
        ReconcileRefused: A log is damaged, or does not reach back to the beginning of the day, or
            the cluster does not answer.
        ConfigError: The package that decompresses a body is not installed.
    """
    clock = clock or SystemClock()
    with ExitStack() as stack:
        if rules.log.cluster:
            # Only this one needs the client.
            from txmq.reconcile.log.cluster_log import read_cluster

            opened = read_cluster(rules, window, directory, spark, clock)
        else:
            opened = read_directories(rules, window, spark, clock)
        reading = stack.enter_context(opened)
        messages, failures, offsets = writers = [
            stack.enter_context(TableWriter(table, directory / _SOURCE))
            for table in (MESSAGES, FAILURES, OFFSETS)
        ]
        for batch in reading.offsets:
            offsets.write(batch)
        position = 0
        for rows in reading.rows:
            messages.write(rows.messages)
            failures.write(rows.failures)
            position = max(position, rows.position)
    # The broker keeps no totals, so the control totals are those of the written rows.
    tables = tuple(writer.extracted() for writer in writers)
    snapshot, moment = ", ".join(reading.brokers), reading.moment_ms
    return ExtractedSource(
        _SOURCE, "log", snapshot, moment, moment, tables, position, reading.notes
    )
