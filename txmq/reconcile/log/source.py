"""The log as a Spark data source: ``spark.read.format("txmq").load(directory)``.

Each stretch of the log is a partition, so a cluster reads it in parallel; all workers need the
broker's directory, or a copy of it, under the same path. The broker may keep running.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from txmq.errors import ReconcileRefused
from txmq.protocol import properties
from txmq.protocol.codes import SysFlag
from txmq.protocol.span import AcceptedLoss, Decision, Found
from txmq.protocol.topics import DLQ, PARKED_TOPIC, RETRY, WAITING_TOPICS
from txmq.reconcile.log.files import STRETCH_BYTES, LogStretch, OpenFile, open_log

__all__ = ["LogSource", "RawRecord", "raw_records", "register"]

_BYTES_A_BATCH: Final = 16 * 1024 * 1024
_ROWS_A_BATCH: Final = 4096

_TYPE_BITS: Final = int(SysFlag.ROLLED_BACK)
_PREPARED: Final = int(SysFlag.PREPARED)
_COMMITTED: Final = int(SysFlag.COMMITTED)


class RawRecord(NamedTuple):
    """A record with its kind; fields that its kind does not have are ``None``.

    ``docs/howto/read-the-log-from-spark.md`` describes them as columns.
    """

    position: int
    kind: str
    topic: str | None = None
    queue: int | None = None
    queue_offset: int | None = None
    stored_ms: int = 0
    born_ms: int | None = None
    id: str | None = None
    keys: str | None = None
    tags: str | None = None
    attempts: int | None = None
    body: bytes | None = None
    properties: dict[str, str] | None = None
    half_position: int | None = None
    outcome: str | None = None
    decided_by: str | None = None
    reason: str | None = None


_TYPES: Final = {
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "MAP<STRING, STRING>": pa.map_(pa.string(), pa.string()),
}
_LONGS: Final = ("position", "queue_offset", "stored_ms", "born_ms", "half_position")
_DDL: Final = (
    dict.fromkeys(RawRecord._fields, "STRING")
    | dict.fromkeys(_LONGS, "BIGINT")
    | {"queue": "INT", "attempts": "INT", "body": "BINARY", "properties": "MAP<STRING, STRING>"}
)


class LogSource(DataSource):
    """The records of a broker's log, in the order in which it has them.

    ``load`` takes the broker's directory. The option ``stretch`` is the size of a partition in
    bytes of the log, 33554432 if left out. The error about a damaged log names the file and the
    position.

    :class:`RawRecord` names the columns.
    """

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "txmq"

    def schema(self) -> str:
        """The columns as DDL."""
        return ", ".join(f"{name} {ddl}" for name, ddl in _DDL.items())

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
        with open_log(self._directory) as log:
            return [
                InputPartition(part) for file in log.opened for part in file.stretches(self._size)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of a partition.

        Raises:
            ReconcileRefused: The log is damaged.
        """
        rows = raw_records(partition.value)
        while some := list(_batch(rows)):
            columns = zip(*some, strict=True)
            arrays = map(pa.array, columns, map(_TYPES.__getitem__, _DDL.values()))
            yield pa.RecordBatch.from_arrays(list(arrays), names=list(_DDL))


def _raw_record(found: Found, position: int) -> RawRecord:
    """A record with its kind."""
    if isinstance(found, Decision):
        return RawRecord(
            position,
            "decision",
            stored_ms=found.decided_ms,
            queue_offset=found.queue_offset if found.queue_offset >= 0 else None,
            half_position=found.half_position,
            outcome=found.kind.name.lower(),
            decided_by=found.source.name.lower(),
            reason=found.reason or None,
        )
    if isinstance(found, AcceptedLoss):
        return RawRecord(position, "loss", stored_ms=found.accepted_ms, reason=found.reason)
    topic, bits = found.topic, found.sys_flag & _TYPE_BITS
    named = found.property_map()
    if bits == _PREPARED:
        kind = "half"
    elif topic in WAITING_TOPICS:
        kind = "waiting"
    elif topic.startswith(RETRY):
        kind = "retry"
    elif topic.startswith(DLQ):
        kind = "dead_letter"
    else:
        kind = "parked" if topic == PARKED_TOPIC else "message"
    has_half = bits == _COMMITTED or kind == "parked"
    return RawRecord(
        position, kind, topic, found.queue_id, found.queue_offset, found.stored_ms, found.born_ms,
        named.get(properties.UNIQUE_KEY) or found.offset_id, named.get(properties.KEYS),
        named.get(properties.TAGS), found.attempts, found.body, named,
        found.prepared_position if has_half else None,
        reason=named.get(properties.DEAD_REASON) if kind == "dead_letter" else None,
    )  # fmt: skip


def raw_records(part: LogStretch) -> Iterator[RawRecord]:
    """The records of a part of the log that begins where a span does.

    Raises:
        ReconcileRefused: The file is damaged or was deleted.
    """
    try:
        with OpenFile(part.file) as opened:
            for item, position, _ in opened.records(part.start, part.end):
                yield _raw_record(item, position)
    except FileNotFoundError:
        raise ReconcileRefused(
            f"{part.file.path} was deleted by the broker before it was read; read the log again"
        ) from None


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
