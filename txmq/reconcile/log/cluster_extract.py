"""The logs of a cluster for a day: planned, read into files, and collapsed from these.

The files lie beside the day's extracts until the extract is complete. A run that was killed leaves
them, and the next one continues if the plan still holds: it was made after the day ended, for the
same rules. Otherwise the next run starts anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from txmq.errors import ReconcileRefused, TxmqError
from txmq.protocol.span import Found
from txmq.reconcile.log.broker_numbers import number_brokers
from txmq.reconcile.log.cluster_log import (
    BrokerPlan,
    ClusterPlan,
    EarlierHalves,
    RangeFile,
    fetch_ranges,
    plan_reading,
)
from txmq.reconcile.log.collapse import Collapse
from txmq.reconcile.log.flows import Flows
from txmq.reconcile.log.mark_collapse import MarkCollapse
from txmq.reconcile.log.parts import BrokerLog, CollapseJob, LogPart, collapsed_part, in_processes
from txmq.reconcile.log.pulled_records import log_record, merged_records
from txmq.reconcile.parquet_files import sync
from txmq.reconcile.rules import Rules
from txmq.runtime.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ClusterLogs", "reading_folder"]

_FOLDER: Final = ".cluster-log"
_PLAN: Final = "plan.json"


class _SavedPlan(msgspec.Struct, frozen=True):
    """A plan, and the inputs that it was made for."""

    key: str
    plan: ClusterPlan


@contextmanager
def reading_folder(home: Path) -> Iterator[Path]:
    """The folder for the files of a day; another run of the day waits until this one has ended.

    Its files are removed at the end of the block unless an error ends it.
    """
    folder = home / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # Some file systems have no locks.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
        _clear(folder)
    finally:
        os.close(descriptor)


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


class ClusterLogs:
    """The logs of a cluster's brokers for a day, read into files.

    Args:
        rules: They name the cluster, and the messages that count.
        job: The flows and the day.
        folder: For the files; workers of Spark need it under the same path.
        clock: Stamps the plan.
    """

    def __init__(self, rules: Rules, job: CollapseJob, folder: Path, clock: Clock) -> None:
        self._names = rules.log.cluster
        self._job = job
        self._folder = folder
        self.plan = self._resume(rules, job, clock)

    def _resume(self, rules: Rules, job: CollapseJob, clock: Clock) -> ClusterPlan:
        parts = (self._names, rules.reading_digest, job.window)
        key = hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
        path = self._folder / _PLAN
        with suppress(OSError, msgspec.DecodeError):
            saved = msgspec.json.decode(path.read_bytes(), type=_SavedPlan)
            if saved.key == key and saved.plan.moment_ms >= job.window.end_ms:
                return saved.plan
        _clear(self._folder)
        plan = plan_reading(self._names, job.flows, job.window, clock)
        draft = path.with_name(f".{_PLAN}")
        draft.write_bytes(msgspec.json.encode(_SavedPlan(key, plan)))
        sync(draft)
        draft.rename(path)
        return plan

    def fetch(self, spark: SparkSession | None) -> None:
        """Read all ranges that no earlier run has read, on Spark's workers if there is a session.

        Raises:
            ReconcileRefused: A range cannot be read.
        """
        found = [file for broker in self.plan.brokers for file in self._files(broker)]
        todo = [file for file in found if not Path(file.path).exists()]
        if spark is None or len(todo) < 2:
            fetch_ranges(self._names, todo)
            return
        context = spark.sparkContext
        slices = min(len(todo), 4 * context.defaultParallelism)
        work = partial(_fetch_slice, self._names)
        for error in context.parallelize(todo, slices).mapPartitions(work).collect():
            raise ReconcileRefused(error)

    def logs(self, processes: int | None) -> Iterator[BrokerLog]:
        """The logs from the files."""
        numbers = number_brokers(broker.name for broker in self.plan.brokers)
        for broker in self.plan.brokers:
            halves = EarlierHalves(self._names, broker)
            work = partial(_collapse_piece, self._job, broker.is_txmq)
            pieces = [
                [Path(file.path) for file in self._files(broker, at)]
                for at in range(len(broker.pieces))
            ]
            yield BrokerLog(
                numbers[broker.name],
                broker.offsets,
                _collapse(self._job, is_txmq=broker.is_txmq),
                in_processes(work, pieces, processes),
                halves.at_position if broker.is_txmq else halves.at_offset,
            )

    def _files(self, broker: BrokerPlan, piece: int | None = None) -> Iterator[RangeFile]:
        chosen = range(len(broker.pieces)) if piece is None else [piece]
        number = self.plan.brokers.index(broker)
        for at in chosen:
            for index, wanted in enumerate(broker.pieces[at].ranges):
                path = self._folder / f"{number}-{at}-{index}.records"
                yield RangeFile(str(path), broker.name, wanted)


def _fetch_slice(names: str, todo: Iterable[RangeFile]) -> list[str]:
    """Read some ranges on a worker of Spark; the error as text, since Spark would wrap it."""
    try:
        fetch_ranges(names, todo)
    except TxmqError as error:
        return [str(error)]
    return []


def _collapse(job: CollapseJob, *, is_txmq: bool) -> Collapse:
    return (Collapse if is_txmq else MarkCollapse)(Flows(job.flows), job.window)


def _collapse_piece(job: CollapseJob, is_txmq: bool, files: Sequence[Path]) -> LogPart:
    collapse = _collapse(job, is_txmq=is_txmq)
    end = count = 0

    def found() -> Iterator[Found]:
        nonlocal end, count
        for record in merged_records(files):
            end, count = record.position, count + 1
            yield log_record(record) if is_txmq else record

    collapse.take(found())
    return collapsed_part(collapse, 0, end, count)
