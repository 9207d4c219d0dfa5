"""Index files: one for each segment of the log, a row of chunks that each cover a part of it.

A chunk holds the consume-queue entries and keys of its part, the half messages that were opened,
decided or parked in it, and the states of the lines of delayed messages at its end. The last intact
chunk of a file shows how far that segment is indexed, so the index files are the only checkpoint.
If they are deleted, a start scans the log and rebuilds them.

    chunk   head · queues · lines · entries · keys · halves
    head    size, magic, checksum of head, queues and lines, the log, checksum of the rest,
            from, to, not before, not after, number of queues, number of lines, number of keys,
            number of halves opened, closed, parked
    queue   length of topic, topic, queue number, first offset, count (0 if it only jumped)
    line    number, due time and offset of the last message that left, oldest offset that may wait
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from struct import Struct
from typing import Final, NamedTuple

from txmq.errors import ForeignFile
from txmq.protocol.checksum import crc32
from txmq.protocol.span import name_of
from txmq.runtime.disk import NO_ROOM, Disk, File
from txmq_broker.store.delay_lines import LineState
from txmq_broker.store.pending_transactions import Changes
from txmq_broker.store.queue_store import (
    ENTRY,
    ENTRY_BYTES,
    Block,
    ConsumeQueue,
    KeyIndex,
    KeyRun,
    SealedBytes,
)

__all__ = [
    "Chunk",
    "IndexFile",
    "LogRange",
    "draft",
    "indexed_segments",
    "newest_indexed",
    "path_of",
]

FOLDER: Final = "index"
SUFFIX: Final = ".idx"
MAGIC: Final = 0x7478_697A

_HEAD: Final = Struct(">IIIQIqqqqIIIIII")
_POSITION_BYTES: Final = 8
_QUEUE: Final = Struct(">iqI")
_LINE: Final = Struct(">Bqqq")
_SHORT: Final = Struct(">H")
_HEAD_READ: Final = 4096


class LogRange(NamedTuple):
    """A part of the log, and the time range in which its messages were stored."""

    start: int
    end: int
    first_ms: int
    last_ms: int


class QueueRun(NamedTuple):
    """One queue's entries within a chunk."""

    topic: str
    number: int
    first: int
    entries: int


class Chunk(NamedTuple):
    """A chunk found in a file: the part it covers, and the places of its contents."""

    at: int
    size: int
    part: LogRange
    queues: list[QueueRun]
    lines: list[LineState]
    entries_at: int
    keys_at: int
    keys: int
    halves: tuple[int, int, int]
    """The numbers of opened, closed and parked half messages; their positions follow the keys."""
    checksum: int


def path_of(segment: int) -> str:
    """The index file of the segment that starts at a position."""
    return f"{FOLDER}/{name_of(segment)}{SUFFIX}"


def indexed_segments(disk: Disk) -> list[int]:
    """Return the starts of the segments that have an index file, even if they were deleted."""
    stems = [name.removesuffix(SUFFIX) for name in disk.names(FOLDER) if name.endswith(SUFFIX)]
    return [int(stem) for stem in stems if stem.isdecimal() and stem == name_of(int(stem))]


def newest_indexed(disk: Disk) -> int | None:
    """Return the start of the last segment that has an index."""
    for segment in reversed(indexed_segments(disk)):
        file = disk.open(path_of(segment))
        try:
            if file.size():
                return segment
        finally:
            file.close()
    return None


