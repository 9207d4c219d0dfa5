"""Find messages by key: a hash and a place for each, in memory until a checkpoint saves them.

An entry is one number: the key's 32-bit hash above its record's distance from where the run begins.
Hashes collide; whoever reads the record compares the key itself.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from broker.store.sealed import Sealed
from txmq.limits import KEYS_PER_MESSAGE_MAX
from txmq.protocol import properties
from txmq.protocol.checksum import crc32

__all__ = ["ENTRY_BYTES", "KeyIndex", "KeyRun", "key_hash", "keys_in", "topic_seed"]

ENTRY_BYTES: Final = 8
_LOW: Final = 0xFFFFFFFF
_REACH: Final = 1 << 32


def topic_seed(topic: str) -> int:
    """What all hashes of one topic's keys start from."""
    return crc32(topic.encode() + b"#")


def key_hash(seed: int, key: str) -> int:
    """The hash of one key of a topic."""
    return crc32(key.encode(), seed)


class KeyRun(NamedTuple):
    """Sorted entries in an index file."""

    base: int
    first_ms: int
    last_ms: int
    segment: int
    file: Sealed
    at: int
    entries: int


class KeyIndex:
    """All runs that are saved, and the one that is growing."""

    def __init__(self) -> None:
        self._runs: list[KeyRun] = []
        self._base = 0
        self._growing = array("Q")

    def begin(self, base: int) -> None:
        """Start with an empty run at a position of the log."""
        self._base = base
        self._growing = array("Q")

    @property
    def reach(self) -> int:
        """Where the positions end that fit into the growing run; keys behind cannot be searched.

        It matters only where indexes could not be saved for all of this way.
        """
        return self._base + _REACH

    def extend(self, found: list[tuple[int, int]]) -> None:
        """Note the keys of many records, as pairs of hash and position."""
        base = self._base
        self._growing.extend([hashed << 32 | position - base for hashed, position in found])

    def sorted_before(self, position: int) -> bytes:
        """The growing run's entries before a position of the log, as an index file holds them."""
        distance = position - self._base
        run = array("Q", sorted(entry for entry in self._growing if entry & _LOW < distance))
        if sys.byteorder == "little":
            run.byteswap()
        return run.tobytes()

    def saved(self, run: KeyRun, upto: int) -> None:
        """Forget the entries that a saved run holds; the growing one now begins at ``upto``."""
        shift = upto - self._base
        rest = (entry for entry in self._growing if entry & _LOW >= shift)
        self._growing = array("Q", [entry - shift for entry in rest])
        self._base = upto
        self._runs.append(run)

    def add_run(self, run: KeyRun) -> None:
        """Take a run found in an index file."""
        self._runs.append(run)

    def drop_before_segment(self, segment: int) -> None:
        """Forget the runs of segments that were deleted."""
        self._runs = [run for run in self._runs if run.segment >= segment]

    def positions(self, hashed: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Where records with this hash lie, newest first, from runs that touch a range of time."""
        # A message may name a key twice; its place is given once.
        growing = [self._base + (entry & _LOW) for entry in self._growing if entry >> 32 == hashed]
        yield from dict.fromkeys(reversed(growing))
        for run in reversed(self._runs):
            if run.first_ms <= end_ms and run.last_ms >= begin_ms:
                yield from dict.fromkeys(reversed(_search(run, hashed)))


def _search(run: KeyRun, hashed: int) -> list[int]:
    low, high = 0, run.entries
    while low < high:
        middle = (low + high) // 2
        if _entry(run, middle) >> 32 < hashed:
            low = middle + 1
        else:
            high = middle
    found: list[int] = []
    while low < run.entries and (entry := _entry(run, low)) >> 32 == hashed:
        found.append(run.base + (entry & _LOW))
        low += 1
    return found


def _entry(run: KeyRun, number: int) -> int:
    data = run.file.read(run.at + number * ENTRY_BYTES, ENTRY_BYTES)
    return int.from_bytes(data, "big")


def keys_in(text: str) -> list[str]:
    """The words by which a message with these properties is found: its unique key and its keys."""
    unique = properties.find(text, properties.UNIQUE_KEY)
    words = properties.find(text, properties.KEYS)
    keys = [unique] if unique else []
    if words:
        keys += words.split(" ")[:KEYS_PER_MESSAGE_MAX]
    return keys
