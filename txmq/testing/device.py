"""The state of a :class:`MemoryDisk`: its files, its faults, and its valid handles."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from txmq.testing.entropy import SeededEntropy
from txmq.testing.failures import PowerCut, StaleHandleError
from txmq.testing.pages import PAGE, Loss, Pages
from txmq.testing.tree import Tree

__all__ = ["Device", "DiskEvent", "Faults", "MemoryFile", "MemoryLock", "Operation"]


class DiskEvent(NamedTuple):
    """An operation that a disk is about to execute.

    ``kind`` is ``create``, ``write``, ``truncate``, ``rename``, ``link``, ``remove``,
    ``sync`` or ``sync folder``; the path of the last is the name that it makes durable.
    """

    number: int
    kind: str
    path: str
    position: int
    size: int


class Device:
    """One disk's state and the operations that change it, each announced before it happens."""

    def __init__(self, entropy: SeededEntropy) -> None:
        self.entropy = entropy
        self.faults: Faults = Faults()
        self.tree: Tree = Tree()
        self.hook: Callable[[DiskEvent], None] | None = None
        self.locked: bool = False
        self.unplugged = False
        self.generation: int = 0
        self.events: int = 0
        self._last_write: tuple[str, int, int] | None = None

    def clone(self) -> Device:
        """An independent copy without open files, lock and hook."""
        twin = Device(self.entropy.fork(f"clone-{self.events}"))
        twin.faults = self.faults.copy()
        twin.tree = self.tree.copy()
        twin.events = self.events
        twin._last_write = self._last_write
        return twin

    def check(self, generation: int | None = None) -> None:
        """Raise if the machine is dead, or has crashed since a handle was opened."""
        if self.unplugged:
            raise PowerCut
        if generation is not None and generation != self.generation:
            raise StaleHandleError(errno.EBADF, "the disk crashed since this was opened")

    def void_handles(self) -> None:
        """Make all open files and the lock stale."""
        self.generation += 1
        self.locked = False

    def crash(self, entropy: SeededEntropy, loss: Loss) -> None:
        """Lose power."""
        self.tree.crash(entropy, loss, self._last_write)
        self._last_write = None
        self.faults.repair()
        self.void_handles()

    def announce(self, kind: str, path: str, position: int = 0, size: int = 0) -> None:
        """Notify the hook of an operation before it happens; the hook may cut the power."""
        self.check()
        generation = self.generation
        self.events += 1
        if self.hook is not None:
            self.hook(DiskEvent(self.events, kind, path, position, size))
        self.check(generation)

    def create(self, path: str) -> Pages:
        """Create an empty file; its name is not durable yet."""
        self.announce("create", path)
        self.faults.check("write")
        pages = Pages()
        self.tree.put(path, pages)
        return pages

    def write(self, path: str, pages: Pages, position: int, data: bytes) -> None:
        """Write to a file; a failing write may have written a part."""
        self.announce("write", path, position, len(data))
        try:
            self.faults.check("write")
        except OSError as error:
            if error.errno != errno.EROFS:
                pages.write(position, data[: self.entropy.below(len(data) + 1)])
            raise
        room = self._room(pages, position, len(data))
        pages.write(position, data[:room])
        self._last_write = (path, position, room)
        if room < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def truncate(self, path: str, pages: Pages, size: int) -> None:
        """Cut or extend a file."""
        self.announce("truncate", path, size)
        self.faults.check("write")
        pages.truncate(size)

    def sync(self, path: str, pages: Pages) -> None:
        """Make a file's bytes durable."""
        self.announce("sync", path)
        staged = pages.stage()
        try:
            self.faults.check("sync")
        except OSError:
            pages.fail(staged)
            raise
        pages.settle(staged)

    def sync_folder(self, path: str) -> None:
        """Make the existence or the removal of a name durable."""
        self.announce("sync folder", path)
        self.faults.check("sync")
        self.tree.keep(path)

    def _room(self, pages: Pages, position: int, size: int) -> int:
        """The number of bytes of a write that fit on the disk."""
        if self.faults.capacity is None:
            return size
        free = (self.faults.capacity - self.tree.allocated()) // PAGE
        missing = pages.missing(position, size)
        return size if len(missing) <= free else max(0, missing[max(free, 0)] * PAGE - position)


