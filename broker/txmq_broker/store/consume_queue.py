"""One queue of a topic: for each message its position in the log, its size and its tag's hash.

Entries stay in memory until a checkpoint saves them in an index file; then the queue keeps only the
place of their block. Offsets are assigned when a record is staged and become visible when it is
published, so no reader sees a message that a crash could still lose.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from txmq_broker.store.sealed_bytes import SealedBytes

__all__ = ["ENTRY", "Block", "ConsumeQueue", "Entry"]

ENTRY: Final = Struct(">qiqI")
_CODE: Final = Struct(">q")
_CODE_AT: Final = 12


Entry: TypeAlias = tuple[int, int, int, int]
"""One message of a queue: its position in the log, its size, its tag's hash, its checksum.

The checksum covers every byte of the record; the record's own checksum covers only its body."""


class Block(NamedTuple):
    """A run of entries in an index file."""

    first: int
    entries: int
    segment: int
    file: SealedBytes
    at: int


class ConsumeQueue:
    """The entries of one queue, oldest to newest."""

    __slots__ = (
        "_blocks",
        "_firsts",
        "_tail",
        "floor",
        "has_jumped",
        "next_offset",
        "number",
        "tail_first",
        "topic",
    )

    def __init__(self, topic: str, number: int, floor: int = 0) -> None:
        self.topic = topic
        self.number = number
        self.floor = floor
        self.next_offset = floor
        self._blocks: list[Block] = []
        self._firsts: list[int] = []
        self._tail = bytearray()
        self.tail_first = floor
        self.has_jumped = False
        """True if the next chunk must hold this queue's next offset even without new entries."""

    @property
    def min_offset(self) -> int:
        """The offset of the oldest kept message, or of the next one if the queue is empty."""
        first = self._firsts[0] if self._firsts else self.tail_first
        return max(first, self.floor)

    @property
    def max_offset(self) -> int:
        """The offset after the newest readable message."""
        return max(self.tail_first + len(self._tail) // ENTRY.size, self.floor)

    @property
    def tail_count(self) -> int:
        """The number of entries that no index file holds yet."""
        return len(self._tail) // ENTRY.size

    def publish(self, entries: bytes) -> None:
        """Make the next messages visible; their entries are packed as :data:`ENTRY`."""
        self._tail += entries

    def restore(self, offset: int, entry: Entry) -> bool:
        """Add a record found in the log; return false if it does not follow the last one.

        Only the first record may have any offset, because earlier messages may be deleted.
        """
        if offset < self.floor:
            return True
        expected = self.tail_first + len(self._tail) // ENTRY.size
        if offset != expected:
            if self._tail or self._blocks or offset < expected:
                return False
            self.tail_first = offset
        self._tail += ENTRY.pack(*entry)
        self.next_offset = offset + 1
        return True

    def add_block(self, block: Block) -> None:
        """Add entries found in an index file."""
        assert not self._tail, "a block cannot follow entries that are newer"
        self._blocks.append(block)
        self._firsts.append(block.first)
        self.tail_first = max(block.first + block.entries, self.floor)
        self.next_offset = self.tail_first

    def jump(self, offset: int) -> None:
        """Continue at a later offset: the offsets before it were assigned, and their messages are
        lost.
        """
        assert not self._tail, "entries before a gap have to be in an index file"
        self.tail_first = self.next_offset = offset
        self.has_jumped = True

    def next_kept(self, offset: int) -> int:
        """Return the first offset outside a gap, from this one on; at most the next new one."""
        if offset >= self.tail_first:
            return offset
        at = bisect_right(self._firsts, offset) - 1
        if at >= 0 and offset < self._firsts[at] + self._blocks[at].entries:
            return offset
        later = (block.first for block in self._blocks[at + 1 :] if block.entries)
        return next(later, self.tail_first)

    def tail_before(self, position: int) -> bytes:
        """The tail's entries before a position of the log."""
        tail = self._tail
        low, high = 0, len(tail) // ENTRY.size
        while low < high:
            middle = (low + high) // 2
            if ENTRY.unpack_from(tail, middle * ENTRY.size)[0] < position:
                low = middle + 1
            else:
                high = middle
        return bytes(tail[: low * ENTRY.size])

    def saved(self, block: Block) -> None:
        """Drop the tail's entries that a block now holds."""
        assert block.first == self.tail_first, "blocks are saved in order"
        del self._tail[: block.entries * ENTRY.size]
        self._blocks.append(block)
        self._firsts.append(block.first)
        self.tail_first += block.entries
        self.has_jumped = False

    def drop_before_segment(self, segment: int) -> None:
        """Drop the blocks of deleted segments."""
        kept = [block for block in self._blocks if block.segment >= segment]
        if len(kept) != len(self._blocks):
            self._blocks = kept
            self._firsts = [block.first for block in kept]

    def min_offset_from(self, segment: int) -> int:
        """The oldest offset once the segments before this one are deleted."""
        for block in self._blocks:
            if block.segment >= segment:
                return max(block.first, self.floor)
        return max(self.tail_first, self.floor)

    def raise_floor(self, offset: int) -> None:
        """Drop all entries before a published offset, and never assign a smaller one."""
        assert offset <= self.max_offset, "the write of a later offset may still fail"
        self.floor = max(self.floor, offset)

    def read(self, offset: int, count: int) -> list[Entry]:
        """Up to ``count`` entries from an offset on; at least one if the offset is visible."""
        first = self.tail_first
        if offset >= first:
            start = (offset - first) * ENTRY.size
            data = bytes(self._tail[start : start + count * ENTRY.size])
        else:
            at = bisect_right(self._firsts, offset) - 1
            if at < 0:
                return []
            block = self._blocks[at]
            inside = offset - block.first
            count = min(count, block.entries - inside)
            if count <= 0:
                return []
            data = block.file.read(block.at + inside * ENTRY.size, count * ENTRY.size)
        return list(ENTRY.iter_unpack(data))

    def with_code(self, code: int, segment: int) -> Iterator[Entry]:
        """Search for entries from a segment on that have this code instead of a tag's hash, oldest
        first.
        """
        mark = _CODE.pack(code)
        for block in self._blocks:
            if block.segment < segment:
                continue
            yield from _marked(block.file.read(block.at, block.entries * ENTRY.size), mark)
        yield from _marked(bytes(self._tail), mark)


def _marked(data: bytes, mark: bytes) -> Iterator[Entry]:
    at = data.find(mark)
    while at >= 0:
        if at % ENTRY.size == _CODE_AT:
            yield ENTRY.unpack_from(data, at - _CODE_AT)
        at = data.find(mark, at + 1)
