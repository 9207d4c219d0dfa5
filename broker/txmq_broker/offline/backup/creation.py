"""The creation of a backup from a directory whose broker may be running.

The broker's directory is only read. The small tables are read before the end of the log is fixed,
so none of them refers to a later position. A pass is repeated if topics or floors changed during
it, if the broker deleted a file that was to be copied, or if it took so long that the tables are
outdated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, TypeAlias, TypeVar

from txmq.errors import CorruptRecord, DamagedFile, DiskFull, ForeignFile, WriteFailed
from txmq.protocol.checksum import crc32
from txmq.protocol.span import FOLDER, HEAD_BYTES, read_head, start_in
from txmq.runtime.disk import NO_ROOM, Disk, File
from txmq_broker.access.audit import FOLDER as AUDIT_FOLDER
from txmq_broker.offline.backup.manifest import (
    LINKED_FOLDER,
    BackupManifest,
    BackupRefused,
    CopiedFile,
    ManifestFile,
    read_whole,
)
from txmq_broker.offline.directory import BrokerDirectory
from txmq_broker.store.index_file import FOLDER as INDEX_FOLDER
from txmq_broker.store.index_file import IndexFile, indexed_segments
from txmq_broker.store.index_file import path_of as index_path_of
from txmq_broker.store.log.commit_log import Mark
from txmq_broker.store.log.identity import known_log
from txmq_broker.store.log.segments import CUT_FOLDER, Extent, Segments, path_of
from txmq_broker.store.log.spans import REPAIR_COMMAND, durable_behind, span_at, whole_spans

__all__ = ["Creation", "Link", "check_history"]

_PASSES_MAX: Final = 12
"""The maximum number of passes over a directory that keeps changing."""

_RECENT_BYTES: Final = 32 * 1024 * 1024
"""After a pass that copies more than this, another pass reads the tables again."""

_SYNCED_AT_ONCE: Final = 4 * 1024 * 1024
"""Small, because the sync of a broker on the same disk waits until these bytes are written: with
4 MiB, the 99th percentile of its sends was 7 ms during a backup; with whole files it was 97 ms.
"""

_NOTED_AT_ONCE: Final = 64 * 1024 * 1024
"""An interrupted first backup copies at most this many bytes again."""

_LOOKS_MAX: Final = 5
"""How often to look at files that the broker deletes; it does so only a few times an hour."""

_KEPT_NAMES: Final = frozenset({"lock", "lost+found", "manifest.json.new", "manifest.json.old.new"})
"""Names in a folder that may receive a first backup."""

Link: TypeAlias = Callable[[str, str], None]
"""Gives a file of the broker's directory a second name in the backup's folder."""


T = TypeVar("T")


class _Listing(NamedTuple):
    """The log's files, and the high-water mark that was read just before."""

    extents: list[Extent]
    mark: Mark | None
    end: int

    @property
    def durable(self) -> int:
        return 0 if self.mark is None else self.mark.end


