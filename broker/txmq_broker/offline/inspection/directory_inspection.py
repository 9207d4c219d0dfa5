"""The inspection of a stopped broker's directory: it finds all damage and all losses.

An inspection changes nothing. It reads the log once, span by span, so its memory grows with the
number of queues and open transactions, not with the log. To add a check, add a method that yields
findings to :class:`Inspection`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Final, TypeAlias

from txmq.errors import DamagedFile, ForeignFile, StoreError
from txmq.protocol.span import FOLDER, HEAD_BYTES, read_head, start_in
from txmq.runtime.disk import Disk
from txmq_broker.core.offsets import Offsets as GroupOffsets
from txmq_broker.core.topics import queue_counts
from txmq_broker.offline.directory import BrokerDirectory
from txmq_broker.offline.inspection.findings import (
    Finding,
    InspectionSummary,
    OffsetRange,
    Severity,
    joined_offsets,
    log_finding,
)
from txmq_broker.offline.inspection.log_inspection import FileInspection, RecordInspection
from txmq_broker.store import index_file as checkpoint
from txmq_broker.store.checked_file import CheckedFile
from txmq_broker.store.evidence import Evidence, Missing, QueueOffsets, compare
from txmq_broker.store.index_check import QueueKey
from txmq_broker.store.index_file import Chunk, indexed_segments, newest_indexed, path_of
from txmq_broker.store.log.commit_log import PATH as HIGH_WATER
from txmq_broker.store.log.commit_log import HighWater
from txmq_broker.store.log.identity import PATH as IDENTITY
from txmq_broker.store.log.identity import known_log
from txmq_broker.store.log.reader import LogReader
from txmq_broker.store.log.segments import Extent
from txmq_broker.store.log.segments import path_of as log_path_of
from txmq_broker.store.queue_store import ConsumeQueue

__all__ = ["Inspection"]

_DRAFT: Final = ".new"
"""The suffix of a small file while it is being written; a crash may leave it behind."""


QueueEnds: TypeAlias = Mapping[QueueKey, tuple[int, int]]
"""Each queue's next offset, and the position of its last message."""


