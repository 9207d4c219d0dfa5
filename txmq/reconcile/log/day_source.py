"""The messages of a day as a Spark data source: ``spark.read.format("txmq.log")``.

A task reads a broker's directory, a stretch of a long log, or a broker of a cluster over the wire.
It collapses the records into one row for each message. Workers need the directory under the same
path, or access to the cluster. Brokers may keep running.

The source gives the tables ``messages``, ``failures`` and ``offsets``, the notes about the logs and
the rests of their stretches in one frame, each row with the name of its table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.books import NOTES, Piece
from txmq.reconcile.extract.sheets import Sheets
from txmq.reconcile.log.collapse import LogRequest
from txmq.reconcile.log.directory_log import RESTS, join_rests, plan_directories
from txmq.reconcile.log.files import STRETCH_BYTES
from txmq.reconcile.rules import DayWindow, LogRules, Money
from txmq.reconcile.tables import LOG_TABLES

__all__ = ["LOG_SHEETS", "DayLogSource", "in_sheets", "options_of", "with_rests_joined"]

LOG_SHEETS: Final = Sheets({**LOG_TABLES, NOTES.name: NOTES, RESTS.name: RESTS})


def options_of(log: LogRequest) -> dict[str, str]:
    """A request as options of the source."""
    rules, money = (msgspec.json.encode(one).decode() for one in (log.log, log.money))
    start_ms, end_ms = map(str, log.window)
    moments = {"start_ms": start_ms, "end_ms": end_ms}
    return {"log": rules, "money": money, "stretch": str(log.stretch), **moments}


def _request(options: Mapping[str, str]) -> LogRequest:
    try:
        log = msgspec.json.decode(options["log"], type=LogRules)
        money = msgspec.json.decode(options.get("money") or "{}", type=dict[str, Money])
        window = DayWindow(int(options["start_ms"]), int(options["end_ms"]))
        stretch = int(options.get("stretch") or STRETCH_BYTES)
    except (KeyError, ValueError, msgspec.DecodeError) as error:
        need = "log is the table [log] of the rules as JSON, and start_ms and end_ms are moments"
        raise ReconcileRefused(f"an option is missing or invalid: {error!r}; {need}") from error
    return LogRequest(log, money, window, stretch)


class DayLogSource(DataSource, DataSourceReader):
    """The messages of a day, from the log of each broker.

    Options: ``log``, the table of the rules as JSON; ``start_ms`` and ``end_ms``, the window of the
    day; ``money`` as in the rules; and ``stretch``, the number of bytes of a log that are collapsed
    at once.
    """

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "txmq.log"

    def schema(self) -> StructType:
        """The columns of all tables."""
        return from_arrow_schema(LOG_SHEETS.schema)

    def reader(self, schema: Any) -> DayLogSource:
        """This source is its own reader."""
        del schema
        return self

    def partitions(self) -> list[InputPartition]:
        """A part for each broker.

        Raises:
            ReconcileRefused: A topic or a group does not exist, or the cluster does not answer.
        """
        request = _request(self.options)
        if request.log.cluster:
            # Only a cluster needs the client.
            from txmq.reconcile.log.cluster_log import plan_cluster

            return [InputPartition(part) for part in plan_cluster(request)]
        return [InputPartition(part) for part in plan_directories(request)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the log of a broker.

        Raises:
            ReconcileRefused: The log is damaged, or does not reach back to the beginning of the
                day, or the cluster does not answer.
            ConfigError: The package that decompresses a body is not installed.
        """
        if partition.value is not None:  # Otherwise the cluster has no broker with these topics.
            yield from _batches(partition.value.read(_request(self.options)))


def with_rests_joined(log: LogRequest, rests: DataFrame) -> DataFrame:
    """Join the rests of long logs' stretches into rows, as sheets."""

    def join(of_broker: pa.Table) -> pa.Table:
        return in_sheets(join_rests(log, of_broker))

    schema = from_arrow_schema(LOG_SHEETS.schema)
    return rests.select(*RESTS.names).groupBy("broker").applyInArrow(join, schema)


def in_sheets(found: Iterable[Piece]) -> pa.Table:
    """Rows of a log as rows of sheets."""
    return pa.Table.from_batches(_batches(found), LOG_SHEETS.schema)


def _batches(found: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
    for table, rows in found:
        if rows.num_rows:
            yield LOG_SHEETS.rows("log", table, rows)
