"""The log as a Spark data source: ``spark.read.format("txmq").load(directory)``.

Each stretch of the log is a partition, so a cluster reads it in parallel; all workers need the
broker's directory, or a copy of it, under the same path. The broker may keep running.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from txmq.errors import ReconcileRefused
from txmq.reconcile.log.files import OpenFile, files_of
from txmq.reconcile.log.raw import RawRecord, raw_records
from txmq.reconcile.log.spans import STRETCH_BYTES, parts

__all__ = ["LogSource", "register"]

_BYTES_A_BATCH: Final = 16 * 1024 * 1024
_ROWS_A_BATCH: Final = 4096

_COLUMNS: Final = {
    "position": ("BIGINT", pa.int64()),
    "kind": ("STRING", pa.string()),
    "topic": ("STRING", pa.string()),
    "queue": ("INT", pa.int32()),
    "queue_offset": ("BIGINT", pa.int64()),
    "stored_ms": ("BIGINT", pa.int64()),
    "born_ms": ("BIGINT", pa.int64()),
    "id": ("STRING", pa.string()),
    "keys": ("STRING", pa.string()),
    "tags": ("STRING", pa.string()),
    "attempts": ("INT", pa.int32()),
    "body": ("BINARY", pa.binary()),
    "properties": ("MAP<STRING, STRING>", pa.map_(pa.string(), pa.string())),
    "half_position": ("BIGINT", pa.int64()),
    "outcome": ("STRING", pa.string()),
    "decided_by": ("STRING", pa.string()),
    "reason": ("STRING", pa.string()),
}


class LogSource(DataSource):
    """The records of a broker's log, in the order in which it has them.

    ``load`` takes the broker's directory. The option ``stretch`` is the size of a partition in
    bytes of the log, 33554432 if left out. The error about a damaged log names the file and the
    position.

    The columns; those that a kind does not have are NULL:

    - ``position`` BIGINT: the record's position in the log;
    - ``kind`` STRING: ``message``, ``half``, ``decision``, ``retry`` (in the retry topic of a
      group), ``dead_letter`` (in the dead-letter topic of a group), ``parked`` (the copy of an
      undecided half message that operators see), or ``waiting`` (a delayed message or a retry,
      whose topic is in its property ``REAL_TOPIC``, or the recall of a delayed message);
    - ``topic`` STRING, ``queue`` INT: the queue that has it; for a half message, its destination;
    - ``queue_offset`` BIGINT: the offset in that queue; for a half message, in the queue of half
      messages; for a decision that writes no copy, the offset of the message it makes visible;
    - ``stored_ms`` BIGINT: the time of storing, or of the decision;
    - ``born_ms`` BIGINT: the time of production, by the producer's clock;
    - ``id`` STRING: the message id, which all of its copies share;
    - ``keys``, ``tags`` STRING: the keys for searches, and the tag for filters;
    - ``attempts`` INT: the number of earlier attempts to consume it;
    - ``body`` BINARY: the bytes as they were stored, compressed or not;
    - ``properties`` MAP<STRING, STRING>: all properties;
    - ``half_position`` BIGINT: for a decision, the copy that a commit wrote, and a parked
      message: the position of the half message;
    - ``outcome`` STRING: for a decision, ``committed``, ``rolled_back`` or ``parked``;
    - ``decided_by`` STRING: ``producer``, ``check``, ``operator`` or ``broker``;
    - ``reason`` STRING: the operator's reason for a decision, or the reason for a dead letter.
    """

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "txmq"

    def schema(self) -> str:
        """The columns as DDL."""
        return ", ".join(f"{name} {ddl}" for name, (ddl, _) in _COLUMNS.items())

    def reader(self, schema: Any) -> LogDataReader:
        """Return the reader of the log.

        Raises:
            ReconcileRefused: ``load`` has no path, or the stretch is invalid.
        """
        del schema
        directory = self.options.get("path")
        if not directory:
            raise ReconcileRefused('load needs the broker\'s directory: load("/var/lib/txmq")')
        size = self.options.get("stretch", str(STRETCH_BYTES))
        if not size.isdecimal() or int(size) < 1:
            raise ReconcileRefused(f"stretch must be a number of bytes, not {size!r}")
        return LogDataReader(Path(directory), int(size))


class LogDataReader(DataSourceReader):
    """Reads the log by partitions.

    Args:
        directory: The broker's directory.
        size: The bytes of a partition.
    """

    def __init__(self, directory: Path, size: int) -> None:
        self._directory = directory
        self._size = size

    def partitions(self) -> list[InputPartition]:
        """The parts of the log as it is now.

        Raises:
            ReconcileRefused: The log is missing.
        """
        found: list[InputPartition] = []
        for file in files_of(self._directory):
            try:
                with OpenFile(file) as opened:
                    found += [InputPartition(part) for part in parts(opened, self._size)]
            except FileNotFoundError:
                continue  # The broker has just deleted it; the log begins with the next file.
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of a partition.

        Raises:
            ReconcileRefused: The log is damaged.
        """
        rows = raw_records(partition.value)
        while some := list(_batch(rows)):
            columns = zip(*some, strict=True)
            arrays = [
                pa.array(values, type_)
                for values, (_, type_) in zip(columns, _COLUMNS.values(), strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=list(_COLUMNS))


def _batch(rows: Iterator[RawRecord]) -> Iterator[RawRecord]:
    """The rows of one batch, limited in number and in total size."""
    room = _BYTES_A_BATCH
    for row in islice(rows, _ROWS_A_BATCH):
        yield row
        room -= len(row.body or b"")
        if room < 0:
            return


def register(spark: SparkSession) -> None:
    """Let a session read logs: ``spark.read.format("txmq").load(directory)``."""
    spark.dataSource.register(LogSource)
