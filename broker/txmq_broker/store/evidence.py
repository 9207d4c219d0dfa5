"""Evidence in other files about the log: its beginning, its end, and the assigned offsets.

A log whose newest file was cut looks like a shorter intact log. New messages would get offsets that
were assigned before, and groups with a later committed offset would miss those messages. So a start
compares the log with every file that records its length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from txmq.protocol.record import SMALLEST
from txmq.protocol.span import MARKER_BYTES
from txmq_broker.store.index_file import Chunk
from txmq_broker.store.log.commit_log import PATH as HIGH_WATER
from txmq_broker.store.log.commit_log import Mark
from txmq_broker.store.queue_store import ConsumeQueue

__all__ = ["Evidence", "Missing", "QueueOffsets", "compare", "new_offsets"]

_SHOWN: Final = 5
_SMALLEST: Final = min(SMALLEST, MARKER_BYTES)
"""Each assigned offset takes at least this many bytes of the log."""

QueueOffsets = Mapping[str, Mapping[int, int]]
"""Offsets by topic and queue."""


class Evidence(NamedTuple):
    """What files other than the log prove."""

    mark: Mark | None
    chunks: list[tuple[str, Chunk]]
    """The index chunks that cover positions after the end of the log, with their files."""
    floors_end: int
    """The position up to which the log was durable when the floors were saved."""
    committed: QueueOffsets
    """The highest offset that any group committed."""
    queues: Iterable[ConsumeQueue]
    """The queues, as restored from the log."""


class Missing(NamedTuple):
    """The part that the log has lost, according to the evidence."""

    front: tuple[int, int] | None
    """The start and end of the part that is missing at the beginning."""
    end: int
    """The position at which the log ended before; its current end if nothing is missing there."""
    proofs: tuple[str, ...]
    """The proofs, one sentence for each."""
    offsets: dict[str, dict[int, int]]
    """The next offset of each queue that is known to have lost messages."""
    is_of_log: bool
    """True if the mark, the floors or an index proves it; false if only committed offsets do."""

    def describe(self, end: int) -> str:
        """The loss in words, for a log that ends at a position."""
        parts = list(self.proofs)
        if self.end > end:
            parts.append(f"{self.end - end} bytes are missing")
        named = [
            f"{topic}/{number} up to offset {offset - 1}"
            for topic, numbers in sorted(self.offsets.items())
            for number, offset in sorted(numbers.items())
        ]
        if named:
            more = f" and {len(named) - _SHOWN} queues more" if len(named) > _SHOWN else ""
            parts.append(f"messages are missing in {', '.join(named[:_SHOWN])}{more}")
        return "; ".join(parts)


def compare(evidence: Evidence, start: int, end: int, reach: int, path: str) -> Missing | None:
    """Return the part that a log from ``start`` to ``end`` has lost; ``None`` if it is complete.

    Args:
        evidence: The facts from other files.
        start: The log's first byte.
        end: The position after its last intact span.
        reach: The position after its last byte; the bytes from ``end`` on are not a whole span.
        path: Its newest file, for messages.
    """
    ends = f"{path} is damaged at {end}" if reach > end else f"{path} ends at {end}"
    proofs: list[str] = []
    known_end, front, mark = end, None, evidence.mark
    if mark is not None and mark.oldest < start:
        front = (mark.oldest, start)
        proofs.append(f"the log begins at {start}, and {HIGH_WATER} knows it from {mark.oldest} on")
    if mark is not None and mark.end > end:
        known_end = mark.end
        how = "the broker was stopped cleanly" if mark.is_clean else "it was durable"
        proofs.append(f"{ends}, and {HIGH_WATER} knows that {how} at {mark.end}")
    accepted = 0 if mark is None else mark.accepted
    if evidence.floors_end > max(known_end, accepted):
        known_end = evidence.floors_end
        proofs.append(f"{ends}, and config/floors.json knows that it was durable at {known_end}")
    offsets: dict[str, dict[int, int]] = {}
    for index, chunk in evidence.chunks:
        if chunk.part.end <= end:
            continue
        if chunk.part.end > known_end or not proofs:
            proofs.append(f"{ends}, and {index} covers it to {chunk.part.end}")
        known_end = max(known_end, chunk.part.end)
        for run in chunk.queues:
            _raise(offsets, run.topic, run.number, run.first + run.entries)
    is_of_log = bool(proofs)
    proofs += _compare_offsets(evidence, offsets)
    if not proofs:
        return None
    return Missing(front, known_end, tuple(proofs[:_SHOWN]), offsets, is_of_log)


def _compare_offsets(evidence: Evidence, offsets: dict[str, dict[int, int]]) -> list[str]:
    proofs: list[str] = []
    for queue in evidence.queues:
        name = f"{queue.topic}/{queue.number}"
        committed = evidence.committed.get(queue.topic, {}).get(queue.number, 0)
        if committed > queue.max_offset:
            _raise(offsets, queue.topic, queue.number, committed)
            proofs.append(
                f"a group has consumed {name} up to offset {committed}, and the log ends it at "
                f"{queue.max_offset}"
            )
    return proofs


def new_offsets(missing: Missing, evidence: Evidence, end: int) -> dict[str, dict[int, int]]:
    """Return the next offset of each queue, so that no offset is assigned twice.

    After the last index chunk, no file names the queues of the lost messages. So the next offset of
    each queue assumes that all lost bytes held messages of this queue.
    """
    known_to = max([chunk.part.end for _, chunk in evidence.chunks], default=end)
    unknown = max(0, missing.end - max(end, known_to))
    lost = -(-unknown // _SMALLEST)
    found = {topic: dict(numbers) for topic, numbers in missing.offsets.items()}
    before = 0 if missing.front is None else -(-(missing.front[1] - missing.front[0]) // _SMALLEST)
    for queue in evidence.queues if lost or before else ():
        # If the log has messages of a queue, their offsets show the number of earlier messages.
        is_empty = queue.next_offset == queue.floor
        _raise(found, queue.topic, queue.number, queue.next_offset + (before if is_empty else 0))
    for numbers in found.values():
        for number in numbers:
            numbers[number] += lost
    return found


def _raise(offsets: dict[str, dict[int, int]], topic: str, number: int, offset: int) -> None:
    numbers = offsets.setdefault(topic, {})
    numbers[number] = max(numbers.get(number, 0), offset)