class Inspection:
    """One inspection of a directory.

    Args:
        disk: The broker's directory, locked by the caller.
        progress: Called after each span, with the number of bytes of the log that were read.
    """

    _log: LogReader
    _high_water: HighWater

    def __init__(self, disk: Disk, progress: Callable[[int], None] = lambda _: None) -> None:
        self.summary = InspectionSummary()
        self._directory = BrokerDirectory(disk)
        self._beyond: list[tuple[str, Chunk]] = []
        """Index chunks that cover positions after the log's end, with their files."""
        self._lost_behind: list[OffsetRange] = []
        """The messages after the log's end, according to these chunks."""
        self._end: int | None = None
        self._disk = disk
        self._committed: QueueOffsets = {}
        self._topics: dict[str, int] = {}
        self._is_copy = False
        self._floors_end = 0
        self._progress = progress
        self._floors: Mapping[str, Mapping[int, int]] | None = {}

    def findings(self) -> Iterator[Finding]:
        """All findings, in the order of the log.

        Raises:
            OSError: The directory cannot be read.
        """
        for finding in self._all():
            self.summary.notes += finding.severity is Severity.NOTE
            self.summary.damages += finding.severity is Severity.DAMAGE
            self.summary.losses += finding.severity is Severity.LOSS
            yield finding

    def _all(self) -> Iterator[Finding]:
        yield from self._identity()
        yield from self._config_files()
        yield from self._strange_names()
        with self._directory.log() as self._log, self._directory.high_water() as self._high_water:
            yield from self._mark()
            if self._is_copy:
                mark = self._high_water.mark
                self._log.proven = 0 if mark is None else mark.end
            self.summary.start, self.summary.end = self._log.start, self._log.end
            yield from self._stray_indexes()
            records = RecordInspection(
                self._log,
                self.summary,
                self._floors,
                has_mark=self._high_water.mark is not None,
                progress=self._progress,
            )
            yield from self._log_files(records)
            yield from records.lost_halves.values()
            yield from self._evidence(records.queues)
            self.summary.open_transactions = len(records.open_halves)

    # The other files

    def _identity(self) -> Iterator[Finding]:
        try:
            known, is_kept = known_log(self._disk)
        except ForeignFile as error:
            yield _foreign(error.path, str(error))
            return
        if known is None and (self._disk.names(FOLDER) or self._disk.names("config")):
            yield Finding(
                kind="identity-missing",
                severity=Severity.LOSS,
                file=IDENTITY,
                text="no file says whose log this directory holds; the broker does not start: "
                "restore the directory from a backup",
                refuses_start=True,
            )
        elif known is not None and not is_kept:
            yield Finding(
                kind="identity-damaged",
                severity=Severity.DAMAGE,
                file=IDENTITY,
                text=f"the file is missing or damaged; nothing is lost: the other files name the "
                f"log {known:016x}, and the broker writes this file again when it starts",
            )

    def _mark(self) -> Iterator[Finding]:
        try:
            self._high_water.load()
        except ForeignFile as error:
            yield _foreign(error.path, str(error))
            return
        if self._high_water.mark is None and self._log.end > self._log.start:
            yield Finding(
                kind="mark-missing",
                severity=Severity.NOTE,
                file=HIGH_WATER,
                text="no note of how far the log reached can be read, so a cut of its end may go "
                "unnoticed; the broker writes it again",
            )
        places, mark = self._high_water.damaged_slots(), self._high_water.mark
        # A clean stop makes both slots durable; a power cut may tear the newer one.
        is_torn = len(places) == 1 and mark is not None and not mark.is_clean
        for place in places:
            yield Finding(
                kind="mark-torn" if is_torn else "mark-damaged",
                severity=Severity.NOTE if is_torn else Severity.DAMAGE,
                file=HIGH_WATER,
                offset=place,
                text="one of the two notes of how far the log reached is damaged; no message is "
                "lost, and the broker writes it again",
            )

    def _config_files(self) -> Iterator[Finding]:
        keeper = self._directory.keeper
        topics, groups, offsets, floors = self._directory.tables
        changes, copy_state, *of_names = self._directory.optional_tables

        def load_topics() -> None:
            self._topics = queue_counts(keeper.topics())

        def load_offsets() -> None:
            found = GroupOffsets()
            found.load(keeper.offsets())
            self._committed = found.highest()

        def load_copy_state() -> None:
            self._is_copy = keeper.copy_state().is_copy

        def load_floors() -> None:
            self._floors = None
            found = keeper.floors()
            self._floors, self._floors_end = found.floors, found.log_end

        loads: list[tuple[CheckedFile, Callable[[], object]]] = [
            (topics, load_topics),
            (groups, keeper.groups),
            (offsets, load_offsets),
            (floors, load_floors),
            (copy_state, load_copy_state),
        ]
        loads += [(file, partial(file.load, keeper.owner)) for file in of_names]
        for file, load in loads:
            try:
                load()
            except StoreError as error:
                yield _config_refusal(file.path, error)
            else:
                yield from _config_faults(file, keeper.owner)
                if file is topics and keeper.has_changes:
                    yield from _config_faults(changes, keeper.owner)

    def _strange_names(self) -> Iterator[Finding]:
        for name in self._disk.names(FOLDER):
            if start_in(name) is None:
                yield _stray(f"{FOLDER}/{name}", "no file of the log has such a name")
        known = {path_of(start) for start in indexed_segments(self._disk)}
        for name in self._disk.names(checkpoint.FOLDER):
            if f"{checkpoint.FOLDER}/{name}" not in known:
                yield _stray(f"{checkpoint.FOLDER}/{name}", "no index file has such a name")
        for name in self._disk.names("config"):
            if name.endswith(_DRAFT):
                yield _stray(f"config/{name}", "a crash left it while the file was being saved")

    def _stray_indexes(self) -> Iterator[Finding]:
        extents = self._log.extents()
        starts = {extent.start for extent in extents}
        for segment in indexed_segments(self._disk):
            if segment in starts:
                continue
            path = path_of(segment)
            with self._directory.index(segment) as index:
                size = index.file.size()
                try:
                    index.load(segment)
                except ForeignFile as error:
                    yield _foreign(path, str(error), remove=path)
                    continue
            if not size:
                yield _stray(path, "the broker deletes it when it starts")
                continue
            self._beyond += [(path, chunk) for chunk in index.beyond]
            is_between = bool(extents) and segment < extents[-1].start
            yield self._missing_file(segment, index.beyond, is_between=is_between)

    def _missing_file(self, segment: int, chunks: list[Chunk], *, is_between: bool) -> Finding:
        path = path_of(segment)
        end = chunks[-1].part.end if chunks else segment
        text = f"the file is missing: its index {path} says that the log had at least "
        text += f"{end - segment} bytes there; put the file back from a backup, or "
        is_refused = is_between or not chunks
        if is_refused:
            text += "delete the index to go on without these messages"
        else:
            text += "go on without these messages: txmq serve --accept-loss REASON"
        return Finding(
            kind="log-file-missing",
            severity=Severity.LOSS,
            file=log_path_of(segment),
            position=segment,
            size=end - segment,
            offsets=joined_offsets(
                (run.topic, run.number, run.first, run.first + run.entries - 1)
                for chunk in chunks
                for run in chunk.queues
                if run.entries
            ),
            text=text,
            refuses_start=True,
            remove=path if is_refused else None,
        )

    def _evidence(self, queues: QueueEnds) -> Iterator[Finding]:
        """Compare the log with every file that records its length, as the broker does."""
        start, reach = self._log.start, self._log.end
        end = reach if self._end is None else self._end
        extents = self._log.extents()
        newest = self._log.extent_at(end).start if extents else start
        mark = self._high_water.mark
        evidence = Evidence(
            mark, self._beyond, self._floors_end, self._committed, self._ends(queues)
        )
        missing = compare(evidence, start, end, reach, log_path_of(newest))
        if missing is not None:
            yield log_finding(
                "log-shorter",
                Severity.LOSS,
                f"the log is shorter than it was: {missing.describe(end)}; put the missing "
                "file back, or restore the directory from a backup; to go on without what is "
                "missing: txmq serve --accept-loss REASON",
                start=newest,
                position=end,
                size=missing.end - end or None,
                offsets=self._lost_behind or _lost_offsets(missing, queues),
                refuses_start=True,
                is_acceptable=True,
            )
        elif mark is not None and mark.checksum and mark.start >= start:
            head = read_head(self._log.read(mark.start, HEAD_BYTES), 0, mark.start)
            if not mark.is_of(head):
                yield log_finding(
                    "last-write-differs",
                    Severity.DAMAGE,
                    f"the last write that was durable there was another one, as {HIGH_WATER} "
                    "knows; the broker does not start: restore the file from a backup, or cut the "
                    "log there (txmq log verify --repair) to lose what follows",
                    start=self._log.extent_at(mark.start).start,
                    position=mark.start,
                    size=mark.end - mark.start,
                    refuses_start=True,
                    cut_at=mark.start,
                )

    def _ends(self, queues: QueueEnds) -> list[ConsumeQueue]:
        """Every queue that the broker would load when it starts, with its end."""
        floors = self._floors or {}
        names = dict.fromkeys(queues)
        for topic, numbers in floors.items():
            names |= dict.fromkeys((topic, number) for number in numbers)
        for topic, count in self._topics.items():
            names |= dict.fromkeys((topic, number) for number in range(count))
        found = []
        for topic, number in names:
            queue = ConsumeQueue(topic, number, floors.get(topic, {}).get(number, 0))
            end, _ = queues.get((topic, number), (0, 0))
            if end > queue.next_offset:
                queue.jump(end)
            found.append(queue)
        return found

    # The log

    def _log_files(self, records: RecordInspection) -> Iterator[Finding]:
        extents = self._log.extents()
        newest = newest_indexed(self._disk)
        indexed = set(indexed_segments(self._disk))
        self.summary.files = len(extents)
        for extent in extents:
            yield from self._leftover(extent)
            has_index = extent.start in indexed
            with self._directory.index(extent.start) if has_index else nullcontext() as index:
                file = FileInspection(records, index, extent, is_newest=extent.start == newest)
                yield from file.run()
            self._beyond += file.beyond
            self._lost_behind += file.lost_behind
            if file.torn_at is not None:
                self._end = file.torn_at
                return

    def _leftover(self, extent: Extent) -> Iterator[Finding]:
        file = self._disk.open(log_path_of(extent.start))
        try:
            surplus = extent.start + file.size() - extent.end
        finally:
            file.close()
        if surplus > 0:
            yield log_finding(
                "leftover",
                Severity.NOTE,
                f"{surplus} bytes lie behind position {extent.end}, where the next file begins: a "
                "failed write leaves that; the broker removes them when it starts",
                start=extent.start,
                position=extent.end,
                size=surplus,
            )


