"""The logs of brokers in their directories, or in copies of them.

A log is cut into stretches of one size. Each is collapsed by itself, and then they are joined in
order, so memory does not grow with the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from txmq.errors import ReconcileRefused, RemoteProtocolError
from txmq.protocol.bodies import Body, ConsumerOffsets, GroupConfigs, TopicConfigs
from txmq.protocol.checked_body import unpack
from txmq.reconcile.log.collapse import BrokerDay, Collapse, LogNotes, LogRequest, LogRows
from txmq.reconcile.log.files import STRETCH_BYTES, LogStretch, OpenFile, open_log
from txmq.reconcile.log.flows import check_names
from txmq.reconcile.tables import GroupOffset
from txmq.runtime.clock import Clock, SystemClock

__all__ = ["DirectoryPart", "plan_directories"]

_CLOCK: Final[Clock] = SystemClock()
_Body = TypeVar("_Body", bound=Body)


class DirectoryPart(NamedTuple):
    """The log of the broker with this number."""

    number: int

    def read(self, request: LogRequest) -> Iterator[LogRows | LogNotes]:
        """The rows of the log, and the moment and the end of it.

        The offsets of groups are read first, so that only messages in the log count as delivered.
        """
        path = Path(request.log.places[self.number])
        day = BrokerDay(self.number, request.log.flow, request.money, request.window)
        yield day.rows(offsets=_read_offsets(path))
        with open_log(path, request.window.start_ms) as log:
            yield [("taken_ms", path.name, str(_CLOCK.wall_ms()))]
            whole, end = Collapse(day, log.half_of), 0
            opened = {file.file: file for file in log.opened}
            for stretch in log.stretches(STRETCH_BYTES):
                part, end = _collapse(day, opened[stretch.file], stretch)
                yield part.take_rows()
                whole.join(part)
                yield whole.take_rows()
            whole.finish()
            yield whole.take_rows()
            yield [("watermark", path.name, str(end))]


def plan_directories(request: LogRequest) -> list[DirectoryPart]:
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
    return [DirectoryPart(number) for number in range(len(paths))]


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
