"""The logs of a cluster for a day: planned, read into files, and collapsed from these.

The files lie in the draft of the extract, so a run that was killed leaves nothing to continue with,
and nothing to mix up.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from txmq.errors import ReconcileRefused
from txmq.reconcile.log.cluster_log import (
    BrokerPlan,
    QueueRange,
    earlier_half,
    fetch_ranges,
    plan_reading,
)
from txmq.reconcile.log.log_rows import BrokerDay, LogReading, LogRows, number_brokers
from txmq.reconcile.log.pulled_records import decided_records, marked_records, merged_records
from txmq.reconcile.rules import DayWindow, Rules
from txmq.runtime.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["read_cluster"]

RECORDS_A_FILE: Final = 50_000
_RangeFile: TypeAlias = tuple[Path, QueueRange]
_FOLDER: Final = "pulled"
_RECORDS_A_BATCH: Final = 16 * 1024


@contextmanager
def read_cluster(
    rules: Rules, window: DayWindow, draft: Path, spark: SparkSession | None, clock: Clock
) -> Iterator[LogReading]:
    """Read the logs of a cluster into files.

    ``draft`` gets a folder of files during the block. The workers of ``spark`` read the cluster,
    and need the draft under this path; without Spark this process reads it.

    Raises:
        ReconcileRefused: The cluster cannot be read.
    """
    names, flows = rules.log.cluster, rules.log.flow
    plan = plan_reading(names, flows, window, clock)
    folder = draft / _FOLDER
    folder.mkdir(parents=True)
    files = [_files(folder, broker) for broker in plan.brokers]
    todo = list(chain.from_iterable(chain.from_iterable(files)))
    fetch = partial(fetch_ranges, names)
    if spark is None or not todo:
        errors = fetch(todo)
    else:
        slices = min(len(todo), 4 * spark.sparkContext.defaultParallelism)
        errors = spark.sparkContext.parallelize(todo, slices).mapPartitions(fetch).collect()
    if errors:
        raise ReconcileRefused(errors[0])
    numbers = number_brokers(broker.name for broker in plan.brokers)
    days = [BrokerDay(numbers[broker.name], flows, rules.money, window) for broker in plan.brokers]
    offsets = [day.offsets(broker.offsets) for day, broker in zip(days, plan.brokers, strict=True)]
    rows = chain.from_iterable(map(partial(_rows, names), days, plan.brokers, files))
    yield LogReading(plan.moment_ms, offsets, rows, tuple(numbers), plan.notes)
    shutil.rmtree(folder)


def _files(folder: Path, broker: BrokerPlan) -> list[list[_RangeFile]]:
    """The files of a broker by queue, in the order of offsets."""
    return [
        [
            (
                folder / f"{broker.name.encode().hex()}-{index}-{start}",
                QueueRange(queue, start, min(start + RECORDS_A_FILE, end)),
            )
            for start in range(first, end, RECORDS_A_FILE)
        ]
        for index, (queue, first, end) in enumerate(broker.ranges)
    ]


def _rows(
    names: str, day: BrokerDay, broker: BrokerPlan, files: list[list[_RangeFile]]
) -> Iterator[LogRows]:
    """The rows of a broker's log in its files."""
    collapse = day.collapse(partial(earlier_half, names, broker))

    def done(count: int) -> LogRows:
        if not broker.is_txmq:
            for row in collapse.messages:
                row.decided_by = row.decided_by if row.state == "parked" else None
        return day.take_rows(collapse, count)

    places = [[path for path, _ in queue] for queue in files]
    records = merged_records(places, is_txmq=broker.is_txmq)
    found = (decided_records if broker.is_txmq else marked_records)(records)
    while some := list(islice(found, _RECORDS_A_BATCH)):
        collapse.take(some)
        yield done(0)
    collapse.finish()
    yield done(sum(wanted.end - wanted.start for wanted in broker.ranges))
