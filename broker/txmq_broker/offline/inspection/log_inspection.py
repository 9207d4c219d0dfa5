"""The inspection of a log: its records, and each of its files together with the file's index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain

from txmq.errors import CorruptRecord, ForeignFile
from txmq.protocol.record import PREPARED, TYPE_BITS, Record
from txmq.protocol.span import AcceptedLoss, Decision, DecisionKind, Found
from txmq.protocol.topics import HALF_TOPIC
from txmq_broker.offline.directory import records_behind
from txmq_broker.offline.inspection.findings import (
    Finding,
    InspectionSummary,
    OffsetRange,
    Severity,
    joined_offsets,
    log_finding,
    offsets_in,
)
from txmq_broker.store.index_check import Indexed, QueueKey, RangeEntries, indexed
from txmq_broker.store.index_file import Chunk, IndexFile, path_of
from txmq_broker.store.log.reader import Gap, LogReader, WholeSpan
from txmq_broker.store.log.segments import Extent
from txmq_broker.store.queue_store import ENTRY

__all__ = ["FileInspection", "RecordInspection"]


class RecordInspection:
    """The state of queues and transactions after the records read so far.

    Args:
        log: The inspected log.
        summary: The counters.
        floors: Offsets below which queues were emptied, by topic and queue; ``None`` if they
            cannot be read.
        has_mark: True if the high-water mark can be read.
        progress: Called after each span, with the number of bytes of the log that were read.
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
        self.open_halves: set[int] = set()
        """The positions of undecided half messages."""
        self.lost_halves: dict[int, Finding] = {}
        """Half messages in damaged parts, each with the finding to report unless it is decided."""
        self.gaps: list[tuple[int, int]] = []
        """The damaged parts so far, by start and end."""
        self.floors = floors
        self.progress = progress
        self._has_mark = has_mark
        self._decided_lost: set[int] = set()
        """Half messages in damaged parts that a decision names."""

    def take(self, found: Found, position: int, span: WholeSpan) -> Iterator[Finding]:
        """Count a record, and check its references to other records."""
        if isinstance(found, Decision):
            self.summary.decisions += 1
            yield from self._decision(found, position, span)
        elif isinstance(found, AcceptedLoss):
            yield self._accepted(found, position)
        elif found.sys_flag & TYPE_BITS == PREPARED:
            self.summary.halves += 1
            self.open_halves.add(position)
        else:
            self.summary.messages += 1

    def _accepted(self, loss: AcceptedLoss, position: int) -> Finding:
        """Note an accepted loss, after which some queues continue at later offsets."""
        lost: list[OffsetRange] = []
        for topic, numbers in loss.offsets.items():
            for number, offset in numbers.items():
                end, _ = self.queues.get((topic, number), (0, 0))
                self.queues[topic, number] = (max(end, offset), position)
                if 0 < end < offset:
                    lost.append(OffsetRange(topic, number, end, offset - 1))
        return log_finding(
            "loss-accepted",
            Severity.NOTE,
            f"an operator accepted a loss here, and the queues go on behind it: {loss.reason}",
            start=self.log.extent_at(position).start,
            position=position,
            offsets=lost,
        )

    def _decision(self, decision: Decision, position: int, span: WholeSpan) -> Iterator[Finding]:
        half = decision.half_position
        known = half in self.open_halves
        lost_in = next((gap for gap in self.gaps if gap[0] <= half < gap[1]), None)
        if decision.kind is not DecisionKind.PARKED:
            self.open_halves.discard(half)
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
        yield log_finding(
            kind,
            Severity.DAMAGE if lost_in is None else Severity.LOSS,
            f"a decision ({decision.kind.name}) names the half message at position {half}, "
            f"offset {decision.half_offset}: {text}",
            start=self.log.extent_at(position).start,
            position=position,
            cut_at=span.position if is_needed else None,
        )

    def follow(self, entry: Indexed, position: int, span: WholeSpan) -> Iterator[Finding]:
        """Check that the offsets of a queue have no gaps and no duplicates."""
        topic, number = entry.queue
        known = self.queues.get(entry.queue)
        if known is None:
            expected, last = self._first_offset(entry), self.log.start
        else:
            expected, last = known
        self.queues[entry.queue] = (max(expected, entry.offset + 1), position)
        if entry.offset == expected:
            return
        finding = log_finding(
            "offset-repeated",
            Severity.DAMAGE,
            f"offset {entry.offset} of {topic}/{number} comes after {expected - 1}: "
            "the offset was given twice",
            start=self.log.extent_at(position).start,
            position=position,
            offsets=[OffsetRange(topic, number, entry.offset, entry.offset)],
            # The broker lets a queue begin anywhere.
            cut_at=None if known is None else span.position,
        )
        if entry.offset > expected:
            gaps = [start for start, end in self.gaps if end > last and start < position]
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
        if self.floors is None or self._has_mark:
            return entry.offset  # The mark records the log's beginning.
        # The log may still have older messages of a deleted topic.
        return min(self.floors.get(entry.queue[0], {}).get(entry.queue[1], 0), entry.offset)

    def note_lost_half(self, position: int, gap: Gap) -> None:
        """Record an unreadable half message, which may still be open."""
        if position in self._decided_lost:
            return
        self.lost_halves[position] = log_finding(
            "open-half-lost",
            Severity.LOSS,
            f"the half message of an open transaction lies in the damaged part at position "
            f"{gap.position}; no producer can be asked about it, so the broker parks the "
            "transaction: restore the file from a backup, or find out what became of the "
            "transaction, and roll it back (txmq tx rollback)",
            start=gap.extent.start,
            position=position,
        )

    def find_half(self, position: int) -> tuple[Record, bytes] | None:
        """The half message at a position, or ``None`` if the log is damaged there."""
        if any(start <= position < end for start, end in self.gaps):
            return None
        return self.log.record_at(position)

    def count_span(self, span: WholeSpan) -> None:
        """Count a span that was read."""
        self.summary.spans += 1
        self.summary.epoch = max(self.summary.epoch, span.epoch)
        self.progress(span.end - span.position)


