"""The inspection of one file of the log together with its index file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from txmq.errors import CorruptRecord, ForeignFile
from txmq.protocol.span import Found
from txmq.protocol.topics import HALF_TOPIC
from txmq_broker.offline.inspection.findings import Finding, OffsetRange, Severity, joined_offsets
from txmq_broker.offline.inspection.record_inspection import RecordInspection
from txmq_broker.store.index_check import QueueKey, RangeEntries, indexed
from txmq_broker.store.index_file import Chunk, IndexFile, path_of
from txmq_broker.store.log.reader import Gap, WholeSpan
from txmq_broker.store.log.segments import Extent
from txmq_broker.store.log.segments import path_of as log_path_of
from txmq_broker.store.queue_store import ENTRY

__all__ = ["FileInspection"]


class FileInspection:
    """The inspection of one file of the log and its index."""

    def __init__(
        self, records: RecordInspection, index: IndexFile | None, extent: Extent, *, is_newest: bool
    ) -> None:
        self._records = records
        self._log = records.log
        self._extent = extent
        self._path = log_path_of(extent.start)
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
        try:
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
                self._records.note_gap(piece)
                self._records.skip(piece.size)
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
        finally:
            if self._index is not None:
                self._index.file.close()

    # The index

    def _open_index(self) -> Iterator[Finding]:
        index = self._index
        if index is None:
            return
        reach = min(self._extent.end, self._log.reach(self._extent))
        try:
            usable = index.load(reach)
        except ForeignFile as error:
            index.file.close()
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
        """Compare the chunks that end by a position."""
        while self._index is not None and self._next < len(self._chunks):
            chunk = self._chunks[self._next]
            if chunk.part.end > position:
                return
            self._next += 1
            entries, self._entries = self._entries, RangeEntries(self._log)
            gaps = self._records.gaps_in(chunk.part.start, chunk.part.end)
            with suppress(CorruptRecord):
                result = entries.compare(self._index, chunk, gaps, self._records.floors)
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
        return Finding(
            kind="record-broken",
            severity=Severity.DAMAGE,
            file=self._path,
            position=position,
            offset=position - self._extent.start,
            size=span.end - span.position,
            text=f"the span at {span.position} has the right checksum, and a record in it cannot "
            f"be read: {reason}; the broker wrote it so, please report it",
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
                entries = (
                    entry
                    for found, position, data in self._log.readable(gap)
                    for entry in indexed(self._records.find_half, found, position, data)
                )
                ranges = joined_offsets(
                    (*entry.queue, entry.offset, entry.offset) for entry in entries
                )
            is_known, kind = bool(lost), self._gap_kind(gap)
            guess = "; their names are read from the damaged bytes" if ranges and not lost else ""
            is_foreign = gap.foreign is not None and gap.position == gap.extent.start
            refuses = gap.end > self._indexed_to or gap.missing > 0 or is_foreign
            yield Finding(
                kind=kind,
                severity=Severity.LOSS if kind == "file-cut" else Severity.DAMAGE,
                file=self._path,
                position=gap.position,
                offset=gap.position - self._extent.start,
                size=gap.size,
                offsets=ranges,
                text=self._gap_text(gap, refuses=refuses, is_known=is_known) + guess,
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
        end = self._log.end
        records = 0

        def places() -> Iterator[tuple[str, int, int, int]]:
            nonlocal records
            for found, position, data in self._behind(gap):
                records += 1
                for entry in indexed(self._records.find_half, found, position, data):
                    yield *entry.queue, entry.offset, entry.offset

        offsets = joined_offsets(places())
        self._records.skip(end - gap.position)
        held = f"{records} records can be read in it" if records else "no record in it can be read"
        yield Finding(
            kind="torn-tail",
            severity=Severity.NOTE,
            file=self._path,
            position=gap.position,
            offset=gap.position - self._extent.start,
            size=end - gap.position,
            offsets=offsets,
            text=f"a crash left {end - gap.position} bytes unfinished; {held}. With flush = sync "
            "nothing of it was acknowledged; with flush = async it may have been. The broker "
            "cuts it when it starts",
        )

    def _behind(self, gap: Gap) -> Iterator[tuple[Found, int, bytes]]:
        yield from self._log.readable(gap)
        for extent in self._log.extents():
            if extent.end <= gap.end:
                continue
            for piece in self._log.pieces(extent, max(gap.end, extent.start)):
                if piece.end <= gap.end:
                    continue
                if isinstance(piece, WholeSpan):
                    with suppress(CorruptRecord):
                        yield from piece.found()
                else:
                    yield from self._log.readable(piece)
