"""The log of a broker from its directory; the broker may keep running."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from txmq.errors import ReconcileRefused, RemoteProtocolError
from txmq.protocol import record as records
from txmq.protocol.bodies import ConsumerOffsets
from txmq.protocol.checked_body import unpack
from txmq.protocol.record import Record
from txmq.reconcile.log.collapse import Collapse
from txmq.reconcile.log.files import LogFiles, OpenFile
from txmq.reconcile.log.flows import Flows
from txmq.reconcile.log.parts import (
    BrokerLog,
    CollapseJob,
    GroupOffset,
    LogPart,
    collapsed_part,
    in_processes,
)
from txmq.reconcile.log.spans import LogStretch, find_start, records_from, stretches

__all__ = ["directory_log", "saved_offsets"]

_OFFSETS: Final = "config/offsets.json"


def saved_offsets(broker: Path) -> list[GroupOffset]:
    """The offsets of the groups, as the broker last saved them.

    Raises:
        ReconcileRefused: Its file cannot be read.
    """
    path = broker / _OFFSETS
    try:
        saved = ConsumerOffsets.read(unpack(path.name, path.read_bytes()).text)
    except FileNotFoundError:
        return []
    except (OSError, RemoteProtocolError) as error:
        raise ReconcileRefused(f"{path} cannot be read: {error}") from error
    rows = []
    for name, queues in saved.offset_table.items():
        topic, _, group = name.partition("@")
        rows += [GroupOffset(group, topic, queue, offset) for queue, offset in queues.items()]
    return sorted(rows)


def directory_log(
    number: int,
    offsets: list[GroupOffset],
    log: LogFiles,
    job: CollapseJob,
    processes: int | None,
    stretch_bytes: int,
) -> BrokerLog:
    """The log in open files."""
    todo = list(stretches((file.file for file in log.files), stretch_bytes))
    parts = _parts(log, job, todo, processes)
    whole = Collapse(Flows(job.flows), job.window)
    return BrokerLog(number, offsets, whole, parts, partial(_half_at, log))


def _parts(
    log: LogFiles, job: CollapseJob, todo: list[LogStretch], processes: int | None
) -> Iterator[LogPart]:
    """The collapsed stretches in order; each begins where the previous one ends."""
    at = -1
    opened = {file.file.start: file for file in log.files}
    read = in_processes(partial(_try_collapse, job), todo, processes)
    for stretch, part in zip(todo, read, strict=True):
        start = stretch.start if stretch.is_first else at
        if part is None or part.start != start:
            # Its file was deleted and is open only here, or its first span was a message body
            # that looks like one, which any sender can write.
            part = _collapse(opened[stretch.file.start], stretch, job, start)  # noqa: PLW2901
        at = part.end
        yield part


def _try_collapse(job: CollapseJob, stretch: LogStretch) -> LogPart | None:
    """Collapse a stretch from where it seems to begin; ``None`` if that fails."""
    try:
        with OpenFile(stretch.file) as opened:
            start = find_start(opened, stretch)
            return None if start is None else _collapse(opened, stretch, job, start)
    except (FileNotFoundError, ReconcileRefused):
        return None  # The caller knows the true start, and detects any damage.


def _collapse(opened: OpenFile, stretch: LogStretch, job: CollapseJob, start: int) -> LogPart:
    collapse = Collapse(Flows(job.flows), job.window)
    at, count = start, 0
    for at, found in records_from(opened, start, stretch.end):  # noqa: B007 - the end of the last span
        collapse.take(item for item, _ in found)
        count += len(found)
    return collapsed_part(collapse, start, at, count)


def _half_at(log: LogFiles, position: int) -> Record | None:
    data = log.record_at(position)
    if data is None:
        return None
    try:
        record, _ = records.unpack(data)
    except RemoteProtocolError as error:
        raise ReconcileRefused(
            f"the log is damaged at position {position}, which has a half message: {error}"
        ) from error
    if record.position != position:
        raise ReconcileRefused(f"position {position} of the log has no half message")
    return record
