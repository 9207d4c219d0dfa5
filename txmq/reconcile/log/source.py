"""The log as a Spark data source: ``spark.read.format("txmq").load(directory)``.

Each stretch of the log is a partition, so a cluster reads it in parallel; all workers see the
broker's directory, or a copy of it, under the same path. The broker may run meanwhile.
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
from txmq.reconcile.log.spans import STRETCH_BYTES, LogStretch, parts

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


class _Partition(InputPartition):
    def __init__(self, part: LogStretch) -> None:
        super().__init__(part)
        self.part = part


class LogSource(DataSource):
    """The records of a broker's log, as they lie there.

    ``load`` takes the broker's directory. The option ``stretch`` says how many bytes of the log a
    partition has, 33554432 if left out. A damaged log is refused, with the file and the position.

    Columns, of which those are empty that a kind does not have:

    - ``position`` BIGINT: where the record lies in the log;
    - ``kind`` STRING: ``message``, ``half``, ``decision``, ``retry`` (in the retry topic of a
      group), ``dead_letter`` (in that of its dead letters), ``parked`` (the copy that operators
      see of a half message nobody decided), or ``waiting`` (for its time: a delayed message or a
      retry, whose topic stands in its property ``REAL_TOPIC``, or the note that recalls one);
    - ``topic`` STRING, ``queue`` INT: where it lies; a half message where it wants to go;
    - ``queue_offset`` BIGINT: its place there; of a half message that in the queue of half
      messages; of a decision that of the message it makes visible, where it writes no copy;
    - ``stored_ms`` BIGINT: when it was stored, or decided;
    - ``born_ms`` BIGINT: when its producer made it, by that machine's clock;
    - ``id`` STRING: the message's own, which all of its copies have;
    - ``keys``, ``tags`` STRING: by which it is found and selected;
    - ``attempts`` INT: how often it was given back before;
    - ``body`` BINARY: as it was stored, compressed or not;
    - ``properties`` MAP<STRING, STRING>: all of them;
    - ``half_position`` BIGINT: of a decision, of the second copy that a commit wrote, and of a
      parked message: where the half message lies;
    - ``outcome`` STRING: of a decision, ``committed``, ``rolled_back`` or ``parked``;
    - ``decided_by`` STRING: ``producer``, ``check``, ``operator`` or ``broker``;
    - ``reason`` STRING: what was said to a decision by hand, or why a letter is dead.
    """

    @classmethod
    def name(cls) -> str:
        """What it is called in ``format``."""
        return "txmq"

    def schema(self) -> str:
        """Its columns."""
        return ", ".join(f"{name} {ddl}" for name, (ddl, _) in _COLUMNS.items())

    def reader(self, schema: Any) -> LogDataReader:
        """Who reads it.

        Raises:
            ReconcileRefused: ``load`` has no path, or the stretch is no number.
        """
        del schema
        directory = self.options.get("path")
        if not directory:
            raise ReconcileRefused("say where the log is: load takes a broker's directory")
        size = self.options.get("stretch", str(STRETCH_BYTES))
        if not size.isdecimal() or int(size) < 1:
            raise ReconcileRefused(f"stretch is a number of bytes, not {size!r}")
        return LogDataReader(Path(directory), int(size))


class LogDataReader(DataSourceReader):
    """Reads the log by partitions.

    Args:
        directory: The broker's.
        size: The bytes of a partition.
    """

    def __init__(self, directory: Path, size: int) -> None:
        self._directory = directory
        self._size = size

    def partitions(self) -> list[InputPartition]:
        """The parts of the log as it is now.

        Raises:
            ReconcileRefused: There is no log.
        """
        found: list[InputPartition] = []
        for file in files_of(self._directory):
            try:
                with OpenFile(file) as opened:
                    found += [_Partition(part) for part in parts(opened, self._size)]
            except FileNotFoundError:
                continue  # The broker has just deleted it; the log begins with the next file.
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A part's records.

        Raises:
            ReconcileRefused: It is damaged.
        """
        assert isinstance(partition, _Partition)
        rows = raw_records(partition.part)
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