class Creation:
    """One run of ``txmq backup create``.

    Args:
        source: The broker's directory; nothing in it is changed.
        folder: The backup's folder, locked by the caller.
        link: Links complete files of the log instead of copying them, if given.
        progress: Called with the number of bytes of the log that were copied.

    Attributes:
        copied: The number of bytes of the log that this run copied or linked.
    """

    def __init__(
        self,
        source: Disk,
        folder: Disk,
        link: Link | None = None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._source = source
        self._folder = folder
        self._link = link
        self._progress = progress
        self._manifest_file = ManifestFile(folder)
        self._directory = BrokerDirectory(source, 0)
        self._known: dict[str, CopiedFile] = {}
        self._last: tuple[int, int] | None = None
        """The position and the checksum of the last span that was copied."""
        self._vanished = False
        self._saved = BackupManifest(log="", source="")
        """The manifest in the folder."""
        self.before: BackupManifest | None = None
        self.copied = 0

    def open(self, source: str) -> int:
        """Check both directories; return the number of bytes of the log to copy.

        Args:
            source: The name of the broker's directory for the manifest.

        Raises:
            BackupRefused: The source is not a broker's directory, the folder has other files and no
                backup, or its backup has another log, or another history of this log.
            StoreError: A file that names the log, or the manifest, is damaged.
            OSError: One of the two directories cannot be read.
        """
        found, _ = _despite_deletions(lambda: known_log(self._source))
        if found is None or not self._source.names("config"):
            raise BackupRefused(
                f"{source} is not the directory of a broker that was started: no file in it names "
                "a log"
            )
        self._directory = BrokerDirectory(self._source, found)
        before = self._manifest_file.load()
        if before is None:
            self._begin(source)
        elif before.log_id != found:
            raise BackupRefused(
                f"the folder has a backup of the log {before.log} of {before.source}, and "
                f"{source} has the log {found:016x}; use another folder"
            )
        else:
            self._continue(before, source)
        with self._segments() as segments:
            done = sum(self._reusable(path_of(extent.start)) for extent in segments.extents())
            return segments.end - segments.start - done

    def _continue(self, before: BackupManifest, source: str) -> None:
        with self._segments() as segments:
            try:
                check_history(before, self._source, segments, source)
            except BackupRefused:
                if before.taken_ms:
                    raise
                self._save(BackupManifest(log=before.log, source=source))
                return
        self._saved = before
        self.before = before if before.taken_ms else None
        self._known = {file.path: file for file in before.files}
        if before.end > before.start:
            self._last = before.last_span, before.last_checksum

    def _begin(self, source: str) -> None:
        strange = [name for name in self._folder.names("") if name not in _KEPT_NAMES]
        if strange:
            raise BackupRefused(
                f"the folder is not empty, and has no backup: it has {', '.join(strange[:5])}; use "
                "another folder"
            )
        # From now on the folder counts as ours, even if this run is interrupted.
        self._save(BackupManifest(log=self._log_name, source=source))

    def _save(self, manifest: BackupManifest) -> None:
        with _writing("the manifest"):
            # If this fails, the new manifest may still count, so its files stay.
            self._manifest_file.save(manifest)
        self._saved = manifest

    def _note_progress(self, files: list[CopiedFile], end: int) -> None:
        """Let a later run continue here if this first backup is interrupted."""
        if self.before is None and self._last is not None:
            last_span, checksum = self._last
            self._save(
                BackupManifest(
                    log=self._saved.log,
                    source=self._saved.source,
                    start=start_in(files[0].path.rpartition("/")[2]) or 0,
                    end=end,
                    last_span=last_span,
                    last_checksum=checksum,
                    files=files,
                )
            )

    def run(self, source: str, now_ms: Callable[[], int]) -> BackupManifest:
        """Bring the backup up to date. Until this returns, the earlier backup stays valid.

        Args:
            source: The name of the broker's directory for the manifest.
            now_ms: The wall clock.

        Raises:
            BackupRefused: The directory changes faster than it can be copied.
            CorruptRecord: The log is damaged.
            DamagedFile: A small table, or the earlier backup, is damaged.
            DiskFull: The backup's disk is full.
            WriteFailed: The backup's disk refused a write.
            OSError: The broker's directory cannot be read.
        """
        try:
            manifest = self._copy(source, now_ms)
        except (DiskFull, WriteFailed):
            # The files that this run copied would only take up room.
            with suppress(OSError):
                self._tidy()
            raise
        self._save(manifest)
        with _writing("the folder"):
            self._tidy()
        return manifest

    def _copy(self, source: str, now_ms: Callable[[], int]) -> BackupManifest:
        for number in range(1, _PASSES_MAX + 1):
            copied, self._vanished = self.copied, False
            taken_ms = now_ms()
            tables = self._tables()
            listing = self._listing()
            files, end = self._copy_log(listing)
            files += self._copy_audit()
            if self._vanished or not self._agree(tables):
                continue
            if self.copied - copied > _RECENT_BYTES and number < _PASSES_MAX:
                continue
            last_span, checksum = self._last or (0, 0)
            mark = listing.mark
            return BackupManifest(
                log=self._log_name,
                source=source,
                taken_ms=taken_ms,
                start=listing.extents[0].start if listing.extents else end,
                end=end,
                last_span=last_span,
                last_checksum=checksum,
                accepted=0 if mark is None else mark.accepted,
                is_async=mark is not None and mark.is_async,
                files=files,
                tables=tables,
            )
        raise BackupRefused(
            "the broker creates and deletes topics, or deletes files of its log, faster than they "
            "can be copied; try again later"
        )

    @property
    def _log_name(self) -> str:
        return f"{self._directory.log_id:016x}"

    # The small tables

    def _tables(self) -> dict[str, str]:
        directory = self._directory
        texts: dict[str, str] = {}
        for file in (*directory.tables, *directory.optional_tables):
            text = file.load(self._log_name)
            if text is not None:
                texts[file.path] = text.decode()
            elif file in directory.tables:
                raise BackupRefused(
                    f"{file.path} does not exist; wait until the broker has started, or verify "
                    "its directory: txmq log verify --data DIR"
                )
        return texts

    def _agree(self, tables: dict[str, str]) -> bool:
        """Return true if the topics, their changes and the floors have not changed.

        Then the broker deleted neither a topic nor a file of the log since they were read.
        """
        topics, _, _, floors = self._directory.tables
        changes, *_ = self._directory.optional_tables
        now = self._tables()
        return all(
            now.get(file.path) == tables.get(file.path) for file in (topics, changes, floors)
        )

    # The log

    @contextmanager
    def _segments(self) -> Iterator[Segments]:
        """The files of the log, opened only briefly: a file that the broker deletes takes up room
        until it is closed here.
        """
        segments = _despite_deletions(self._directory.open_segments)
        try:
            yield segments
        finally:
            segments.close()

    def _listing(self) -> _Listing:
        with self._directory.high_water() as high_water:
            high_water.load()
        with self._segments() as segments:
            extents = [extent for extent in segments.extents() if extent.end > extent.start]
            return _Listing(extents, high_water.mark, segments.end)

    def _copy_log(self, listing: _Listing) -> tuple[list[CopiedFile], int]:
        """Copy new data up to the last intact span; return all files, and the log's end."""
        files: list[CopiedFile] = []
        end = listing.extents[0].start if listing.extents else listing.end
        for extent in listing.extents:
            is_complete = extent is not listing.extents[-1]
            try:
                file = self._copy_file(extent, listing.durable, files, is_complete=is_complete)
            except FileNotFoundError:
                self._vanished = True
                continue
            if file.size:
                files.append(file)
                self._known[file.path] = file
            end = extent.start + file.size
            if end < extent.end:
                self._check_tail(end)
                break
            if is_complete:
                files += self._copy_index(extent)
                self._note_progress(files, end)
        return files, end

    def _reusable(self, path: str) -> int:
        """The number of bytes of a file that the backup has already."""
        known = self._known.get(path)
        return 0 if known is None or self._is_unwanted(known) else known.size

    def _is_unwanted(self, known: CopiedFile) -> bool:
        # Without --link a backup shares no bytes with the broker.
        return known.is_linked and self._link is None

    def _copy_file(
        self, extent: Extent, durable: int, before: list[CopiedFile], *, is_complete: bool
    ) -> CopiedFile:
        path = path_of(extent.start)
        known = self._known.get(path)
        if known is None or self._is_unwanted(known):
            known = CopiedFile(path=path, size=0, checksum=0)
        if known.size >= extent.end - extent.start:
            return known
        source = self._source.open(path)
        try:
            if self._link is not None and is_complete:
                file = self._copy_spans(source, extent, known, None, before)
                self._make_link(self._link, file.path, file.place)
            else:
                with self._continued(known) as target:
                    file = self._copy_spans(source, extent, known, target, before)
            if extent.start + file.size > durable:
                # Otherwise the broker could lose bytes in a power cut that the backup has, and the
                # next run would find another history.
                source.sync()
        finally:
            source.close()
        return file

    def _copy_spans(
        self,
        source: File,
        extent: Extent,
        known: CopiedFile,
        target: File | None,
        before: list[CopiedFile],
    ) -> CopiedFile:
        """Copy the whole spans that follow the known ones; without a target only read them."""
        size, checksum = known.size, known.checksum
        synced = noted = size
        log_id = self._directory.log_id
        for piece, head in whole_spans(source, extent, extent.start + size, log_id):
            at, size, checksum = size, size + len(piece), crc32(piece, checksum)
            if target is not None:
                with _writing(known.place):
                    target.write(at, piece)
                    if size - synced >= _SYNCED_AT_ONCE:
                        target.sync()
                        synced = size
            self._last = head.position, head.checksum
            self.copied += len(piece)
            self._progress(len(piece))
            if synced == size and size - noted >= _NOTED_AT_ONCE:
                part = CopiedFile(path=known.path, size=size, checksum=checksum)
                self._note_progress([*before, part], extent.start + size)
                noted = size
        is_linked = target is None
        return CopiedFile(path=known.path, size=size, checksum=checksum, is_linked=is_linked)

    @staticmethod
    def _make_link(link: Link, path: str, place: str) -> None:
        try:
            link(path, place)
        except FileNotFoundError:
            raise  # The broker has just deleted it.
        except OSError as error:
            raise WriteFailed(
                f"{path} cannot be linked: {error.strerror}; --link needs a folder on the file "
                "system of the broker's directory"
            ) from error

    @contextmanager
    def _continued(self, known: CopiedFile) -> Iterator[File]:
        """A file of the backup, opened to append to its known bytes; synced at the end."""
        with _writing(known.place):
            target = self._folder.open(known.place, create=True)
            try:
                size = target.size()
                if size > known.size:
                    # An interrupted run left the surplus.
                    target.truncate(known.size)
            except BaseException:
                target.close()
                raise
        try:
            if size < known.size:
                raise DamagedFile(
                    known.place,
                    f"it has {size} bytes, and the manifest says {known.size}: the backup is "
                    "damaged. See what is left with txmq backup verify, and use another folder",
                )
            yield target
            with _writing(known.place):
                target.sync()
        finally:
            target.close()

    def _copy_index(self, extent: Extent) -> list[CopiedFile]:
        """Copy the index of a complete file of the log, so that a restored broker starts quickly.

        The broker rebuilds a missing index. So an index is left out if it is damaged or does not
        cover the whole file yet.
        """
        path = index_path_of(extent.start)
        if path in self._known:
            return [self._known[path]]
        if extent.start not in indexed_segments(self._source):
            return []
        try:
            with self._directory.index(extent.start) as index:
                file = self._copy_chunks(path, index, extent)
        except (OSError, ForeignFile):
            return []
        if file is None:
            return []
        self._known[path] = file
        return [file]

    def _copy_chunks(self, path: str, index: IndexFile, extent: Extent) -> CopiedFile | None:
        chunks = index.load(extent.end)
        if not chunks or chunks[-1].part.end != extent.end or not all(map(index.is_whole, chunks)):
            return None
        with self._continued(CopiedFile(path=path, size=0, checksum=0)) as target:

            def write(place: int, data: bytes) -> None:
                with _writing(path):
                    target.write(place, data)

            size, checksum = read_whole(index.file, index.size, write)
        return CopiedFile(path=path, size=size, checksum=checksum) if size == index.size else None

    def _check_tail(self, end: int) -> None:
        """Make sure that only a torn write, or one in progress, follows the last intact span.

        Raises:
            CorruptRecord: A later span declares these bytes durable.
        """
        # The first look may see a write in progress, then a later one that declares it durable.
        for _ in range(2):
            with self._segments() as segments:
                if segments.start > end:
                    self._vanished = True
                    return
                if span_at(segments, end, segments.extent_at(end).end) is not None:
                    return
                proof = durable_behind(segments, end)
                if proof is None:
                    return
        raise CorruptRecord(
            end,
            f"a later write, at {proof}, found it whole on the disk; nothing of it is backed up; "
            f"repair the log first: {REPAIR_COMMAND}",
        )

    # The audit

    def _copy_audit(self) -> list[CopiedFile]:
        files = []
        for name in self._source.names(AUDIT_FOLDER):
            path = f"{AUDIT_FOLDER}/{name}"
            known = self._known.get(path) or CopiedFile(path=path, size=0, checksum=0)
            with suppress(FileNotFoundError):
                source = self._source.open(path)
                try:
                    known = self._copy_lines(known, source)
                finally:
                    source.close()
            if known.size:
                files.append(known)
                self._known[path] = known
        return files

    def _copy_lines(self, known: CopiedFile, source: File) -> CopiedFile:
        data = source.read(known.size, max(0, source.size() - known.size))
        data = data[: data.rfind(b"\n") + 1]
        if not data:
            return known
        with self._continued(known) as target, _writing(known.place):
            target.write(known.size, data)
        checksum = crc32(data, known.checksum)
        return CopiedFile(path=known.path, size=known.size + len(data), checksum=checksum)

    # The folder

    def _tidy(self) -> None:
        """Delete files that the manifest does not name, and surplus bytes of those it does name."""
        kept = {file.place: file for file in self._saved.files}
        for folder in (FOLDER, INDEX_FOLDER, AUDIT_FOLDER, f"{LINKED_FOLDER}/{FOLDER}"):
            for name in self._folder.names(folder):
                file = kept.get(f"{folder}/{name}")
                if file is None:
                    self._folder.remove(f"{folder}/{name}")
                elif not file.is_linked:
                    with self._continued(file):
                        pass


def _despite_deletions(look: Callable[[], T]) -> T:
    """Look at the files of the log; look again if the broker has just deleted the oldest one."""
    for _ in range(_LOOKS_MAX - 1):
        with suppress(FileNotFoundError):
            return look()
    return look()


@contextmanager
def _writing(what: str) -> Iterator[None]:
    """Raise write errors that name the backup's disk.

    Raises:
        DiskFull: The disk is full.
        WriteFailed: The disk refused.
    """
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFull(f"the disk of the backup is full: {error}") from error
        raise WriteFailed(f"{what} cannot be written: {error}") from error


def check_history(before: BackupManifest, disk: Disk, segments: Segments, source: str) -> None:
    """Make sure that a log continues the one in a backup.

    Args:
        before: The backup.
        disk: The directory of the log.
        segments: The log.
        source: The name of the directory, for the error.

    Raises:
        BackupRefused: The log does not continue the one in the backup.
    """
    mark, last = before.mark, before.last_span
    has_end = before.end <= segments.end
    if has_end and (
        mark is None
        or last < segments.start
        or mark.is_of(read_head(segments.read(last, HEAD_BYTES), 0, last))
    ):
        return
    if folder := _cut_with(before, disk):
        raise BackupRefused(
            f"{source} cut its log at position {folder.partition('-')[0]}, because the leader of "
            f"its set had another history, and the backup reaches position {before.end}: it has "
            "messages that were never acknowledged, or that an operator gave up. "
            f"{CUT_FOLDER}/{folder} in {source} has them too; move the backup away and create it "
            "again"
        )
    if not has_end:
        raise BackupRefused(
            f"the backup reaches position {before.end} of the log, and the log in {source} ends at "
            f"{segments.end}: it lost its end, or an older copy was restored there. The backup may "
            "have messages that it lacks: keep it, and use another folder"
        )
    raise BackupRefused(
        f"the log in {source} continues differently at position {before.last_span} than the "
        "one in the backup: an older copy was restored there. The backup may have messages "
        "that it lacks: keep it, and use another folder"
    )


def _cut_with(before: BackupManifest, disk: Disk) -> str:
    """The side folder of the cut that removed the backup's last span; empty if there is none."""
    for folder in disk.names(CUT_FOLDER):
        inside = f"{CUT_FOLDER}/{folder}/{FOLDER}"
        for name in disk.names(inside):
            start = start_in(name)
            if start is None or start > before.last_span:
                continue
            with suppress(OSError):
                file = disk.open(f"{inside}/{name}")
                try:
                    head = read_head(
                        file.read(before.last_span - start, HEAD_BYTES), 0, before.last_span
                    )
                finally:
                    file.close()
                if before.mark is not None and before.mark.is_of(head):
                    return folder
    return ""