class MemoryFile:
    """An open file; see :class:`txmq.runtime.File`."""

    def __init__(self, device: Device, path: str, pages: Pages) -> None:
        self.path = path
        self.pages = pages
        self._device = device
        self._generation = device.generation
        self._closed = False

    def check(self) -> None:
        """Raise if the file is no longer usable."""
        self._device.check(self._generation)
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)

    def read(self, position: int, size: int) -> bytes:
        """See :meth:`txmq.runtime.File.read`."""
        self.check()
        faults = self._device.faults
        faults.check("read")
        if self.path in faults.unreadable:
            size = faults.readable(self.path, position, size)
        return self.pages.read(position, size)

    def write(self, position: int, *pieces: bytes | bytearray) -> None:
        """See :meth:`txmq.runtime.File.write`."""
        self.check()
        self._device.write(self.path, self.pages, position, b"".join(pieces))

    def sync(self) -> None:
        """See :meth:`txmq.runtime.File.sync`."""
        self.check()
        self._device.sync(self.path, self.pages)

    def size(self) -> int:
        """See :meth:`txmq.runtime.File.size`."""
        self.check()
        return self.pages.size

    def truncate(self, size: int) -> None:
        """See :meth:`txmq.runtime.File.truncate`."""
        self.check()
        self._device.truncate(self.path, self.pages, size)

    def close(self) -> None:
        """See :meth:`txmq.runtime.File.close`."""
        self._closed = True


class MemoryLock:
    """A hold on the disk; see :class:`txmq.runtime.Lock`."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._generation = device.generation

    def release(self) -> None:
        """See :meth:`txmq.runtime.Lock.release`."""
        # A lock that a crash has voided must not release the lock of its successor.
        if self._generation == self._device.generation:
            self._device.locked = False
            self._generation = -1


Operation = Literal["read", "write", "sync"]


@dataclass(slots=True)
class Faults:
    """The faults of one disk; at first it never fails, has no size limit and syncs instantly.

    Attributes:
        capacity: The disk's size in bytes, in whole pages; ``None`` means no limit.
        sync_low_s: The minimum virtual time that ``sync_soon`` takes.
        sync_high_s: The maximum; the actual time is random.
    """

    capacity: int | None = None
    sync_low_s: float = 0.0
    sync_high_s: float = 0.0
    unreadable: dict[str, set[int]] = field(default_factory=dict)
    """The positions of unreadable pages, by file."""
    _failing: dict[Operation, tuple[int | None, int]] = field(default_factory=dict)

    def fail(self, operation: Operation, times: int | None, error: int) -> None:
        """Make the next operations of a kind fail; without a number, until :meth:`repair`."""
        self._failing[operation] = (times, error)

    def repair(self) -> None:
        """End all failures. Capacity and speed stay as they are."""
        self._failing.clear()
        self.unreadable.clear()

    def copy(self) -> Faults:
        """An independent copy."""
        unreadable = {path: pages.copy() for path, pages in self.unreadable.items()}
        return replace(self, unreadable=unreadable, _failing=self._failing.copy())

    def sync_s(self, entropy: SeededEntropy) -> float:
        """The duration of the next sync."""
        if self.sync_high_s <= self.sync_low_s:
            return self.sync_low_s
        return self.sync_low_s + (self.sync_high_s - self.sync_low_s) * entropy.fraction()

    def readable(self, path: str, position: int, size: int) -> int:
        """How many bytes a read there returns: as on Linux, it ends before an unreadable page.

        Raises:
            OSError: The read begins in an unreadable page.
        """
        for page in sorted(self.unreadable[path]):
            if position < page + PAGE and page < position + size:
                if page <= position:
                    raise OSError(errno.EIO, os.strerror(errno.EIO), path)
                return page - position
        return size

    def check(self, operation: Operation) -> None:
        """Count one operation of a kind.

        Raises:
            OSError: This operation fails.
        """
        if operation not in self._failing:
            return
        times, error = self._failing[operation]
        if times is not None:
            if times <= 1:
                del self._failing[operation]
            else:
                self._failing[operation] = (times - 1, error)
        raise OSError(error, os.strerror(error))
