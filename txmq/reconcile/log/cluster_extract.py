"""The logs of a cluster for a day: planned, read into files, and collapsed from these.

The files lie beside the day's extracts until the extract is complete. A run that was killed leaves
them. The next run continues if the plan still holds: it was made after the day ended, for the same
rules. Otherwise it starts anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from txmq.errors import ReconcileRefused
from txmq.reconcile.log.cluster_log import (
    BrokerPlan,
    ClusterPlan,
    RangeFile,
    earlier_half,
    fetch_ranges,
    plan_reading,
)
from txmq.reconcile.log.collapse import Collapse
from txmq.reconcile.log.flows import Flows
from txmq.reconcile.log.log_rows import BrokerLog, LogRows, arrow_batches, number_brokers
from txmq.reconcile.log.mark_collapse import MarkCollapse
from txmq.reconcile.log.pulled_records import log_record, merged_records
from txmq.reconcile.parquet_files import sync
from txmq.reconcile.rules import DayWindow, Rules
from txmq.reconcile.tables import FAILURES, MESSAGES
from txmq.runtime.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["cluster_logs"]

RECORDS_A_FILE: Final = 50_000
_FOLDER: Final = ".cluster-log"
_PLAN: Final = "plan.json"
_RECORDS_A_BATCH: Final = 16 * 1024


@contextmanager
def cluster_logs(
    rules: Rules, window: DayWindow, home: Path, spark: SparkSession | None, clock: Clock
) -> Iterator[tuple[ClusterPlan, list[BrokerLog]]]:
    """Read the logs of a cluster; another run of the day waits until this one has ended.

    Args:
        rules: They name the cluster, and the messages that count.
        window: The day.
        home: For a folder of files, which workers of Spark need under the same path.
        spark: Its workers read; this process does if left out.
        clock: Stamps the plan.

    Raises:
        ReconcileRefused: The cluster cannot be read.
    """
    folder = home / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # Some file systems have no locks.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        plan = _plan(rules, window, folder, clock)
        files = [_files(folder, *broker) for broker in enumerate(plan.brokers)]
        _fetch(rules.log.cluster, chain.from_iterable(chain.from_iterable(files)), spark)
        numbers = number_brokers(broker.name for broker in plan.brokers)
        yield (
            plan,
            [
                BrokerLog(number, broker.offsets, _rows(rules, window, broker, number, queues))
                for broker, queues in zip(plan.brokers, files, strict=True)
                for number in [numbers[broker.name]]
            ],
        )
        _clear(folder)
    finally:
        os.close(descriptor)


def _plan(rules: Rules, window: DayWindow, folder: Path, clock: Clock) -> ClusterPlan:
    """The plan of a run that was killed, or a new one."""
    inputs = (rules.log.cluster, rules.reading_digest, window)
    key, path = hashlib.sha256(msgspec.json.encode(inputs)).hexdigest(), folder / _PLAN
    with suppress(OSError, msgspec.DecodeError):
        saved = msgspec.json.decode(path.read_bytes(), type=ClusterPlan)
        if saved.key == key and saved.moment_ms >= window.end_ms:
            return saved
    _clear(folder)
    plan = plan_reading(rules.log.cluster, rules.log.flow, window, key, clock)
    draft = path.with_name(f".{_PLAN}")
    draft.write_bytes(msgspec.json.encode(plan))
    sync(draft)
    draft.rename(path)
    return plan


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _files(folder: Path, place: int, broker: BrokerPlan) -> list[list[RangeFile]]:
    """The files of a broker by queue, in the order of offsets."""
    return [
        [
            (
                folder / f"{place}-{index}-{start}.records",
                replace(queue, start=start, end=min(start + RECORDS_A_FILE, queue.end)),
            )
            for start in range(queue.start, queue.end, RECORDS_A_FILE)
        ]
        for index, queue in enumerate(broker.ranges)
    ]


def _fetch(names: str, files: Iterable[RangeFile], spark: SparkSession | None) -> None:
    """Read the files that no earlier run has completed."""
    todo, work = [file for file in files if not file[0].exists()], partial(fetch_ranges, names)
    if spark is None or not todo:
        errors = work(todo)
    else:
        slices = min(len(todo), 4 * spark.sparkContext.defaultParallelism)
        errors = spark.sparkContext.parallelize(todo, slices).mapPartitions(work).collect()
    if errors:
        raise ReconcileRefused(errors[0])


def _rows(
    rules: Rules, window: DayWindow, broker: BrokerPlan, number: int, files: list[list[RangeFile]]
) -> Iterator[LogRows]:
    """The rows of a broker's log in its files."""
    collapse = (Collapse if broker.is_txmq else MarkCollapse)(Flows(rules.log.flow), window)

    def done(records: int, position: int) -> LogRows:
        messages = list(arrow_batches(MESSAGES, collapse.messages, number))
        failures = list(arrow_batches(FAILURES, collapse.failures, number))
        collapse.messages.clear()
        collapse.failures.clear()
        return LogRows(records, position, messages, failures, collapse.gone)

    position = 0
    places = [[path for path, _ in queue] for queue in files]
    records = merged_records(places, is_txmq=broker.is_txmq)
    while some := list(islice(records, _RECORDS_A_BATCH)):
        position = some[-1].position
        collapse.take(map(log_record, some) if broker.is_txmq else some)
        yield done(len(some), position)
    collapse.join(collapse.open_ends(), partial(earlier_half, rules.log.cluster, broker))
    collapse.finish()
    yield done(0, position)
