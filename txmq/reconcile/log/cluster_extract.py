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
    ClusterPlan,
    QueueRange,
    earlier_half,
    fetch_ranges,
    plan_reading,
)
from txmq.reconcile.log.collapse import Collapse
from txmq.reconcile.log.flows import Flows
from txmq.reconcile.log.log_rows import BrokerLog, LogRows, arrow_batches, number_brokers
from txmq.reconcile.log.pulled_records import decided_records, marked_records, merged_records
from txmq.reconcile.rules import DayWindow, Rules
from txmq.reconcile.tables import FAILURES, MESSAGES
from txmq.runtime.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["cluster_logs"]

RECORDS_A_FILE: Final = 50_000
_RangeFile: TypeAlias = tuple[Path, QueueRange]
_FOLDER: Final = "pulled"
_RECORDS_A_BATCH: Final = 16 * 1024


@contextmanager
def cluster_logs(
    rules: Rules, window: DayWindow, draft: Path, spark: SparkSession | None, clock: Clock
) -> Iterator[tuple[ClusterPlan, list[BrokerLog]]]:
    """Read the logs of a cluster.

    ``draft`` gets a folder of files during the block. The workers of ``spark`` read the cluster,
    and need the draft under this path; without Spark this process reads it.

    Raises:
        ReconcileRefused: The cluster cannot be read.
    """
    plan = plan_reading(rules.log.cluster, rules.log.flow, window, clock)
    numbers = number_brokers(broker.name for broker in plan.brokers)
    folder = draft / _FOLDER
    folder.mkdir(parents=True)
    files = {broker.name: _files(folder, broker) for broker in plan.brokers}
    todo = list(chain.from_iterable(chain.from_iterable(files.values())))
    fetch = partial(fetch_ranges, rules.log.cluster)
    if spark is None or not todo:
        errors = fetch(todo)
    else:
        slices = min(len(todo), 4 * spark.sparkContext.defaultParallelism)
        errors = spark.sparkContext.parallelize(todo, slices).mapPartitions(fetch).collect()
    if errors:
        raise ReconcileRefused(errors[0])
    logs = []
    for broker in plan.brokers:
        number = numbers[broker.name]
        rows = _rows(rules, window, broker, number, files[broker.name])
        logs.append(BrokerLog(number, broker.offsets, rows))
    yield plan, logs
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
    rules: Rules, window: DayWindow, broker: BrokerPlan, number: int, files: list[list[_RangeFile]]
) -> Iterator[LogRows]:
    """The rows of a broker's log in its files."""
    half_of = partial(earlier_half, rules.log.cluster, broker)
    collapse = Collapse(Flows(rules.log.flow, rules.money), window, half_of)

    def done(count: int) -> LogRows:
        if not broker.is_txmq:
            for row in collapse.messages:
                row.decided_by = row.decided_by if row.state == "parked" else None
        messages = list(arrow_batches(MESSAGES, collapse.messages, number))
        failures = list(arrow_batches(FAILURES, collapse.failures, number))
        collapse.messages.clear()
        collapse.failures.clear()
        return LogRows(count, 0, messages, failures, collapse.gone)

    places = [[path for path, _ in queue] for queue in files]
    records = merged_records(places, is_txmq=broker.is_txmq)
    found = (decided_records if broker.is_txmq else marked_records)(records)
    while some := list(islice(found, _RECORDS_A_BATCH)):
        collapse.take(some)
        yield done(0)
    collapse.finish()
    yield done(sum(wanted.end - wanted.start for wanted in broker.ranges))
