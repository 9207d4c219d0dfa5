"""The logs of brokers in their directories, or in copies of them.

A log is cut into stretches of one size. Each is collapsed by itself, and then they are joined in
order, so memory does not grow with the log. The stretches of a long log are tasks of their own:
what each of them leaves for the others is a row of ``rests``, and :func:`join_rests` joins these.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from txmq.errors import ReconcileRefused, RemoteProtocolError
from txmq.protocol.bodies import Body, ConsumerOffsets, GroupConfigs, TopicConfigs
from txmq.protocol.checked_body import unpack
from txmq.reconcile.extract.table_writer import arrow_schema
from txmq.reconcile.log.collapse import BrokerDay, Collapse, LogNotes, LogRequest, LogRows
from txmq.reconcile.log.files import LogFiles, LogStretch, OpenFile, open_log
from txmq.reconcile.log.flows import check_names
from txmq.reconcile.tables import Column, GroupOffset, TableSchema
from txmq.runtime.clock import Clock, SystemClock

__all__ = ["RESTS", "DirectoryPart", "StretchPart", "join_rests", "plan_directories"]

RESTS: Final = TableSchema(
    "rests",
    (
        Column("broker", "int", is_optional=False),
        Column("start", "long", is_optional=False),
        Column("end", "long", is_optional=False),
        Column("rest", "binary", is_optional=False),
    ),
)
"""What the stretches of long logs leave for one another, pickled."""
_STRETCHES_OF_A_TASK: Final = 8
"""A log of up to so many stretches is one task."""
_CLOCK: Final[Clock] = SystemClock()
_Body = TypeVar("_Body", bound=Body)


class DirectoryPart(NamedTuple):
    """The log of the broker with this number."""

    number: int

    def read(self, request: LogRequest) -> Iterator[LogRows | LogNotes]:
        """The rows of the log, and the moment and the end of it.

        The offsets of groups are read first, so that only messages in the log count as delivered.
        """
        path, day = _broker(request, self.number)
        yield day.rows(offsets=_read_offsets(path))
        with open_log(path, request.window.start_ms) as log:
            yield [("taken_ms", path.name, str(_CLOCK.wall_ms()))]
            whole, end = Collapse(day, log.half_of), 0
            opened = {file.file: file for file in log.opened}
            for stretch in log.stretches(request.stretch):
                part, end = _collapse(day, opened[stretch.file], stretch)
                yield part.take_rows()
                whole.join(part)
                yield whole.take_rows()
            whole.finish()
            yield whole.take_rows()
            yield [("watermark", path.name, str(end))]


class StretchPart(NamedTuple):
    """A stretch of the log of the broker with this number."""

    number: int
    stretch: LogStretch
    offsets: list[GroupOffset]
    """Those of the broker, in its first stretch."""
    notes: LogNotes

    def read(self, request: LogRequest) -> Iterator[LogRows | LogNotes]:
        """The rows of the stretch, and what it leaves for the others."""
        _, day = _broker(request, self.number)
        yield self.notes
        yield day.rows(offsets=self.offsets)
        try:
            with self.stretch.file.open() as opened:
                part, end = _collapse(day, opened, self.stretch)
        except FileNotFoundError:
            why = "was deleted by the broker before it was read; run the day again"
            raise ReconcileRefused(f"{self.stretch.file.path} {why}") from None
        yield part.take_rows()
        rest = [[self.number], [self.stretch.start], [end], [pickle.dumps(part)]]
        schema = arrow_schema(RESTS)
        arrays = map(pa.array, rest, schema.types)
        yield {RESTS.name: pa.RecordBatch.from_arrays(list(arrays), schema=schema)}


def join_rests(request: LogRequest, rests: pa.Table) -> Iterator[LogRows | LogNotes]:
    """The rows of a log that its stretches have together, and the end of it."""
    found = rests.sort_by("start").to_pylist()
    path, day = _broker(request, found[0]["broker"])
    with open_log(path, request.window.start_ms) as log:
        whole = Collapse(day, log.half_of)
        for rest in found:
            whole.join(pickle.loads(rest["rest"]))  # noqa: S301 - a task of this run wrote it
        whole.finish()
    yield whole.take_rows()
    yield [("watermark", path.name, str(found[-1]["end"]))]


def plan_directories(request: LogRequest) -> list[DirectoryPart | StretchPart]:
    """The parts of the logs.

    Raises:
        ReconcileRefused: No broker has a topic or a group of the rules.
    """
    paths = [Path(place) for place in request.log.places]
    topics = [_read(path, "topics", TopicConfigs) for path in paths]
    groups = [_read(path, "groups", GroupConfigs) for path in paths]
    if None not in topics and None not in groups:  # A copy of a directory may be without them.
        created = {topic for table in topics if table for topic in table.topic_config_table}
        known = {group for table in groups if table for group in table.subscription_group_table}
        known |= {offset.group for path in paths for offset in _read_offsets(path)}
        remedy = "correct it in log.flow, or create it"
        check_names(request.log.flow, "log", created, known, remedy)
    return [part for number in range(len(paths)) for part in _parts(request, number)]


def _parts(request: LogRequest, number: int) -> Iterator[DirectoryPart | StretchPart]:
    path, _ = _broker(request, number)
    offsets = _read_offsets(path)
    with open_log(path, request.window.start_ms) as log:
        if _size(log) <= _STRETCHES_OF_A_TASK * request.stretch:
            yield DirectoryPart(number)
            return
        notes = [("taken_ms", path.name, str(_CLOCK.wall_ms()))]
        for stretch in log.stretches(request.stretch):
            yield StretchPart(number, stretch, offsets, notes)
            offsets, notes = [], []


def _size(log: LogFiles) -> int:
    return sum(opened.file.end - opened.file.start for opened in log.opened)


def _broker(request: LogRequest, number: int) -> tuple[Path, BrokerDay]:
    day = BrokerDay(number, request.log.flow, request.money, request.window)
    return Path(request.log.places[number]), day


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


def _collapse(day: BrokerDay, opened: OpenFile, stretch: LogStretch) -> tuple[Collapse, int]:
    """A collapsed stretch, and the end of its last record."""
    collapse, end = Collapse(day), stretch.start
    for found, position, data in opened.records(stretch.start, stretch.end):
        collapse.take(found)
        end = position + len(data)
    return collapse, end
