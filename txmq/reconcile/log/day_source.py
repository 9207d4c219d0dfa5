"""The messages of a day as a Spark data source: ``spark.read.format("txmq.log")``.

Each broker is a partition, whose task reads the broker's directory, or its part of a cluster over
the wire, and collapses it into one row for each message. Workers need the directory under the same
path, or the same way to the cluster. Brokers may keep running.

A source without ``table`` gives the tables ``messages``, ``failures`` and ``offsets`` and the notes
about the logs in one frame, each row with the name of its table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.books import NOTES, notes
from txmq.reconcile.extract.sheets import Sheets
from txmq.reconcile.log.collapse import LogRequest
from txmq.reconcile.rules import DayWindow, LogRules, Money
from txmq.reconcile.tables import LOG_TABLES

__all__ = ["LOG_SHEETS", "DayLogSource", "options_of"]

_TABLES: Final = {**LOG_TABLES, NOTES.name: NOTES}
LOG_SHEETS: Final = Sheets(_TABLES)


def options_of(log: LogRequest) -> dict[str, str]:
    """A request as options of the source."""
    found = {"log": msgspec.json.encode(log.log), "money": msgspec.json.encode(log.money)}
    plain = {name: text.decode() for name, text in found.items()}
    return plain | {"start_ms": str(log.window.start_ms), "end_ms": str(log.window.end_ms)}


def _request(options: Mapping[str, str]) -> LogRequest:
    try:
        log = msgspec.json.decode(options["log"], type=LogRules)
        money = msgspec.json.decode(options.get("money") or "{}", type=dict[str, Money])
        window = DayWindow(int(options["start_ms"]), int(options["end_ms"]))
    except (KeyError, ValueError, msgspec.DecodeError) as error:
        need = "log is the table [log] of the rules as JSON, and start_ms and end_ms are moments"
        raise ReconcileRefused(f"an option is missing or invalid: {error!r}; {need}") from error
    return LogRequest(log, money, window)


class DayLogSource(DataSource, DataSourceReader):
    """The messages of a day, from the log of each broker.

    Options: ``log``, the table of the rules as JSON; ``start_ms`` and ``end_ms``, the window of the
    day; ``money`` as in the rules, and ``table``.
    """

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "txmq.log"

    def schema(self) -> StructType:
        """The columns of the table, or of all tables."""
        table = self.options.get("table")
        if table and table not in _TABLES:
            raise ReconcileRefused(f"table {table!r} is not one of {', '.join(_TABLES)}")
        return from_arrow_schema(LOG_SHEETS.schema_of(table))

    def reader(self, schema: Any) -> DayLogSource:
        """Itself."""
        del schema
        return self

    def partitions(self) -> list[InputPartition]:
        """A part for each broker.

        Raises:
            ReconcileRefused: A topic or a group does not exist, or the cluster does not answer.
        """
        request = _request(self.options)
        if request.log.cluster:
            # Only this one needs the client.
            from txmq.reconcile.log.cluster_log import plan_cluster

            return [InputPartition(part) for part in plan_cluster(request)]
        from txmq.reconcile.log.directory_log import plan_directories

        return [InputPartition(part) for part in plan_directories(request)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read the log of a broker.

        Raises:
            ReconcileRefused: The log is damaged, or does not reach back to the beginning of the
                day, or the cluster does not answer.
            ConfigError: The package that decompresses a body is not installed.
        """
        request, wanted = _request(self.options), self.options.get("table")
        if partition is None:
            return  # The cluster has no broker with these topics.
        for found in partition.value.read(request):
            by_table = {NOTES.name: notes(found)[1]} if isinstance(found, list) else found
            for table, rows in by_table.items():
                if wanted in (None, "", table) and rows.num_rows:
                    yield LOG_SHEETS.rows("log", _TABLES[table], rows, is_alone=bool(wanted))
