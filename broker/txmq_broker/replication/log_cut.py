"""Cuts from a copy what its leader does not have, and keeps it in a side folder.

The store is taken and not open yet. Each step is durable before the next one. The caller keeps
aside what will be cut, then it notes the cut, then it cuts. After a crash in between it cuts again.
"""

from __future__ import annotations

from contextlib import suppress

from txmq.protocol.span import HEAD_BYTES, AcceptedLoss, read_head
from txmq.runtime.disk import Disk
from txmq_broker.store.index_check import indexed
from txmq_broker.store.index_file import indexed_segments, path_of
from txmq_broker.store.log.commit_log import CommitLog, Mark
from txmq_broker.store.log.identity import write_identity
from txmq_broker.store.log.reader import LogReader, WholeSpan
from txmq_broker.store.log.segments import Extent, Segments, cut_folder, keep_aside
from txmq_broker.store.log.segments import path_of as log_path_of

__all__ = ["cut_tail", "keep_tail", "offsets_behind", "set_aside"]


def offsets_behind(disk: Disk, log_id: int, position: int) -> dict[str, dict[int, int]]:
    """The first offset of each queue that has messages at or behind a position of the log."""
    first: dict[str, dict[int, int]] = {}
    reader = LogReader(disk, log_id)
    reader.open()
    try:
        for extent in reader.extents():
            if extent.end <= position:
                continue
            for piece in reader.pieces(extent, max(position, extent.start)):
                if not isinstance(piece, WholeSpan):
                    continue
                for found, place, data in piece.found():
                    if isinstance(found, AcceptedLoss):
                        # The queues jumped there; where they were before, it does not say.
                        for topic, numbers in found.offsets.items():
                            first.setdefault(topic, {}).update(dict.fromkeys(numbers, 0))
                    for entry in indexed(reader.record_at, found, place, data):
                        topic, number = entry.queue
                        first.setdefault(topic, {}).setdefault(number, entry.offset)
    finally:
        reader.close()
    return first


def keep_tail(disk: Disk, log: CommitLog, position: int, now_ms: int) -> str:
    """Copy the log behind a position to a side folder; returns the folder.

    Raises:
        OSError: The disk refused.
    """
    segments = _opened(disk, log)
    folder = cut_folder(position, now_ms)
    tail = [extent for extent in segments.extents() if extent.end > position]
    segments.close()
    _keep(disk, segments.log_id, tail, position, folder)
    return folder


def cut_tail(disk: Disk, log: CommitLog, last: int, position: int) -> None:
    """End the log at a position; harmless when repeated.

    The indexes of the cut files are removed, because they describe what is cut.

    Args:
        disk: The directory.
        log: Its log.
        last: The start of the last span that stays; ``position`` if none stays.
        position: The end of that span, or the beginning of the log if none stays.

    Raises:
        OSError: The disk refused.
    """
    segments = _opened(disk, log)
    try:
        first = segments.extent_at(position).start
        for segment in indexed_segments(disk):
            if segment >= first:
                disk.remove(path_of(segment))
        head = read_head(segments.read(last, HEAD_BYTES), 0, last) if last < position else None
        checksum = 0 if head is None else head.checksum
        mark = log.high_water.mark
        accepted = 0 if mark is None else mark.accepted
        # Before the cut: the mark never claims more than there is.
        log.high_water.settle(Mark(segments.start, last, position, checksum, accepted))
        segments.cut(position, is_last=True)
    finally:
        segments.close()


def set_aside(disk: Disk, log: CommitLog, now_ms: int) -> str:
    """Move the whole log to a side folder, and return that folder.

    Raises:
        OSError: The disk refused.
    """
    segments = _opened(disk, log)
    extents, log_id = segments.extents(), segments.log_id
    segments.close()
    folder = cut_folder(extents[0].start, now_ms)
    log.high_water.forget()
    # The newest file is first: a beginning of a log is a log.
    for extent in reversed(extents):
        _keep(disk, log_id, [extent], extent.start, folder)
        for path in (path_of(extent.start), log_path_of(extent.start)):
            disk.remove(path)
    return folder


def _opened(disk: Disk, log: CommitLog) -> Segments:
    segments = Segments(disk, log.segment_size)
    segments.log_id = log.segments.log_id
    segments.open()
    return segments


def _keep(disk: Disk, log_id: int, extents: list[Extent], position: int, folder: str) -> None:
    try:
        write_identity(disk, log_id, folder)
        for extent in extents:
            keep_aside(disk, extent, max(position, extent.start), folder)
    except OSError:
        # Nothing was cut yet; on a full disk the copies would only take room.
        with suppress(OSError):
            for extent in extents:
                disk.remove(f"{folder}/{log_path_of(max(position, extent.start))}")
        raise
