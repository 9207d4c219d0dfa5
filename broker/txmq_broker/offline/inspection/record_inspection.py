"""The records of a log under inspection: it counts each one and compares it with earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from txmq.protocol.record import PREPARED, TYPE_BITS, Record
from txmq.protocol.span import AcceptedLoss, Decision, DecisionKind, Found
from txmq_broker.offline.inspection.findings import (
    Finding,
    InspectionSummary,
    OffsetRange,
    Severity,
)
from txmq_broker.store.index_check import Indexed, QueueKey
from txmq_broker.store.log.reader import Gap, LogReader, WholeSpan
from txmq_broker.store.log.segments import path_of as log_path_of

__all__ = ["RecordInspection"]


class RecordInspection:
    """The queues and transactions, as the records read so far describe them.

    Args:
        log: The inspected log.
        summary: The counters.
        floors: Offsets below which queues were emptied, by topic and queue; ``None`` if they
            cannot be read.
        has_mark: True if the high-water mark can be read.
        progress: Called with the number of bytes of the log that were read, after each span.
    """

    def __init__(
        self,
        log: LogReader,
        summary: InspectionSummary,
        floors: Mapping[str, Mapping[int, int]] | None,
        *,
        has_mark: bool,
        progress: Callable[[int], None],
    ) -> None:
        self.log = log
        self.summary = summary
        self.queues: dict[QueueKey, tuple[int, int]] = {}
        """Each queue's next offset, and the position of its last message."""
        self.lost_halves: dict[int, Finding] = {}
        """Half messages in damaged parts, each with its finding if no decision follows."""
        self._floors = floors
        self._has_mark = has_mark
        self._progress = progress
        self._decided_lost: set[int] = set()
        """Half messages in damaged parts that a decision names."""
        self._open: dict[int, None] = {}
        """The positions of undecided half messages."""
        self._gaps: list[tuple[int, int]] = []

    @property
    def open_transactions(self) -> int:
        """Return the number of undecided half messages."""
        return len(self._open)

    def take(self, found: Found, position: int, span: WholeSpan) -> Iterator[Finding]:
        """Count a record, and check its references to other records."""
        if isinstance(found, Decision):
            self.summary.decisions += 1
            yield from self._decision(found, position, span)
        elif isinstance(found, AcceptedLoss):
            yield self._accepted(found, position)
        elif found.sys_flag & TYPE_BITS == PREPARED:
            self.summary.halves += 1
            self._open[position] = None
        else:
            self.summary.messages += 1

    def _accepted(self, loss: AcceptedLoss, position: int) -> Finding:
        """A loss that an operator accepted; some queues continue after it at later offsets."""
        lost: list[OffsetRange] = []
        for topic, numbers in loss.offsets.items():
            for number, offset in numbers.items():
                end, _ = self.queues.get((topic, number), (0, 0))
                self.queues[topic, number] = (max(end, offset), position)
                if 0 < end < offset:
                    lost.append(OffsetRange(topic, number, end, offset - 1))
        start = self.log.extent_at(position).start
        return Finding(
            kind="loss-accepted",
            severity=Severity.NOTE,
            file=log_path_of(start),
            position=position,
            offset=position - start,
            offsets=lost,
            text=f"an operator accepted a loss here, and the queues go on behind it: {loss.reason}",
        )

    def _decision(self, decision: Decision, position: int, span: WholeSpan) -> Iterator[Finding]:
        half = decision.half_position
        known = half in self._open
        lost_in = next((gap for gap in self._gaps if gap[0] <= half < gap[1]), None)
        if decision.kind is not DecisionKind.PARKED:
            self._open.pop(half, None)
            self.lost_halves.pop(half, None)
            if lost_in is not None:
                self._decided_lost.add(half)
        if known or half < self.log.start:
            return
        found = self.log.record_at(half)
        is_readable = found is not None and found[0].sys_flag & TYPE_BITS == PREPARED
        if lost_in is not None:
            kind = "decision-without-half"
            text = f"its half message lay in the damaged part at position {lost_in[0]}"
        elif is_readable and half < position:
            kind = "decision-repeated"
            text = "the transaction was decided before; a decision never changes"
        else:
            kind = "decision-without-half"
            text = "no half message lies there"
        # The broker reads the half message only if the decision put it into a queue.
        is_needed = decision.queue_offset >= 0 and found is None
        yield Finding(
            kind=kind,
            severity=Severity.DAMAGE if lost_in is None else Severity.LOSS,
            file=log_path_of(self.log.extent_at(position).start),
            position=position,
            offset=position - self.log.extent_at(position).start,
            text=f"a decision ({decision.kind.name}) names the half message at position {half}, "
            f"offset {decision.half_offset}: {text}",
            cut_at=span.position if is_needed else None,
        )

    def follow(self, entry: Indexed, position: int, span: WholeSpan) -> Iterator[Finding]:
        """Check that a queue's offsets have no gap and none twice."""
        topic, number = entry.queue
        known = self.queues.get(entry.queue)
        if known is None:
            expected, last = self._first_offset(entry), self.log.start
        else:
            expected, last = known
        self.queues[entry.queue] = (max(expected, entry.offset + 1), position)
        if entry.offset == expected:
            return
        start = self.log.extent_at(position).start
        finding = Finding(
            kind="offset-repeated",
            severity=Severity.DAMAGE,
            file=log_path_of(start),
            position=position,
            offset=position - start,
            offsets=[OffsetRange(topic, number, entry.offset, entry.offset)],
            text=f"offset {entry.offset} of {topic}/{number} comes after {expected - 1}: "
            "the offset was given twice",
            # The broker lets a queue begin anywhere.
            cut_at=None if known is None else span.position,
        )
        if entry.offset > expected:
            gaps = [start for start, end in self._gaps if end > last and start < position]
            if gaps:
                why = f"they lay in the damaged part at position {', '.join(map(str, gaps[:3]))}"
            elif known is None:
                why = "they lay in a file of the log that is missing"
            else:
                why = f"they ought to lie between positions {last} and {position}"
            finding.kind = "offsets-missing"
            finding.severity = Severity.LOSS
            finding.offsets = [OffsetRange(topic, number, expected, entry.offset - 1)]
            missing = _range_text(expected, entry.offset - 1)
            finding.text = f"{missing} of {topic}/{number} missing: {why}"
        yield finding

    def _first_offset(self, entry: Indexed) -> int:
        """The highest valid offset of a queue's first message in this log."""
        if self.log.start == 0:
            return 0
        if self._floors is None or self._has_mark:
            return entry.offset  # The mark records the log's beginning.
        # Older messages of a deleted topic may lie there.
        return min(self._floors.get(entry.queue[0], {}).get(entry.queue[1], 0), entry.offset)

    def note_gap(self, gap: Gap) -> None:
        """Record an unreadable part."""
        self._gaps.append((gap.position, gap.end))

    def note_lost_half(self, position: int, gap: Gap) -> None:
        """Record an unreadable half message, which may still be open."""
        if position in self._decided_lost:
            return
        start = gap.extent.start
        self.lost_halves[position] = Finding(
            kind="open-half-lost",
            severity=Severity.LOSS,
            file=log_path_of(start),
            position=position,
            offset=position - start,
            text=f"the half message of an open transaction lies in the damaged part at position "
            f"{gap.position}; no producer can be asked about it, so the broker parks the "
            "transaction: restore the file from a backup, or find out what became of the "
            "transaction, and roll it back (txmq tx rollback)",
        )

    def find_half(self, position: int) -> tuple[Record, bytes] | None:
        """The half message at a position, or ``None`` if the log is damaged there."""
        if any(start <= position < end for start, end in self._gaps):
            return None
        return self.log.record_at(position)

    def gaps_in(self, start: int, end: int) -> list[tuple[int, int]]:
        """The unreadable parts between two positions."""
        return [gap for gap in self._gaps if gap[0] < end and gap[1] > start]

    @property
    def floors(self) -> Mapping[str, Mapping[int, int]]:
        """Offsets below which queues were emptied."""
        return self._floors or {}

    def count_span(self, span: WholeSpan) -> None:
        """Count a span that was read."""
        self.summary.spans += 1
        self.summary.epoch = max(self.summary.epoch, span.epoch)
        self._progress(span.end - span.position)

    def skip(self, size: int) -> None:
        """Count skipped bytes."""
        self._progress(size)


def _range_text(first: int, last: int) -> str:
    return f"offset {first}" if first == last else f"offsets {first} to {last}"
