"""The open transactions in memory: about 180 bytes each, so that a million fit.

The table's key is a hash of the transaction's id, which is the message's unique key. A start can
read every value from the log; a checkpoint keeps only the positions of the open half messages.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

import msgspec

from txmq.limits import KEYS_PER_MESSAGE_MAX
from txmq_broker.store.queue_store import ConsumeQueue, Place

__all__ = [
    "KEY_MASK",
    "Changes",
    "Half",
    "OpenEntry",
    "PendingTransactions",
    "Shared",
    "transaction_key",
]

_HASH_BYTES: Final = array("I").itemsize
_NO_HASHES: Final = Struct("@qqIiIIIH?").size
_LAYOUTS: Final = [Struct(f"@qqIiIII{count}IH?") for count in range(KEYS_PER_MESSAGE_MAX + 2)]
"""The layout of an entry by its number of keys, including the unique key. All fields are aligned
and in the machine's byte order, which takes half the time.
"""

_READ_ENTRY: Final = {
    layout.size: Struct(f"@qqIiII4x{_HASH_BYTES * count}s3x").unpack
    for count, layout in enumerate(_LAYOUTS)
}
"""Functions that read an :data:`OpenEntry`, by its size."""

_CHECKS: Final = Struct("@H")
_CHECKS_AT: Final = 3
"""The place of the number of checks, in bytes before the end."""
_PARKED_AT: Final = -1
_LONG: Final = Struct("@q")
_POSITION_AT: Final = 8
_OWNER: Final = Struct("@I")
_OWNER_AT: Final = 28

KEY_MASK: Final = (1 << 60) - 1
"""Integers of up to 60 bits take less memory than longer ones."""


def transaction_key(unique: str) -> int:
    """The key of a transaction in these tables; it differs from one process to the next."""
    return hash(unique) & KEY_MASK


def _owner_in(data: bytes) -> int:
    owner: int = _OWNER.unpack_from(data, _OWNER_AT)[0]
    return owner


class Half(msgspec.Struct, frozen=True, gc=False):
    """An undecided half message. Reading a field of a struct takes a third of the time that it
    takes with a named tuple.
    """

    offset: int
    """Its place in the half queue."""
    position: int
    size: int
    tags_code: int
    checksum: int
    queue: ConsumeQueue
    """The queue in which it is visible after a commit."""
    group: str
    origin: str
    """The client that sent it; empty if unknown."""
    is_delayed: bool
    """Whether its message asks for a delay, which begins with the commit."""
    key_hashes: tuple[int, ...]
    immunity_s: int = 0
    """The seconds without checks that its producer wants; 0 if it names none."""
    checks: int = 0
    """The number of checks that a connected producer answered with "unknown", or not at all."""
    is_parked: bool = False

    @property
    def parts(self) -> tuple[Place, int, Shared, tuple[int, ...], int, int, bool]:
        """The arguments of :meth:`PendingTransactions.pack`."""
        place = self.offset, self.position, self.size, self.checksum
        shared = self.queue, self.group, self.origin, self.is_delayed
        return (
            place, self.tags_code, shared, self.key_hashes, self.immunity_s, self.checks,
            self.is_parked,
        )  # fmt: skip


Shared: TypeAlias = tuple[ConsumeQueue, str, str, bool]
"""What many transactions share: the queue, the producer group and the client of a half message, and
whether its message asks for a delay.
"""

OpenEntry: TypeAlias = tuple[int, int, int, int, int, int, bytes]
"""A half message's offset, position and size, the hash of its tag, its checksum, the number of its
owner (the :data:`Shared` values), and the hashes of its keys as the bytes of an array.
"""


class Changes(NamedTuple):
    """How a part of the log changes the open transactions: the positions of their half messages."""

    opened: list[int]
    """Stored in that part and still open at its end."""
    closed: list[int]
    """Stored before that part and decided in it."""
    parked: list[int]


class PendingTransactions:
    """All open transactions by key, oldest first.

    Attributes:
        table: The packed half messages; callers may look up a key here.
        opened: The positions of the half messages published since the last checkpoint.
        closings: The positions of the markers published since then that closed a transaction.
        closed: For each of these markers, the position of the half message that it closed.
    """

    def __init__(self) -> None:
        self.table: dict[int, bytes] = {}
        self.opened = array("q")
        self.closings = array("q")
        self.closed = array("q")
        self._parked: dict[int, None] = {}
        self.owners: dict[int, Shared] = {}
        """The queues, producer groups and clients that many transactions share, by number."""
        self._owner_numbers: dict[Shared, int] = {}
        self.owner_uses: dict[int, int] = {}
        self._next_owner = 0
        self._parkings = array("q")
        self._parked_halves = array("q")

    def __len__(self) -> int:
        return len(self.table)

    def __contains__(self, key: int) -> bool:
        return key in self.table

    @property
    def parked(self) -> int:
        """The number of transactions that wait for an operator."""
        return len(self._parked)

    def find(self, key: int) -> Half | None:
        """An open transaction."""
        data = self.table.get(key)
        return None if data is None else self.unpack(data)

    def oldest(self) -> Half | None:
        """The oldest transaction that is not parked."""
        parked = self._parked
        for key, data in self.table.items():
            if key not in parked:
                return self.unpack(data)
        return None

    def pack(
        self,
        place: Place,
        tags_code: int,
        shared: Shared,
        key_hashes: tuple[int, ...],
        immunity_s: int = 0,
        checks: int = 0,
        is_parked: bool = False,
    ) -> bytes:
        """Return the packed form of a half message; the caller adds or drops it."""
        owner = self._owner_numbers.get(shared)
        if owner is None:
            owner = self._new_owner(shared)
        self.owner_uses[owner] += 1
        offset, position, size, checksum = place
        return _LAYOUTS[len(key_hashes)].pack(
            offset, position, size, tags_code, checksum, owner, immunity_s, *key_hashes, checks,
            is_parked,
        )  # fmt: skip

    def _new_owner(self, shared: Shared) -> int:
        owner = self._owner_numbers[shared] = self._next_owner
        self._next_owner += 1
        self.owners[owner] = shared
        self.owner_uses[owner] = 0
        return owner

    def read(self, key: int) -> tuple[OpenEntry, Shared] | None:
        """The values of an open transaction that a decision needs."""
        data = self.table.get(key)
        if data is None:
            return None
        entry: OpenEntry = _READ_ENTRY[len(data)](data)
        return entry, self.owners[entry[5]]

    def unpack(self, data: bytes) -> Half:
        """The half message in a packed form."""
        (
            offset, position, size, tags_code, checksum, owner, immunity_s, *hashes, checks,
            is_parked,
        ) = _LAYOUTS[(len(data) - _NO_HASHES) // _HASH_BYTES].unpack(data)  # fmt: skip
        return Half(
            offset, position, size, tags_code, checksum, *self.owners[owner], tuple(hashes),
            immunity_s, checks, is_parked,
        )  # fmt: skip

    def open(self, key: int, data: bytes) -> None:
        """Add a stored half message."""
        self.table[key] = data
        if data[_PARKED_AT]:
            self._parked[key] = None

    def count_of(self, group: str) -> int:
        """Return the number of a group's transactions, including those not durable yet."""
        return sum(self._of(group).values())

    def keys_from(self, offset: int) -> Iterator[int]:
        """The transactions from a place in the half queue on, oldest first."""
        if offset <= 0:
            return iter(self.table)
        # The table is in the order of the half queue, so a binary search finds the first one.
        keys = list(self.table)
        start = bisect_left(keys, offset, key=self.offset_of)
        return islice(keys, start, None)

    def keys_of(self, group: str, offset: int = 0) -> Iterator[int]:
        """The transactions of a producer group from a place in the half queue on, oldest first.

        The others are skipped without being unpacked, as there may be a million.
        """
        owners = self._of(group)
        if not owners:
            return
        read, table = _OWNER.unpack_from, self.table
        for key in self.keys_from(offset):
            if read(table[key], _OWNER_AT)[0] in owners:
                yield key

    def _of(self, group: str) -> dict[int, int]:
        """Return the number of transactions of each owner of a group, by the owner's number."""
        return {
            number: self.owner_uses[number]
            for number, (_, name, *_) in self.owners.items()
            if name == group
        }

    def drop(self, data: bytes) -> None:
        """Drop a packed half message."""
        self._release(_owner_in(data), 1)

    def _release(self, owner: int, count: int) -> None:
        uses = self.owner_uses[owner] - count
        if uses:
            self.owner_uses[owner] = uses
        else:
            del self.owner_uses[owner]
            del self._owner_numbers[self.owners.pop(owner)]

    def close_all(self, keys: Collection[int], owners: Sequence[int]) -> None:
        """Remove decided transactions; ``owners`` has the number of each one's owner."""
        table, parked = self.table, self._parked
        for key in keys:
            del table[key]
        # Each owner is released once: a span ends many transactions of few owners.
        for owner in set(owners):
            self._release(owner, owners.count(owner))
        if parked:
            for key in keys:
                parked.pop(key, None)

    def offset_of(self, key: int) -> int:
        """An open transaction's place in the half queue, without reading the rest."""
        offset: int = _LONG.unpack_from(self.table[key])[0]
        return offset

    def count_checks(self, key: int, checks: int) -> None:
        """Store the number of checks that count."""
        data = bytearray(self.table[key])
        _CHECKS.pack_into(data, len(data) - _CHECKS_AT, min(checks, 0xFFFF))
        self.table[key] = bytes(data)

    def park(self, key: int) -> None:
        """Record that a transaction waits for an operator."""
        data = bytearray(self.table[key])
        data[_PARKED_AT] = 1
        self.table[key] = bytes(data)
        self._parked[key] = None

    def __iter__(self) -> Iterator[int]:
        """Every open transaction, oldest first."""
        return iter(self.table)

    def parked_keys(self) -> Iterator[int]:
        """The parked transactions, the longest parked first."""
        return iter(self._parked)

    def pinned(self) -> int | None:
        """The oldest position that an open transaction needs, or ``None`` if none is open."""
        # The table is in the order of the log.
        oldest = next(iter(self.table), None)
        if oldest is None:
            return None
        position: int = _LONG.unpack_from(self.table[oldest], _POSITION_AT)[0]
        return position

    def key_at(self, position: int) -> int | None:
        """The open transaction whose half message has this position; reads the whole table."""
        read = _LONG.unpack_from
        for key, data in self.table.items():
            if read(data, _POSITION_AT)[0] == position:
                return key
        return None

    # Changes for the next checkpoint

    def note_closed(self, at: int, half_position: int) -> None:
        """Note that the marker of a decision was published."""
        self.closings.append(at)
        self.closed.append(half_position)

    def note_parked(self, at: int, half_position: int) -> None:
        """Note that the marker of a parked transaction was published."""
        self._parkings.append(at)
        self._parked_halves.append(half_position)

    def changes_before(self, end: int) -> Changes:
        """The changes since the last checkpoint, up to a position of the log."""
        opened = dict.fromkeys(self.opened[: bisect_left(self.opened, end)])
        closed: list[int] = []
        for half in self.closed[: bisect_left(self.closings, end)]:
            if half in opened:
                del opened[half]
            else:
                closed.append(half)
        parked = self._parked_halves[: bisect_left(self._parkings, end)]
        return Changes(list(opened), closed, list(parked))

    def saved_before(self, end: int) -> None:
        """Drop the changes that a checkpoint now holds."""
        del self.opened[: bisect_left(self.opened, end)]
        count = bisect_left(self.closings, end)
        del self.closings[:count], self.closed[:count]
        count = bisect_left(self._parkings, end)
        del self._parkings[:count], self._parked_halves[:count]
