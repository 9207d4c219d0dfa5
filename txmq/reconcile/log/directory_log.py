"""The logs in the directories of brokers.

A log is cut into stretches of one size. Each is collapsed by itself, by Spark's workers or in
several processes if there is much to read, and then they are joined in order. So the same log
gives the same rows in the same order on any machine.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from txmq.errors import ReconcileRefused, RemoteProtocolError
from txmq.protocol.bodies import Body, ConsumerOffsets, GroupConfigs, TopicConfigs
from txmq.protocol.checked_body import unpack
from txmq.reconcile.extract.manifest import ExtractedSource
from txmq.reconcile.log.collapse import BrokerDay, Collapse, GroupOffset, LogRows, OpenEnds
from txmq.reconcile.log.files import STRETCH_BYTES, LogFiles, LogStretch, OpenFile, open_log
from txmq.reconcile.log.flows import check_names
from txmq.reconcile.rules import DayWindow, Flow, Rules
from txmq.runtime.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["read_directories"]

_PROCESSES: Final = os.cpu_count() or 1
_WORKERS_AT_ONCE: Final = 32
"""The stretches that Spark's workers read at once; this process holds their rows in memory."""
_STRETCHES_A_PROCESS: Final = 4
"""Starting a process takes as long as reading two stretches."""

_Body = TypeVar("_Body", bound=Body)


class CollapsedStretch(NamedTuple):
    """What a stretch of the log gives."""

    rows: LogRows
    ends: OpenEnds
    end: int
    """The end of its last record."""


_Results: TypeAlias = Iterator[tuple[LogStretch, CollapsedStretch | None]]
"""Stretches in order; ``None`` stands for one that could not be read there."""


class BrokerTables(NamedTuple):
    """The tables that a broker saves beside its log, as it last saved them."""

    offsets: list[GroupOffset]
    topics: set[str] | None
    """``None`` if the directory, perhaps a copy, does not have them; also of groups."""
    groups: set[str] | None


def read_directories(
    rules: Rules,
    window: DayWindow,
    write: Callable[[LogRows], None],
    spark: SparkSession | None,
    clock: Clock,
) -> ExtractedSource:
    """Write the rows of the logs in directories; describe the log, without the written tables.

    If ``spark`` is a cluster, its workers read them; otherwise this machine does.

    Raises:
        ReconcileRefused: A log is missing, or does not reach back to the beginning of the day.
    """
    paths = [Path(place) for place in rules.log.places]
    days = [BrokerDay(number, rules.log.flow, rules.money, window) for number in range(len(paths))]
    tables = [_read_tables(path) for path in paths]
    _check_names(rules.log.flow, tables)
    with ExitStack() as stack:
        logs = [stack.enter_context(open_log(path, window.start_ms)) for path in paths]
        moment_ms = clock.wall_ms()
        for day, broker in zip(days, tables, strict=True):
            write(day.rows(offsets=broker.offsets))
        ends = [_read_log(log, day, write, spark) for log, day in zip(logs, days, strict=True)]
    return ExtractedSource("log", "log", "", moment_ms, moment_ms, (), max(ends))


def _read_tables(directory: Path) -> BrokerTables:
    folder = directory / "config"
    saved = _read(folder / "offsets.json", ConsumerOffsets) or ConsumerOffsets()
    topics = _read(folder / "topics.json", TopicConfigs)
    groups = _read(folder / "groups.json", GroupConfigs)
    offsets = []
    for name, queues in saved.offset_table.items():
        topic, _, group = name.partition("@")
        offsets += [GroupOffset(group, topic, queue, offset) for queue, offset in queues.items()]
    return BrokerTables(
        sorted(offsets),
        None if topics is None else set(topics.topic_config_table),
        None if groups is None else set(groups.subscription_group_table),
    )


def _read(path: Path, kind: type[_Body]) -> _Body | None:
    try:
        return kind.read(unpack(path.name, path.read_bytes()).text)
    except FileNotFoundError:
        return None
    except (OSError, RemoteProtocolError) as error:
        raise ReconcileRefused(f"{path} cannot be read: {error}") from error


def _check_names(flows: Sequence[Flow], brokers: Sequence[BrokerTables]) -> None:
    """Check the names of flows; one broker that has them is enough."""
    topics, groups = set[str](), set[str]()
    for broker in brokers:
        if broker.topics is None or broker.groups is None:
            return
        topics |= broker.topics
        groups |= broker.groups | {offset.group for offset in broker.offsets}
    check_names(flows, "log", topics, groups, "correct it in log.flow, or create it")


def _read_log(
    log: LogFiles, day: BrokerDay, write: Callable[[LogRows], None], spark: SparkSession | None
) -> int:
    """Write the rows of a log; returns its end."""
    whole, end = Collapse(day, log.half_of), 0
    opened = {file.file: file for file in log.opened}
    for stretch, collapsed in _collapsed(log, day, spark):
        # Its file may be only here, or was deleted and is open only here.
        rows, ends, end = collapsed or _collapse(day, opened[stretch.file], stretch)
        write(rows)
        whole.join(ends)
        write(whole.take_rows())
    whole.finish()
    write(whole.take_rows())
    return end


def _collapsed(log: LogFiles, day: BrokerDay, spark: SparkSession | None) -> _Results:
    """Collapse stretches by Spark's workers or in several processes."""
    collapse = partial(_try_collapse, day)
    todo = log.stretches(STRETCH_BYTES)
    size = sum(opened.file.end - opened.file.start for opened in log.opened)
    processes = min(_PROCESSES, size // (STRETCH_BYTES * _STRETCHES_A_PROCESS))
    if spark is not None and _has_cluster(spark):
        context = spark.sparkContext
        at_once = min(2 * context.defaultParallelism, _WORKERS_AT_ONCE)
        while some := list(islice(todo, at_once)):
            found = context.parallelize(some, len(some)).map(collapse).collect()
            yield from zip(some, found, strict=True)
    elif processes > 1:
        try:
            # Spawn and not fork: the caller may have threads, as every user of Spark has.
            with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
                futures = ((stretch, pool.submit(collapse, stretch)) for stretch in todo)
                # They are read while the caller takes the results of those before them.
                ahead = deque(islice(futures, 2 * processes))
                while ahead:
                    stretch, future = ahead.popleft()
                    yield stretch, future.result()
                    ahead.extend(islice(futures, 1))
        except BrokenProcessPool as error:
            raise ReconcileRefused(f"a process that read the log has ended: {error}") from error
    else:
        yield from zip(todo, repeat(None))


def _has_cluster(spark: SparkSession) -> bool:
    # Not above: the processes that read here import this module, and need no Spark.
    from txmq.reconcile.spark import has_cluster

    return has_cluster(spark)


def _try_collapse(day: BrokerDay, stretch: LogStretch) -> CollapsedStretch | None:
    """Collapse a stretch; ``None`` if it cannot be read here."""
    try:
        with OpenFile(stretch.file) as opened:
            return _collapse(day, opened, stretch)
    except (OSError, ReconcileRefused):
        return None  # The caller reads it again, and raises the error.


def _collapse(day: BrokerDay, opened: OpenFile, stretch: LogStretch) -> CollapsedStretch:
    collapse, end = Collapse(day), stretch.start
    for found, position, data in opened.records(stretch.start, stretch.end):
        collapse.take(found)
        end = position + len(data)
    return CollapsedStretch(collapse.take_rows(), collapse.open_ends(), end)
