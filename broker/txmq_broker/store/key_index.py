"""The key index: a hash and a position for each key, in memory until a checkpoint saves them.

Entries stay in the order of the log and are not sorted, because messages are frequent and searches
rare. A search is one pass over the hashes of a run, at the speed of memory. Hashes collide, so the
reader of the record compares the key itself.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from txmq.limits import KEYS_PER_MESSAGE_MAX
from txmq.protocol import properties
from txmq.protocol.checksum import crc32
from txmq_broker.store.sealed_bytes import SealedBytes

__all__ = ["ENTRY_BYTES", "KeyIndex", "KeyRun", "key_hash", "keys_in", "topic_seed"]

HASH_BYTES: Final = 4
POSITION_BYTES: Final = 8
ENTRY_BYTES: Final = HASH_BYTES + POSITION_BYTES


def topic_seed(topic: str) -> int:
    """The initial value of the hashes of one topic's keys."""
    return crc32(topic.encode() + b"#")


def key_hash(seed: int, key: str) -> int:
    """The hash of one key of a topic."""
    return crc32(key.encode(), seed)


class KeyRun(NamedTuple):
    """Entries in an index file: first all hashes, then all positions."""

    first_ms: int
    last_ms: int
    segment: int
    file: SealedBytes
    at: int
    entries: int


class KeyIndex:
    """All saved runs, and the growing run."""

    def __init__(self) -> None:
        self._runs: list[KeyRun] = []
        self._hashes = array("I")
        self._positions = array("Q")

    def extend(self, hashes: Iterable[int], positions: Iterable[int]) -> None:
        """Note the keys of many records, in the order of the log."""
        self._hashes.extend(hashes)
        self._positions.extend(positions)

    def before(self, position: int) -> tuple[int, bytes]:
        """The growing run's entries before a position: their number, and their bytes for an index
        file.
        """
        count = bisect_left(self._positions, position)
        hashes, positions = self._hashes[:count], self._positions[:count]
        if sys.byteorder == "little":
            hashes.byteswap()
            positions.byteswap()
        return count, hashes.tobytes() + positions.tobytes()

    def saved(self, run: KeyRun) -> None:
        """Drop the oldest entries of the growing run, because a saved run now holds them."""
        del self._hashes[: run.entries]
        del self._positions[: run.entries]
        self._runs.append(run)

    def add_run(self, run: KeyRun) -> None:
        """Add a run found in an index file."""
        self._runs.append(run)

    def drop_before_segment(self, segment: int) -> None:
        """Drop the runs of deleted segments."""
        self._runs = [run for run in self._runs if run.segment >= segment]

    def positions(self, hashed: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the positions of records with this hash, newest first, in a range of time.

        Raises:
            CorruptRecord: An index file differs from the written bytes.
        """
        # A message may name a key twice; its position is returned once.
        mark = hashed.to_bytes(HASH_BYTES, sys.byteorder)
        numbers = _numbers_of(mark, self._hashes.tobytes())
        yield from dict.fromkeys([self._positions[number] for number in numbers])
        for run in reversed(self._runs):
            if run.first_ms <= end_ms and run.last_ms >= begin_ms:
                yield from dict.fromkeys(_search(run, hashed))


def _search(run: KeyRun, hashed: int) -> list[int]:
    hashes = run.file.read(run.at, run.entries * HASH_BYTES)
    positions_at = run.at + run.entries * HASH_BYTES
    found: list[int] = []
    for number in _numbers_of(hashed.to_bytes(HASH_BYTES, "big"), hashes):
        data = run.file.read(positions_at + number * POSITION_BYTES, POSITION_BYTES)
        found.append(int.from_bytes(data, "big"))
    return found


def _numbers_of(mark: bytes, hashes: bytes) -> Iterator[int]:
    """The numbers of the hashes that equal this one, last first."""
    at = hashes.rfind(mark)
    while at >= 0:
        if at % HASH_BYTES == 0:
            yield at // HASH_BYTES
        at = hashes.rfind(mark, 0, at + HASH_BYTES - 1)


def keys_in(text: str) -> list[str]:
    """The words by which a message with these properties is found: its unique key and its keys."""
    unique = properties.find(text, properties.UNIQUE_KEY)
    words = properties.find(text, properties.KEYS)
    keys = [unique] if unique else []
    if words:
        keys += words.split(" ")[:KEYS_PER_MESSAGE_MAX]
    return keys