def draft(
    log_id: int,
    part: LogRange,
    queues: Sequence[ConsumeQueue],
    keys: KeyIndex,
    changes: Changes,
    lines: Sequence[LineState],
) -> tuple[bytes, Chunk]:
    """A chunk for a part of the log, built from memory; its place in the file is still 0."""
    table: list[bytes] = []
    entries: list[bytes] = []
    runs: list[QueueRun] = []
    for queue in queues:
        data = queue.tail_before(part.end)
        if not data and not queue.has_jumped:
            continue
        run = QueueRun(queue.topic, queue.number, queue.tail_first, len(data) // ENTRY.size)
        name = run.topic.encode()
        table += (_SHORT.pack(len(name)), name, _QUEUE.pack(run.number, run.first, run.entries))
        entries.append(data)
        runs.append(run)
    table += [_LINE.pack(*line) for line in lines]
    key_count, key_bytes = keys.before(part.end)
    table_bytes, entry_bytes = b"".join(table), b"".join(entries)
    halves = (len(changes.opened), len(changes.closed), len(changes.parked))
    body = entry_bytes + key_bytes + _packed(changes)
    size = _HEAD.size + len(table_bytes) + len(body)
    checksum = crc32(body)
    fields = (log_id, checksum, *part, len(runs), len(lines), key_count, *halves)
    bare = _HEAD.pack(size, MAGIC, 0, *fields)
    check = crc32(bare[12:] + table_bytes)
    data = _HEAD.pack(size, MAGIC, check, *fields) + table_bytes + body
    entries_at = _HEAD.size + len(table_bytes)
    keys_at = entries_at + len(entry_bytes)
    chunk = Chunk(
        0, size, part, runs, list(lines), entries_at, keys_at, key_count, halves, checksum
    )
    return data, chunk


def _packed(changes: Changes) -> bytes:
    positions = [*changes.opened, *changes.closed, *changes.parked]
    return struct.pack(f">{len(positions)}q", *positions)


class IndexFile:
    """The chunks of one segment."""

    def __init__(self, disk: Disk, segment: int, log_id: int) -> None:
        self.segment = segment
        self._log_id = log_id
        self.beyond: list[Chunk] = []
        """Intact heads of unusable chunks: each still proves how long the log was."""
        self.file: File = disk.open(path_of(segment), create=True)
        self.size = 0
        self._unhardened: Chunk | None = None
        self._bodies: dict[int, SealedBytes] = {}

    def load(self, end: int) -> list[Chunk]:
        """The intact chunks up to the log's end, in order; :meth:`trim` removes the bytes after
        them.

        A crash can tear only the last chunk, so only its body is checked here; the bodies of the
        others are checked at their first read.

        Raises:
            ForeignFile: It indexes another log.
        """
        chunks: list[Chunk] = []
        reached = self.segment
        at = 0
        while (chunk := self._read(at)) is not None and chunk.part.start == reached:
            (chunks if chunk.part.end <= end else self.beyond).append(chunk)
            reached = chunk.part.end
            at += chunk.size
        while chunks and not self._body(chunks[-1]).is_whole():
            torn = chunks.pop()
            del self._bodies[torn.at]
            self.beyond.append(torn)
        self.size = chunks[-1].at + chunks[-1].size if chunks else 0
        return chunks

    def trim(self) -> None:
        """Remove the bytes after the used chunks; on a full disk this happens before the next
        write.
        """
        try:
            self._cut()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
        self.beyond.clear()

    def is_whole(self, chunk: Chunk) -> bool:
        """Return true if the bytes after a chunk's head are as written."""
        return self._body(chunk).is_whole()

    def is_unfinished(self, at: int) -> bool:
        """Return true if the bytes from a place on are the beginning of a chunk.

        A crash leaves such bytes; damage rarely looks like that.
        """
        left = self.file.size() - at
        data = self.file.read(at, left)
        if left < _HEAD.size:
            return True
        size, magic, check, _, _, *rest = _HEAD.unpack_from(data)
        if magic != MAGIC or size <= left:
            return False
        queue_count, line_count, keys, *halves = rest[4:]
        try:
            queues, _, table_end, _ = self._read_table(at, data, (queue_count, line_count), left)
        except (struct.error, UnicodeDecodeError):
            return True
        entries = sum(run.entries for run in queues) * ENTRY.size
        body = entries + keys * ENTRY_BYTES + sum(halves) * _POSITION_BYTES
        is_whole: bool = crc32(data[12:table_end]) == check and size == table_end + body
        return is_whole

    def harden(self, chunk: Chunk) -> None:
        """Make a found chunk durable, because its earlier sync may have failed.

        On a full disk that may fail. The chunk is readable at once, and becomes durable before the
        next chunk is written.
        """
        self._unhardened = chunk
        try:
            self._harden_rest()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise

    def _harden_rest(self) -> None:
        chunk = self._unhardened
        if chunk is not None:
            self.file.write(chunk.at, self.file.read(chunk.at, chunk.size))
            self.file.sync()
            self._unhardened = None

    def _cut(self) -> None:
        if self.file.size() > self.size:
            self.file.truncate(self.size)

    def _read(self, at: int) -> Chunk | None:
        data = self.file.read(at, _HEAD_READ)
        if len(data) < _HEAD.size:
            return None
        size, magic, check, log_id, checksum, *rest = _HEAD.unpack_from(data)
        start, end, first_ms, last_ms, queue_count, line_count, keys, *halves = rest
        if magic != MAGIC or at + size > self.file.size():
            return None
        counts = (queue_count, line_count)
        try:
            queues, lines, table_end, data = self._read_table(at, data, counts, size)
        except (struct.error, UnicodeDecodeError):
            return None
        if crc32(data[12:table_end]) != check:
            return None
        if log_id != self._log_id:
            raise ForeignFile(path_of(self.segment), log_id, self._log_id)
        entries = sum(run.entries for run in queues) * ENTRY.size
        keys_at = at + table_end + entries
        if keys_at + keys * ENTRY_BYTES + sum(halves) * _POSITION_BYTES != at + size:
            return None
        part = LogRange(start, end, first_ms, last_ms)
        opened, closed, parked = halves
        return Chunk(
            at, size, part, queues, lines, at + table_end, keys_at, keys,
            (opened, closed, parked), checksum,
        )  # fmt: skip

    def _read_table(
        self, at: int, data: bytes, counts: tuple[int, int], size: int
    ) -> tuple[list[QueueRun], list[LineState], int, bytes]:
        queues: list[QueueRun] = []
        lines: list[LineState] = []
        here = _HEAD.size
        for row in range(sum(counts)):
            if len(data) < min(here + 512, size):
                data = self.file.read(at, min(size, 2 * len(data) + 512))
            if row >= counts[0]:
                lines.append(LineState(*_LINE.unpack_from(data, here)))
                here += _LINE.size
                continue
            (length,) = _SHORT.unpack_from(data, here)
            topic = data[here + 2 : here + 2 + length].decode()
            run = QueueRun(topic, *_QUEUE.unpack_from(data, here + 2 + length))
            queues.append(run)
            here += 2 + length + _QUEUE.size
        return queues, lines, here, data

    def _body(self, chunk: Chunk) -> SealedBytes:
        found = self._bodies.get(chunk.at)
        if found is None:
            at, size = chunk.entries_at, chunk.at + chunk.size - chunk.entries_at
            found = self._bodies[chunk.at] = SealedBytes(
                self.file, path_of(self.segment), chunk.part.start, at, size, chunk.checksum
            )
        return found

    def append(self, data: bytes, chunk: Chunk) -> Chunk:
        """Write a draft after the last chunk and return it with its place; the caller syncs it.

        Raises:
            OSError: The write failed; the file ends where it did before.
        """
        at = self.size
        self._harden_rest()
        self._cut()
        try:
            self.file.write(at, data)
        except OSError:
            # On a full disk other writes need the room.
            with suppress(OSError):
                self.file.truncate(at)
            raise
        self.size += len(data)
        return chunk._replace(at=at, entries_at=at + chunk.entries_at, keys_at=at + chunk.keys_at)

    def blocks(self, chunk: Chunk) -> list[tuple[QueueRun, Block]]:
        """The chunk's queues with the places of their entries."""
        found: list[tuple[QueueRun, Block]] = []
        at, body = chunk.entries_at, self._body(chunk)
        for run in chunk.queues:
            found.append((run, Block(run.first, run.entries, self.segment, body, at)))
            at += run.entries * ENTRY.size
        return found

    def key_run(self, chunk: Chunk) -> KeyRun:
        """The place of the chunk's keys."""
        _, _, first_ms, last_ms = chunk.part
        body = self._body(chunk)
        return KeyRun(first_ms, last_ms, self.segment, body, chunk.keys_at, chunk.keys)

    def changes(self, chunk: Chunk) -> Changes:
        """Return the changes to half messages that a chunk holds.

        Raises:
            CorruptRecord: The index file differs from the written bytes.
        """
        opened, closed, _ = chunk.halves
        count = sum(chunk.halves)
        at = chunk.keys_at + chunk.keys * ENTRY_BYTES
        data = self._body(chunk).read(at, count * _POSITION_BYTES) if count else b""
        places = list(struct.unpack(f">{count}q", data))
        return Changes(places[:opened], places[opened : opened + closed], places[opened + closed :])
