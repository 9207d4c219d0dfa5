"""The log as a Spark data source: ``spark.read.format("txmq").load(directory)``.

Each stretch of the log is a partition, so a cluster reads it in parallel; all workers need the
broker's directory, or a copy of it, under the same path. The broker may keep running.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from txmq.settings.extras import named_extra

with named_extra():
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

from txmq.errors import ReconcileRefused
from txmq.protocol import properties
from txmq.protocol.record import COMMITTED, PREPARED, TYPE_BITS
from txmq.protocol.span import AcceptedLoss, Decision, Found
from txmq.protocol.topics import DLQ, PARKED_TOPIC, RETRY, WAITING_TOPICS
from txmq.reconcile.extract.bank_source import BankSource
from txmq.reconcile.log.day_source import DayLogSource
from txmq.reconcile.log.files import STRETCH_BYTES, LogStretch, open_log

__all__ = ["COLUMNS", "LogSource", "raw_records", "register"]

_ROWS_A_BATCH: Final = 256
"""Even bodies of 4 MiB each stay below Arrow's limit of 2 GiB."""

COLUMNS: Final = pa.schema({
    "position": pa.int64(), "kind": pa.string(), "topic": pa.string(), "queue": pa.int32(),
    "queue_offset": pa.int64(), "stored_ms": pa.int64(), "born_ms": pa.int64(),
    "id": pa.string(), "keys": pa.string(), "tags": pa.string(), "attempts": pa.int32(),
    "body": pa.binary(), "properties": pa.map_(pa.string(), pa.string()),
    "half_position": pa.int64(), "outcome": pa.string(), "decided_by": pa.string(),
    "reason": pa.string(),
})  # fmt: skip
"""``docs/howto/reconcile-library.md`` describes them."""


class LogSource(DataSource, DataSourceReader):
    """The records of a broker's log, in their order there.

    ``load`` takes the broker's directory. The option ``stretch`` is the size of a partition in
    bytes of the log, by default 33554432. The error about a damaged log names the file and the
    position.
    """

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "txmq"

    def schema(self) -> StructType:
        """The columns."""
        return from_arrow_schema(COLUMNS)

    def reader(self, schema: Any) -> LogSource:
        """This source is its own reader."""
        del schema
        return self

    def partitions(self) -> list[InputPartition]:
        """The parts of the log as it is now.

        Raises:
            ReconcileRefused: The log is missing, ``load`` has no path, or the stretch is invalid.
        """
        directory = self.options.get("path")
        if not directory:
            raise ReconcileRefused('load needs the broker\'s directory: load("/var/lib/txmq")')
        size = self.options.get("stretch", str(STRETCH_BYTES))
        if not size.isdecimal() or int(size) < 1:
            raise ReconcileRefused(f"stretch must be a number of bytes, not {size!r}")
        with open_log(Path(directory)) as log:
            return [InputPartition(part) for part in log.stretches(int(size))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of a partition.

        Raises:
            ReconcileRefused: The log is damaged.
        """
        records = raw_records(partition.value)
        while some := list(islice(records, _ROWS_A_BATCH)):
            yield pa.RecordBatch.from_pylist(some, COLUMNS)


def raw_records(part: LogStretch) -> Iterator[dict[str, Any]]:
    """The records of a part of the log that begins where a span does.

    Raises:
        ReconcileRefused: The file is damaged or was deleted.
    """
    return ({"position": at} | _raw_record(item) for item, at, _ in part.records())


def _raw_record(found: Found) -> dict[str, Any]:
    """The columns of a record; those that its kind lacks are left out, or ``None``."""
    if isinstance(found, Decision):
        return {
            "kind": "decision",
            "stored_ms": found.decided_ms,
            "queue_offset": found.queue_offset if found.queue_offset >= 0 else None,
            "half_position": found.half_position,
            "outcome": found.kind.name.lower(),
            "decided_by": found.source.name.lower(),
            "reason": found.reason or None,
        }
    if isinstance(found, AcceptedLoss):
        return {"kind": "loss", "stored_ms": found.accepted_ms, "reason": found.reason}
    topic, bits = found.topic, found.sys_flag & TYPE_BITS
    named = found.property_map()
    if bits == PREPARED:
        kind = "half"
    elif topic in WAITING_TOPICS:
        kind = "waiting"
    elif topic.startswith(RETRY):
        kind = "retry"
    elif topic.startswith(DLQ):
        kind = "dead_letter"
    else:
        kind = "parked" if topic == PARKED_TOPIC else "message"
    has_half = bits == COMMITTED or kind == "parked"
    same = "topic", "queue_offset", "stored_ms", "born_ms", "attempts", "body"
    return {name: getattr(found, name) for name in same} | {
        "kind": kind,
        "queue": found.queue_id,
        "id": named.get(properties.UNIQUE_KEY) or found.offset_id,
        "keys": named.get(properties.KEYS),
        "tags": named.get(properties.TAGS),
        "properties": named,
        "half_position": (found.prepared_position if has_half else found.half_position) or None,
        "reason": named.get(properties.DEAD_REASON) if kind == "dead_letter" else None,
    }


def register(spark: SparkSession) -> None:
    """Let a session read logs and banks: the formats ``txmq``, ``txmq.log`` and ``txmq.bank``."""
    for source in (LogSource, DayLogSource, BankSource):
        spark.dataSource.register(source)
