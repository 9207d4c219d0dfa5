"""Two versions of one file's bytes: the visible and the durable one.

The unit is a page of 4096 bytes, as in an operating system's page cache. Pages are immutable
``bytes`` and a missing page is zeros, so copying a file copies two dicts, and an identity test
finds unchanged pages. This module does no I/O and raises nothing; the disk injects the faults.

Invariant: a page that is neither dirty nor doomed is the same object in both versions.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from txmq.testing.entropy import SeededEntropy

__all__ = ["PAGE", "Loss", "Pages", "Staged"]

PAGE = 4096
_ZEROS = bytes(PAGE)


class Loss(Enum):
    """The part of the unsynced bytes that a crash loses."""

    ANY = "any"
    """One of the other kinds, at random."""
    NOTHING = "nothing"
    """Nothing: the system had written everything back in time."""
    EVERYTHING = "everything"
    """All of it."""
    TAIL = "tail"
    """The last write, from one of its bytes on."""
    PAGES = "pages"
    """Each page is kept, lost, torn, zeroed or garbage; the length is the old, the new or one in
    between."""


class Staged(NamedTuple):
    """The state that becomes durable at the end of a running sync."""

    number: int
    pages: dict[int, bytes | None]
    size: int


class Pages:
    """The contents of one file, now and durable."""

    __slots__ = ("_dirty", "_doomed", "_now", "_safe", "_settled", "_staged", "safe_size", "size")

    def __init__(self) -> None:
        self.size: int = 0
        self.safe_size: int = 0
        self._now: dict[int, bytes] = {}
        self._safe: dict[int, bytes] = {}
        self._dirty: set[int] = set()
        self._doomed: set[int] = set()
        self._staged = 0
        self._settled = 0

    def copy(self) -> Pages:
        """An independent copy."""
        twin = Pages()
        twin.size, twin.safe_size = self.size, self.safe_size
        twin._now, twin._safe = self._now.copy(), self._safe.copy()
        twin._dirty, twin._doomed = self._dirty.copy(), self._doomed.copy()
        twin._staged, twin._settled = self._staged, self._settled
        return twin

    def allocated(self) -> int:
        """The number of pages that the file occupies; holes occupy none."""
        return len(self._now)

    def missing(self, position: int, size: int) -> list[int]:
        """The pages that a write there must allocate."""
        return [page for page in _pages_of(position, size) if page not in self._now]

    def read(self, position: int, size: int) -> bytes:
        """The visible bytes."""
        size = max(0, min(size, self.size - position))
        first = position // PAGE
        whole = b"".join(self._now.get(page, _ZEROS) for page in _pages_of(position, size))
        start = position - first * PAGE
        return whole[start : start + size]

    def durable(self) -> bytes:
        """The whole file after the loss of all unsynced bytes."""
        pages = -(-self.safe_size // PAGE)
        whole = b"".join(self._safe.get(page, _ZEROS) for page in range(pages))
        return whole[: self.safe_size]

    def write(self, position: int, data: bytes) -> None:
        """Write bytes; they are not durable yet."""
        done = 0
        for page in _pages_of(position, len(data)):
            start = position + done - page * PAGE
            piece = data[done : done + PAGE - start]
            old = self._now.get(page, _ZEROS)
            self._set(page, old[:start] + piece + old[start + len(piece) :])
            done += len(piece)
        if data:
            self.size = max(self.size, position + len(data))

    def truncate(self, size: int) -> None:
        """Cut the file or extend it with zeros; this is not durable yet."""
        if size < self.size:
            whole, rest = divmod(size, PAGE)
            for page in sorted(self._now):
                if page > whole or (page == whole and rest == 0):
                    self._set(page, None)
            if rest and whole in self._now:
                self._set(whole, self._now[whole][:rest].ljust(PAGE, b"\0"))
        self.size = size

    def flip(self, position: int, bit: int) -> None:
        """Flip one bit, in the durable version as well."""
        page, offset = divmod(position, PAGE)
        same = self._now.get(page) is self._safe.get(page)
        for version in (self._now, self._safe):
            old = bytearray(version.get(page, _ZEROS))
            old[offset] ^= 1 << bit
            version[page] = bytes(old)
        if same:
            self._safe[page] = self._now[page]

    def lose_tail(self, size: int) -> None:
        """Cut the file to this size, in the durable version as well."""
        self.truncate(min(size, self.size))
        self._safe, self.safe_size = self._now.copy(), self.size
        self._dirty.clear()
        self._doomed.clear()

    def stage(self) -> Staged:
        """Begin a sync of all bytes written so far."""
        self._staged += 1
        return Staged(self._staged, {page: self._now.get(page) for page in self._dirty}, self.size)

    def settle(self, staged: Staged) -> None:
        """End a sync with success. Bytes written since it began are still not durable."""
        if staged.number < self._settled:
            return  # A later sync finished first, and covered all bytes of this one.
        self._settled = staged.number
        self.safe_size = staged.size
        for page, content in staged.pages.items():
            _put(self._safe, page, content)
            if self._now.get(page) is content:
                self._dirty.discard(page)
                self._doomed.discard(page)

    def fail(self, staged: Staged) -> None:
        """End a sync with an error, as Linux does: the pages count as clean, yet were not written.

        They read as before and the next sync does not touch them; a crash may take them.
        """
        doomed = self._dirty & staged.pages.keys()
        self._doomed |= doomed
        self._dirty -= doomed

    def crash(self, entropy: SeededEntropy, loss: Loss, last: tuple[int, int] | None) -> None:
        """Lose power: the remaining bytes become the visible and the durable version.

        Args:
            entropy: Decides what is lost.
            loss: The kind of loss; the caller resolves ``Loss.ANY``.
            last: Position and size of the last write, if it went to this file.
        """
        assert loss is not Loss.ANY
        unsafe = sorted(self._dirty | self._doomed)
        if loss is Loss.EVERYTHING:
            self._now, self.size = self._safe.copy(), self.safe_size
        elif loss is Loss.TAIL and last is not None:
            self._tear(unsafe, entropy, last)
        elif loss is Loss.PAGES:
            for page in unsafe:
                _put(self._now, page, self._fate(page, entropy))
            self._cut(entropy)
        self._safe, self.safe_size = self._now.copy(), self.size
        self._dirty.clear()
        self._doomed.clear()

    def _set(self, page: int, content: bytes | None) -> None:
        _put(self._now, page, content)
        self._dirty.add(page)
        self._doomed.discard(page)

    def _tear(self, unsafe: list[int], entropy: SeededEntropy, last: tuple[int, int]) -> None:
        position, size = last
        cut, end = position + entropy.below(size + 1), position + size
        for page in unsafe:
            start, stop = max(cut - page * PAGE, 0), min(end - page * PAGE, PAGE)
            if start < stop:
                new, old = self._now.get(page, _ZEROS), self._safe.get(page, _ZEROS)
                self._now[page] = new[:start] + old[start:stop] + new[stop:]
        if self.size == end and end > self.safe_size:
            self.truncate(max(self.safe_size, cut))

    def _fate(self, page: int, entropy: SeededEntropy) -> bytes | None:
        old, new = self._safe.get(page, _ZEROS), self._now.get(page, _ZEROS)
        match entropy.below(5):
            case 0:
                return self._safe.get(page)
            case 1:
                return self._now.get(page)
            case 2:
                cut = entropy.below(PAGE + 1)
                return new[:cut] + old[cut:]
            case 3:
                return self._fill(page, _ZEROS)
            case _:
                return self._fill(page, entropy.token(PAGE))

    def _fill(self, page: int, filling: bytes) -> bytes:
        """The page, with all bytes that are not durable replaced by a filling."""
        old, new = self._safe.get(page, _ZEROS), self._now.get(page, _ZEROS)
        promised = max(0, min(self.safe_size - page * PAGE, PAGE))
        if old[:promised] == new[:promised]:
            return old[:promised] + filling[promised:]
        kept = (
            was if was == now else other
            for was, now, other in zip(
                old[:promised], new[:promised], filling[:promised], strict=True
            )
        )
        return bytes(kept) + filling[promised:]

    def _cut(self, entropy: SeededEntropy) -> None:
        low, high = sorted((self.safe_size, self.size))
        size = (self.safe_size, self.size, low + entropy.below(high - low + 1))[entropy.below(3)]
        # Garbage beyond the end must not show when the file grows again.
        self.size = high + 1
        self.truncate(size)


def _pages_of(position: int, size: int) -> range:
    return range(position // PAGE, -(-(position + size) // PAGE)) if size > 0 else range(0)


def _put(version: dict[int, bytes], page: int, content: bytes | None) -> None:
    if content is None:
        version.pop(page, None)
    else:
        version[page] = content
