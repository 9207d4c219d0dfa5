"""Cuts the part of a follower's log that its leader lacks, and keeps it in a side folder.

The decision comes first: :func:`last_shared` finds where the two logs diverge, and
:func:`refuse_to_lose` protects the part that the set has acknowledged. So a cut removes only bytes
that were never acknowledged, or that an operator gave up.

The rest of this module carries out a cut, on a store that is locked but not open yet. Each step is
durable before the next one: lower the tables so that they refer to nothing in the tail, copy the
tail to a side folder, record the cut, cut the log. After a crash, a recorded cut is repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from msgspec.structs import replace

from txmq.errors import BrokerRefused
from txmq.protocol.bodies import ConsumerOffsets
from txmq.protocol.copies import CopiedTables
from txmq.protocol.span import HEAD_BYTES, AcceptedLoss, SpanHead, read_head
from txmq.runtime.coordinator import LogEnd
from txmq.runtime.disk import Disk
from txmq_broker.services.keeper import CopyState, Keeper
from txmq_broker.store.evidence import QueueOffsets
from txmq_broker.store.index_check import indexed
from txmq_broker.store.index_file import indexed_segments, path_of
from txmq_broker.store.log.commit_log import CommitLog, Mark
from txmq_broker.store.log.identity import write_identity
from txmq_broker.store.log.reader import LogReader, WholeSpan
from txmq_broker.store.log.segments import Extent, Segments, cut_folder, keep_aside
from txmq_broker.store.log.segments import path_of as log_path_of

__all__ = [
    "finish_cut",
    "keep_tail",
    "last_shared",
    "lower_tables",
    "refuse_to_lose",
    "set_aside",
]


# The decision


class ComparedLog(Protocol):
    """The log of a follower."""

    last: SpanHead | None
    """The head of its last span."""

    @property
    def doubt(self) -> str:
        """Why it may have lost something; empty if there is no sign of a loss."""
        ...

    def span_starts(self) -> Iterator[Sequence[int]]:
        """The start of each span, file by file, newest file first."""
        ...

    def head_at(self, start: int) -> SpanHead:
        """The head of the span that begins at a position."""
        ...


async def last_shared(
    log: ComparedLog, is_shared: Callable[[SpanHead], Awaitable[bool]]
) -> SpanHead | None:
    """The last span that a follower and its leader both have; ``None`` if they share nothing.

    Args:
        log: The follower's log.
        is_shared: Asks the leader whether it has a span, and therefore everything before it.
    """

    async def shared_at(start: int) -> SpanHead | None:
        head = log.head_at(start)
        return head if await is_shared(head) else None

    for starts in log.span_starts():
        if not starts or (last := await shared_at(starts[0])) is None:
            continue
        # The logs share a beginning, so the last shared span can be found by bisection.
        low, high = 1, len(starts)
        while low < high:
            middle = (low + high) // 2
            if (later := await shared_at(starts[middle])) is None:
                high = middle
            else:
                last, low = later, middle + 1
        return last
    return None


def refuse_to_lose(
    log: ComparedLog, position: int, acknowledged: LogEnd | None, leader: str, way_out: str
) -> None:
    """Refuse a cut that would lose what the set has acknowledged.

    Args:
        log: The follower's log.
        position: Where it would be cut.
        acknowledged: The end of what the set has acknowledged, according to its store.
        leader: The address of the leader.
        way_out: The command that lets this follower lead.

    Raises:
        BrokerRefused: The cut would lose acknowledged bytes that this log has.
    """
    if acknowledged is None or log.last is None or log.doubt:
        return
    own = LogEnd(log.last.epoch, log.last.position + log.last.size)
    if own >= acknowledged and position < acknowledged.position:
        raise BrokerRefused(
            f"{leader} leads without {acknowledged.position - position} bytes that the set has "
            f"acknowledged, from position {position} on; this copy keeps them. Stop that leader, "
            f"and let this member lead: {way_out}"
        )


# The tables


def lower_tables(
    keeper: Keeper, disk: Disk, log_id: int, position: int, leaders: CopiedTables
) -> None:
    """Save tables that refer to nothing after a position of the log.

    The leader's topics and groups replace those here. Committed offsets and floors that point past
    the first message after the position are lowered to it.

    Args:
        keeper: The tables of the directory.
        disk: The directory.
        log_id: The identity of its log.
        position: The position.
        leaders: The tables of the leader.

    Raises:
        OSError: The disk refused.
    """
    behind = _offsets_behind(disk, log_id, position)
    offsets = ConsumerOffsets(
        {
            name: _lowest({topic: numbers}, behind)[topic]
            for name, numbers in keeper.offsets().offset_table.items()
            for topic in (name.partition("@")[0],)
        }
    )
    floors = _lowest(keeper.floors().floors, behind)
    keeper.adopt(CopiedTables(leaders.topics, leaders.groups, offsets, floors), position)


def _lowest(offsets: QueueOffsets, behind: QueueOffsets) -> dict[str, dict[int, int]]:
    """For each queue in the first mapping, the lower of its offsets in both."""
    return {
        topic: {
            number: min(offset, behind.get(topic, {}).get(number, offset))
            for number, offset in numbers.items()
        }
        for topic, numbers in offsets.items()
    }


def _offsets_behind(disk: Disk, log_id: int, position: int) -> dict[str, dict[int, int]]:
    """The first offset of each queue that has messages at or after a position of the log."""
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
                        # The queues jumped to these offsets; the record does not say from where.
                        for topic, numbers in found.offsets.items():
                            first.setdefault(topic, {}).update(dict.fromkeys(numbers, 0))
                    for entry in indexed(reader.record_at, found, place, data):
                        topic, number = entry.queue
                        first.setdefault(topic, {}).setdefault(number, entry.offset)
    finally:
        reader.close()
    return first


# The files of the log


def keep_tail(disk: Disk, log: CommitLog, position: int, now_ms: int) -> str:
    """Copy the log after a position to a side folder; return the folder.

    Raises:
        OSError: The disk refused.
    """
    segments = _opened(disk, log)
    folder = cut_folder(position, now_ms)
    tail = [extent for extent in segments.extents() if extent.end > position]
    segments.close()
    _keep(disk, segments.log_id, tail, position, folder)
    return folder


def finish_cut(keeper: Keeper, disk: Disk, log: CommitLog) -> CopyState:
    """Carry out the recorded cut, if there is one; return the state of the copy.

    Args:
        keeper: The tables of the directory.
        disk: The directory.
        log: Its log, which is locked but not open yet.

    Raises:
        DamagedFile: The file with the state of the copy is damaged.
        OSError: The disk refused.
    """
    state = keeper.copy_state()
    if state.cut is not None:
        _cut_tail(disk, log, *state.cut)
        state = replace(state, cut=None)
        keeper.save_copy_state(state)
    return state


def _cut_tail(disk: Disk, log: CommitLog, last: int, position: int) -> None:
    """Cut the log after the span that begins at ``last``; harmless when repeated.

    If no span stays, ``last`` equals the position. The indexes of the cut files are removed,
    because they describe the cut part.
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
        # Before the cut, so that the mark never claims more than the log has.
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
    # Newest file first: if this is interrupted, the remaining files are still a valid log.
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
        # These bytes are still in the log; on a full disk their copies would only take up room.
        with suppress(OSError):
            for extent in extents:
                disk.remove(f"{folder}/{log_path_of(max(position, extent.start))}")
        raise
