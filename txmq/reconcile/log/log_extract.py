"""The extract of a day's log: its tables as Parquet, with their control totals.

The logs are those of one broker or several, in their directories or read from a cluster.

A log in a directory is cut into stretches of one size. Each is collapsed by itself, by Spark's
workers if there is much to read, and then they are joined in order. So the same log gives the same
rows in the same order on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from msgspec.structs import replace

from txmq.errors import ReconcileRefused, RemoteProtocolError
from txmq.protocol.bodies import Body, ConsumerOffsets, GroupConfigs, TopicConfigs
from txmq.protocol.checked_body import unpack
from txmq.reconcile.extract.manifest import ExtractedSource
from txmq.reconcile.extract.table_writer import TableWriter
from txmq.reconcile.log.collapse import BrokerDay, Collapse, LogRows, WriteRows
from txmq.reconcile.log.files import STRETCH_BYTES, LogFiles, LogStretch, OpenFile, open_log
from txmq.reconcile.log.flows import check_names
from txmq.reconcile.rules import DayWindow, Rules
from txmq.reconcile.tables import LOG_TABLES, GroupOffset
from txmq.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["extract_log"]

_SOURCE: Final = "log"
_WORKERS_AT_ONCE: Final = 32
"""The stretches whose rows Spark's workers send together; this process holds them in memory."""
_STRETCHES_HERE: Final = 8
"""Up to so many are read here: starting a worker takes as long as reading two of them."""

_Body = TypeVar("_Body", bound=Body)


_Collapsed: TypeAlias = tuple[LogRows, Collapse, int]
"""The rows of a stretch of the log, the rest of its collapse, and the end of its last record."""


def extract_log(
    rules: Rules,
    window: DayWindow,
    directory: Path,
    *,
    spark: SparkSession | None = None,
    clock: Clock | None = None,
) -> ExtractedSource:
    """Write the log's rows of a day below ``directory/log``: messages, failures and offsets.

    The brokers may keep running. The offsets of their groups are read first, so that only messages
    in the extract count as delivered. The workers of ``spark`` read a cluster of brokers, and long
    logs in directories; without it this process does.

    Raises:
        ReconcileRefused: A log is damaged, or does not reach back to the beginning of the day, or
            the cluster does not answer.
        ConfigError: The package that decompresses a body is not installed.
    """
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(TableWriter(table, directory / _SOURCE))
            for name, table in LOG_TABLES.items()
        }

        def write(rows: LogRows) -> None:
            for name, batch in rows.items():
                writers[name].write(batch)

        if rules.log.cluster:
            # Only this one needs the client.
            from txmq.reconcile.log.cluster_log import read_cluster

            source = read_cluster(rules, window, directory, write, spark)
        else:
            source = _read_directories(rules, window, write, spark, clock or SystemClock())
    # The broker keeps no totals, so the control totals are those of the written rows.
    return replace(source, tables=tuple(writer.extracted() for writer in writers.values()))


def _read_directories(
    rules: Rules, window: DayWindow, write: WriteRows, spark: SparkSession | None, clock: Clock
) -> ExtractedSource:
    """Write the rows of the logs in directories; describe the log, without the written tables."""
    flows, paths = rules.log.flow, [Path(place) for place in rules.log.places]
    days = [BrokerDay(number, flows, rules.money, window) for number in range(len(paths))]
    offsets = [_read_offsets(path) for path in paths]
    topics = [_read(path, "topics", TopicConfigs) for path in paths]
    groups = [_read(path, "groups", GroupConfigs) for path in paths]
    if None not in topics and None not in groups:  # A copy of a directory may be without them.
        created = {topic for table in topics if table for topic in table.topic_config_table}
        known = {group for table in groups if table for group in table.subscription_group_table}
        known |= {offset.group for own in offsets for offset in own}
        check_names(flows, "log", created, known, "correct it in log.flow, or create it")
    with ExitStack() as stack:
        logs = [stack.enter_context(open_log(path, window.start_ms)) for path in paths]
        moment_ms = clock.wall_ms()
        for day, own in zip(days, offsets, strict=True):
            write(day.rows(offsets=own))
        ends = [_read_log(log, day, write, spark) for log, day in zip(logs, days, strict=True)]
    return ExtractedSource(_SOURCE, "log", "", moment_ms, moment_ms, (), max(ends))


def _read_offsets(broker: Path) -> list[GroupOffset]:
    saved = _read(broker, "offsets", ConsumerOffsets) or ConsumerOffsets()
    found = []
    for name, queues in saved.offset_table.items():
        topic, _, group = name.partition("@")
        found += [GroupOffset(group, topic, queue, offset) for queue, offset in queues.items()]
    return sorted(found)


def _read(broker: Path, name: str, kind: type[_Body]) -> _Body | None:
    """A table that a broker saves beside its log, as it last saved it."""
    path = broker / "config" / f"{name}.json"
    try:
        return kind.read(unpack(path.name, path.read_bytes()).text)
    except FileNotFoundError:
        return None
    except (OSError, RemoteProtocolError) as error:
        raise ReconcileRefused(f"{path} cannot be read: {error}") from error


def _read_log(log: LogFiles, day: BrokerDay, write: WriteRows, spark: SparkSession | None) -> int:
    """Write the rows of a log; returns its end."""
    whole, end = Collapse(day, log.half_of), 0
    opened = {file.file: file for file in log.opened}
    for stretch, collapsed in _collapsed(log, day, spark):
        # Its file may be only here, or was deleted and is open only here.
        rows, part, end = collapsed or _collapse(day, opened[stretch.file], stretch)
        write(rows)
        whole.join(part)
        write(whole.take_rows())
    whole.finish()
    write(whole.take_rows())
    return end


def _collapsed(
    log: LogFiles, day: BrokerDay, spark: SparkSession | None
) -> Iterator[tuple[LogStretch, _Collapsed | None]]:
    """Stretches, as Spark's workers collapsed them; ``None`` stands for one to collapse here."""
    todo = log.stretches(STRETCH_BYTES)
    size = sum(opened.file.end - opened.file.start for opened in log.opened)
    if spark is None or size <= _STRETCHES_HERE * STRETCH_BYTES:
        yield from zip(todo, repeat(None))
        return
    context = spark.sparkContext
    at_once = min(2 * context.defaultParallelism, _WORKERS_AT_ONCE)
    while some := list(islice(todo, at_once)):
        parts = context.parallelize(some, len(some)).map(partial(_try_collapse, day))
        yield from zip(some, parts.collect(), strict=True)


def _try_collapse(day: BrokerDay, stretch: LogStretch) -> _Collapsed | None:
    """Collapse a stretch; ``None`` if it cannot be read here."""
    try:
        with stretch.file.open() as opened:
            return _collapse(day, opened, stretch)
    except (OSError, ReconcileRefused):
        return None  # The caller reads it again, and raises the error.


def _collapse(day: BrokerDay, opened: OpenFile, stretch: LogStretch) -> _Collapsed:
    collapse, end = Collapse(day), stretch.start
    for found, position, data in opened.records(stretch.start, stretch.end):
        collapse.take(found)
        end = position + len(data)
    return collapse.take_rows(), collapse, end