def _config_refusal(path: str, error: StoreError) -> Finding:
    return Finding(
        kind="foreign-file" if isinstance(error, ForeignFile) else "config-damaged",
        severity=Severity.DAMAGE,
        file=error.path if isinstance(error, DamagedFile) else path,
        text=f"{error}; the broker does not start",
        refuses_start=True,
    )


def _config_faults(file: CheckedFile, owner: str) -> Iterator[Finding]:
    """The faults of one copy while the other one is usable."""
    for path, fault in file.find_faults(owner):
        if not fault:
            yield Finding(
                kind="config-torn",
                severity=Severity.NOTE,
                file=path,
                text=f"it differs from {file.path}: a crash cut a save short; the broker repairs "
                "it when it starts",
            )
            continue
        other = file.predecessor if path == file.path else file.path
        yield Finding(
            kind="config-damaged",
            severity=Severity.DAMAGE,
            file=path,
            text=f"{fault}; {other} is whole and replaces it when the broker starts",
        )


def _foreign(path: str, text: str, remove: str | None = None) -> Finding:
    return Finding(
        kind="foreign-file",
        severity=Severity.DAMAGE,
        file=path,
        text=text,
        refuses_start=True,
        remove=remove,
    )


def _lost_offsets(missing: Missing, queues: QueueEnds) -> list[OffsetRange]:
    found = []
    for topic, numbers in missing.offsets.items():
        for number, offset in numbers.items():
            end, _ = queues.get((topic, number), (0, 0))
            if offset > end:
                found.append(OffsetRange(topic, number, end, offset - 1))
    return found


def _stray(path: str, why: str) -> Finding:
    return Finding(
        kind="stray-file",
        severity=Severity.NOTE,
        file=path,
        text=f"this file is not used: {why}",
    )