def _range_text(first: int, last: int) -> str:
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


class FileInspection:
    """The inspection of one file of the log and its index."""

    def __init__(
        self, records: RecordInspection, index: IndexFile | None, extent: Extent, *, is_newest: bool
    ) -> None:
        self._records = records
        self._log = records.log
        self._extent = extent
        self._index_path = path_of(extent.start)
        self._is_newest = is_newest
        self._index = index
        self._chunks: list[Chunk] = []
        self._next = 0
        self._entries = RangeEntries(self._log)
        self._lost: list[tuple[QueueKey, int, int]] = []
        self._indexed_to = extent.start
        self._differences: list[str] = []
        self.beyond: list[tuple[str, Chunk]] = []
        """Chunks of the index that cover positions after the log's end, with the file's path."""
        self.lost_behind: list[OffsetRange] = []
        """The messages after the log's end, according to these chunks."""
        self.torn_at: int | None = None
        """The position in this file at which a crash ended the log."""

    def run(self) -> Iterator[Finding]:
        """All findings about the file."""
        index_findings = list(self._open_index())
        gaps: list[Gap] = []
        findings: list[Finding] = []
        torn: Gap | None = None
        for piece in self._log.pieces(self._extent):
            self._compare_to(piece.position)
            if isinstance(piece, WholeSpan):
                findings += self._span(piece)
                continue
            if piece.is_torn and piece.position >= self._indexed_to:
                torn, self.torn_at = piece, piece.position
                break
            self._records.gaps.append((piece.position, piece.end))
            self._records.progress(piece.size)
            gaps.append(piece)
        self._compare_to(self._extent.end if torn is None else torn.position)
        yield from self._gap_findings(gaps)
        yield from findings
        if torn is not None:
            yield from self._torn(torn)
        has_damage = bool(gaps or findings)
        for finding in [*index_findings, *self._disagreement()]:
            if has_damage and finding.remove:
                finding.remove = None
                finding.text += (
                    "; but the log itself is damaged there too: keep the index until the log "
                    "is repaired, the broker may need it to pass over the damage"
                )
            yield finding

    # The index

    def _open_index(self) -> Iterator[Finding]:
        index = self._index
        if index is None:
            return
        reach = min(self._extent.end, self._log.reach(self._extent))
        try:
            usable = index.load(reach)
        except ForeignFile as error:
            self._index = None
            yield Finding(
                kind="foreign-file",
                severity=Severity.DAMAGE,
                file=self._index_path,
                text=f"{error}; an index can also be deleted, the broker makes it again",
                refuses_start=True,
                remove=self._index_path,
            )
            return
        self.beyond += [(self._index_path, chunk) for chunk in index.beyond]
        self._chunks = sorted([*usable, *index.beyond], key=lambda chunk: chunk.at)
        if usable:
            self._indexed_to = usable[-1].part.end
        is_bad = False
        for chunk in self._chunks:
            if not index.is_whole(chunk):
                is_bad = True
                yield self._index_damage(chunk.at, chunk.size)
        read = self._chunks[-1].at + self._chunks[-1].size if self._chunks else 0
        size = index.file.size()
        if size > read and not is_bad:
            if self._is_newest and index.is_unfinished(read):
                yield Finding(
                    kind="index-torn",
                    severity=Severity.NOTE,
                    file=self._index_path,
                    offset=read,
                    size=size - read,
                    text="a crash left the last entry of the index unfinished; the broker makes it "
                    "again from the log when it starts",
                )
            else:
                yield self._index_damage(read, size - read)
        ahead = [chunk for chunk in index.beyond if chunk.part.end > self._log.end]
        self.lost_behind += joined_offsets(self._entries_behind(ahead, self._log.end))

    def _index_damage(self, offset: int, size: int) -> Finding:
        return Finding(
            kind="index-damaged",
            severity=Severity.DAMAGE,
            file=self._index_path,
            offset=offset,
            size=size,
            text=f"{size} bytes of the index differ from what was written; nothing is lost: delete "
            "the file, and the broker makes it again from the log when it starts",
            remove=self._index_path,
        )

    def _compare_to(self, position: int) -> None:
        """Compare the chunks that end at or before a position."""
        while self._index is not None and self._next < len(self._chunks):
            chunk = self._chunks[self._next]
            if chunk.part.end > position:
                return
            self._next += 1
            entries, self._entries = self._entries, RangeEntries(self._log)
            gaps = [
                gap
                for gap in self._records.gaps
                if gap[0] < chunk.part.end and gap[1] > chunk.part.start
            ]
            with suppress(CorruptRecord):
                result = entries.compare(self._index, chunk, gaps, self._records.floors or {})
                self._differences += result.differences
                self._lost += result.lost

    def _disagreement(self) -> Iterator[Finding]:
        if self._differences:
            count = len(self._differences)
            yield Finding(
                kind="index-disagrees",
                severity=Severity.DAMAGE,
                file=self._index_path,
                text=f"the index disagrees with the log in {count} places; the first: "
                f"{self._differences[0]}; delete the file, and the broker makes it again from the "
                "log when it starts",
                remove=self._index_path,
            )

    def _entries_behind(self, chunks: list[Chunk], end: int) -> Iterator[tuple[str, int, int, int]]:
        """The offsets in chunks whose records end after a position."""
        assert self._index is not None, "the chunks were found in it"
        for chunk in chunks:
            for run, block in self._index.blocks(chunk):
                with suppress(CorruptRecord):
                    data = block.file.read(block.at, block.entries * ENTRY.size)
                    for offset, entry in enumerate(ENTRY.iter_unpack(data), run.first):
                        if entry[0] + entry[1] > end:
                            yield run.topic, run.number, offset, offset

    # Spans and gaps

    def _span(self, span: WholeSpan) -> list[Finding]:
        records = self._records
        records.count_span(span)
        findings: list[Finding] = []
        is_covered = self._next < len(self._chunks)
        try:
            for found, position, data in span.found():
                findings += records.take(found, position, span)
                if is_covered:
                    self._entries.note(found, position)
                for entry in indexed(self._records.find_half, found, position, data):
                    findings += records.follow(entry, position, span)
                    if is_covered:
                        self._entries.add(entry)
        except CorruptRecord as error:
            findings.append(self._broken_record(span, error.position, error.reason))
        for finding in findings:
            if finding.cut_at is not None and finding.cut_at >= self._indexed_to:
                finding.refuses_start = True
        return findings

    def _broken_record(self, span: WholeSpan, position: int, reason: str) -> Finding:
        return log_finding(
            "record-broken",
            Severity.DAMAGE,
            f"the span at {span.position} has the right checksum, and a record in it cannot be "
            f"read: {reason}; the broker wrote it that way, please report it",
            start=self._extent.start,
            position=position,
            size=span.end - span.position,
            cut_at=span.position,
        )

    def _gap_findings(self, gaps: list[Gap]) -> Iterator[Finding]:
        for gap in gaps:
            lost = [item for item in self._lost if gap.position <= item[2] < gap.end]
            ranges = joined_offsets((*queue, offset, offset) for queue, offset, _ in lost)
            for queue, _, position in lost:
                if queue == (HALF_TOPIC, 0):
                    self._records.note_lost_half(position, gap)
            if not lost and gap.end > self._indexed_to:
                _, ranges = offsets_in(self._log.readable(gap), self._records.find_half)
            is_known, kind = bool(lost), self._gap_kind(gap)
            guess = "; their names are read from the damaged bytes" if ranges and not lost else ""
            is_foreign = gap.foreign is not None and gap.position == gap.extent.start
            refuses = gap.end > self._indexed_to or gap.missing > 0 or is_foreign
            yield log_finding(
                kind,
                Severity.LOSS if kind == "file-cut" else Severity.DAMAGE,
                self._gap_text(gap, refuses=refuses, is_known=is_known) + guess,
                start=self._extent.start,
                position=gap.position,
                size=gap.size,
                offsets=ranges,
                refuses_start=refuses,
                cut_at=gap.position,
            )

    @staticmethod
    def _gap_kind(gap: Gap) -> str:
        if gap.foreign is not None:
            return "foreign-span" if gap.position > gap.extent.start else "foreign-file"
        return "file-cut" if gap.missing else "span-damaged"

    def _gap_text(self, gap: Gap, *, refuses: bool, is_known: bool) -> str:
        if gap.foreign is not None:
            text = f"{gap.size} bytes belong to the log {gap.foreign:016x} of another broker"
        elif gap.missing:
            text = (
                f"the file ends at position {gap.end - gap.missing}, and the log goes on at "
                f"{gap.end}: {gap.missing} bytes are missing"
            )
        elif gap.is_torn:
            text = (
                f"{gap.size} bytes are damaged: their checksum is wrong, and the index knows them"
            )
        elif gap.proof is None:
            text = f"the disk cannot read {gap.size} bytes"
        else:
            text = (
                f"{gap.size} bytes are damaged: their checksum is wrong, and a later write, at "
                f"{gap.proof}, found them whole on the disk"
            )
        if refuses:
            return (
                f"{text}; the broker does not start: restore the file from a backup, or cut the "
                "log there (txmq log verify --repair) to keep what precedes and lose what follows"
            )
        known = "these messages" if is_known else "messages that lie there"
        return (
            f"{text}; the broker starts and serves all but {known}: restore the file from a "
            "backup, or have each group skip them (txmq group skip); --repair leaves them alone"
        )

    def _torn(self, gap: Gap) -> Iterator[Finding]:
        size = self._log.end - gap.position
        behind = chain(
            self._log.readable(gap), records_behind(self._log, gap.end, with_damaged=True)
        )
        records, offsets = offsets_in(behind, self._records.find_half)
        self._records.progress(size)
        held = f"{records} records can be read in it" if records else "no record in it can be read"
        yield log_finding(
            "torn-tail",
            Severity.NOTE,
            f"a crash left {size} bytes unfinished; {held}. With flush = sync nothing of it was "
            "acknowledged; with flush = async it may have been. The broker cuts it when it starts",
            start=self._extent.start,
            position=gap.position,
            size=size,
            offsets=offsets,
        )
