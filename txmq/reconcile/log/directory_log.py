"""The logs of brokers in their directories, or in copies of them.

A long log is cut into stretches of about the same size, one for each task. A stretch leaves the
records that it cannot settle alone as a row of ``rests``; :func:`join_rests` joins these in order.
"""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from txmq.errors import ReconcileRefused, RemoteProtocolError
from txmq.protocol.bodies import Body, ConsumerOffsets, GroupConfigs, TopicConfigs
from txmq.protocol.checked_body import unpack
from txmq.protocol.span import Found
from txmq.reconcile.arrow import arrow_schema
from txmq.reconcile.extract.books import Piece, notes
from txmq.reconcile.log.collapse import RECORDS_A_BATCH, Collapse, LogRequest, rows_at
from txmq.reconcile.log.files import LogStretch, open_log
from txmq.reconcile.tables import OFFSETS, Column, GroupOffset, TableSchema
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
"""The records that stretches of long logs leave for one another, pickled."""
_STRETCHES_OF_A_TASK: Final = 8
"""The most stretches of a log that one task reads by itself."""
_CLOCK: Final[Clock] = SystemClock()
_Body = TypeVar("_Body", bound=Body)


class DirectoryPart(NamedTuple):
    """The log of the broker with this number."""

    number: int

    def read(self, request: LogRequest) -> Iterator[Piece]:
        """The rows of the log, and notes with the moment of reading and the log's end.

        The offsets of groups are read first, so that only messages in the log count as delivered.
        """
        path = Path(request.log.places[self.number])
        yield rows_at(self.number, OFFSETS, _read_offsets(path))
        with open_log(path, request.window.start_ms) as log:
            yield _note("taken_ms", path, _CLOCK.wall_ms())
            collapse = Collapse(request, self.number, log.half_of)
            end = yield from _collapse(collapse, log.records(), 0)
            collapse.finish()
            yield from collapse.take_rows()
            yield _note("watermark", path, end)


class StretchPart(NamedTuple):
    """A stretch of the log of the broker with this number."""

    number: int
    stretch: LogStretch
    offsets: list[GroupOffset]
    """The broker's offsets in its first stretch; empty in the others."""
    taken_ms: int

    def read(self, request: LogRequest) -> Iterator[Piece]:
        """The rows of the stretch, and the rest that it leaves for the others."""
        yield _note("taken_ms", Path(request.log.places[self.number]), self.taken_ms)
        yield rows_at(self.number, OFFSETS, self.offsets)
        collapse, start = Collapse(request, self.number), self.stretch.start
        end = yield from _collapse(collapse, self.stretch.records(), start)
        rest = {"broker": self.number, "start": start, "end": end, "rest": pickle.dumps(collapse)}
        yield RESTS, pa.RecordBatch.from_pylist([rest], arrow_schema(RESTS))


def join_rests(request: LogRequest, rests: pa.Table) -> Iterator[Piece]:
    """The rows of a log that its stretches give only together, and a note with the log's end."""
    found = rests.sort_by("start").to_pylist()
    number = found[0]["broker"]
    path = Path(request.log.places[number])
    with open_log(path, request.window.start_ms) as log:
        whole = Collapse(request, number, log.half_of)
        for rest in found:
            whole.join(pickle.loads(rest["rest"]))  # noqa: S301 - a task of this run wrote it
        whole.finish()
    yield from whole.take_rows()
    yield _note("watermark", path, found[-1]["end"])


def _collapse(
    collapse: Collapse, records: Iterable[tuple[Found, int, bytes]], start: int
) -> Generator[Piece, None, int]:
    """Collapse records from a position on; returns the end of the last one."""
    end = start
    for count, (found, position, data) in enumerate(records, 1):
        collapse.take(found)
        end = position + len(data)
        if count % RECORDS_A_BATCH == 0:
            yield from collapse.take_rows()
    yield from collapse.take_rows()
    return end


def _note(about: str, broker: Path, number: int) -> Piece:
    return notes([(about, broker.name, str(number))])


def plan_directories(request: LogRequest) -> list[DirectoryPart | StretchPart]:
    """Plan the parts to read of each broker's log.

    Raises:
        ReconcileRefused: No broker has a topic or a group of the rules.
    """
    paths = [Path(place) for place in request.log.places]
    topics = [_read(path, "topics", TopicConfigs) for path in paths]
    groups = [_read(path, "groups", GroupConfigs) for path in paths]
    if None not in topics and None not in groups:  # A copy of a directory may lack them.
        created = {topic for table in topics if table for topic in table.topic_config_table}
        known = {group for table in groups if table for group in table.subscription_group_table}
        known |= {offset.group for path in paths for offset in _read_offsets(path)}
        remedy = "correct it in log.flow, or create it"
        request.check_names("log", created, known, remedy)
    return [part for number in range(len(paths)) for part in _parts(request, number)]


def _parts(request: LogRequest, number: int) -> Iterator[DirectoryPart | StretchPart]:
    path = Path(request.log.places[number])
    offsets = _read_offsets(path)
    with open_log(path, request.window.start_ms) as log:
        size = sum(opened.file.end - opened.file.start for opened in log.opened)
        if size <= _STRETCHES_OF_A_TASK * request.stretch:
            yield DirectoryPart(number)
            return
        taken_ms = _CLOCK.wall_ms()
        for stretch in log.stretches(request.stretch):
            yield StretchPart(number, stretch, offsets, taken_ms)
            offsets = []


def _read_offsets(broker: Path) -> list[GroupOffset]:
    saved = _read(broker, "offsets", ConsumerOffsets) or ConsumerOffsets()
    found = []
    for name, queues in saved.offset_table.items():
        topic, _, group = name.partition("@")
        found += [GroupOffset(group, topic, queue, offset) for queue, offset in queues.items()]
    return sorted(found)


def _read(broker: Path, name: str, kind: type[_Body]) -> _Body | None:
    """A table that a broker saves next to its log, in its last saved state."""
    path = broker / "config" / f"{name}.json"
    try:
        return kind.read(unpack(path.name, path.read_bytes()).text)
    except FileNotFoundError:
        return None
    except (OSError, RemoteProtocolError) as error:
        raise ReconcileRefused(f"{path} cannot be read: {error}") from error
