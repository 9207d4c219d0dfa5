"""A disk in memory that fails the way disks fail.

It separates written from durable bytes, page by page. ``crash`` keeps all synced bytes and an
arbitrary part of the rest. ``clone`` is cheap, so a test can examine every point at which the power
may fail; :func:`power_cuts` does that.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence

from txmq.runtime.disk import File, Lock, Space
from txmq.testing.device import Device, DiskEvent, MemoryFile, MemoryLock
from txmq.testing.entropy import SeededEntropy
from txmq.testing.pages import PAGE, Loss, Pages

__all__ = ["MemoryDisk", "power_cuts"]

_BOUNDLESS = 1 << 40


class MemoryDisk:
    """The disk port in memory, for the machines of a simulation or for tests on its own.

    Args:
        entropy: Decides how much of a failing write is done, how long a sync takes and, unless
            :meth:`crash` gets its own, which bytes a crash keeps.
    """

    def __init__(self, entropy: SeededEntropy | None = None) -> None:
        self._device = Device(entropy or SeededEntropy(0))
        self._syncing_until = 0.0

    # --- the port ---

    def open(self, path: str, *, create: bool = False) -> File:
        """See :meth:`txmq.runtime.Disk.open`."""
        self._device.check()
        if self._device.tree.is_folder(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        pages = self._device.tree.find(path)
        if pages is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            pages = self._device.create(path)
            self._device.sync_folder(path)
        return MemoryFile(self._device, path, pages)

    def names(self, folder: str) -> list[str]:
        """See :meth:`txmq.runtime.Disk.names`."""
        self._device.check()
        return self._device.tree.names("" if folder == "." else folder.strip("/"))

    def replace(self, path: str, data: bytes, *, keep: str | None = None) -> None:
        """See :meth:`txmq.runtime.Disk.replace`; as on a LocalDisk, a crash may leave a draft."""
        device, draft_path = self._device, f"{path}.new"
        draft = device.create(draft_path)
        try:
            device.write(draft_path, draft, 0, data)
            device.sync(draft_path, draft)
        except OSError:
            device.tree.drop(draft_path)
            raise
        if keep is not None and (kept := device.tree.find(path)) is not None:
            device.announce("remove", keep)
            device.tree.drop(keep)
            device.announce("link", keep)
            device.tree.put(keep, kept)
        device.announce("rename", path, 0, len(data))
        device.tree.drop(draft_path)
        device.tree.put(path, draft)
        device.sync_folder(path)
        device.tree.keep(draft_path)
        if keep is not None:
            device.tree.keep(keep)

    def remove(self, path: str) -> None:
        """See :meth:`txmq.runtime.Disk.remove`."""
        self._device.announce("remove", path)
        self._device.faults.check("write")
        self._device.tree.drop(path)
        self._device.sync_folder(path)

    def space(self) -> Space:
        """See :meth:`txmq.runtime.Disk.space`."""
        self._device.check()
        return Space(used=self._device.tree.allocated(), total=self.capacity or _BOUNDLESS)

    def lock(self) -> Lock:
        """See :meth:`txmq.runtime.Disk.lock`."""
        self._device.check()
        if self._device.locked:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), "lock")
        if self._device.tree.find("lock") is None:
            self._device.create("lock")
        self._device.locked = True
        return MemoryLock(self._device)

    def sync_soon(self, files: Sequence[File]) -> asyncio.Future[None]:
        """See :meth:`txmq.runtime.Disk.sync_soon`.

        Bytes written while it runs are not covered, as the port defines it.
        """
        return asyncio.ensure_future(self._sync_all(files))

    def run_soon(self, work: Callable[[], None]) -> Awaitable[None]:
        """See :meth:`txmq.runtime.Disk.run_soon`. It takes as long as one sync."""
        return asyncio.ensure_future(self._run(work))

    async def _run(self, work: Callable[[], None]) -> None:
        await self._take_sync_time()
        work()

    async def _sync_all(self, files: Sequence[File]) -> None:
        for file in files:
            assert isinstance(file, MemoryFile)
            await self._sync(file)

    async def _sync(self, file: MemoryFile) -> None:
        file.check()
        self._device.announce("sync", file.path)
        staged = file.pages.stage()
        await self._take_sync_time()
        file.check()
        try:
            self._device.faults.check("sync")
        except OSError:
            file.pages.fail(staged)
            raise
        file.pages.settle(staged)

    async def _take_sync_time(self) -> None:
        now = asyncio.get_running_loop().time()
        # One sync at a time, as on a LocalDisk: a slow one delays those behind it.
        takes = self._device.faults.sync_s(self._device.entropy)
        self._syncing_until = max(now, self._syncing_until) + takes
        await asyncio.sleep(self._syncing_until - now)

    # --- faults ---

    @property
    def on_write(self) -> Callable[[DiskEvent], None] | None:
        """Called before every operation that changes the disk.

        It may clone the disk, crash the machine, or raise ``PowerCut`` to stop the writer; in the
        last two cases the operation is not executed.
        """
        return self._device.hook

    @on_write.setter
    def on_write(self, hook: Callable[[DiskEvent], None] | None) -> None:
        self._device.hook = hook

    @property
    def capacity(self) -> int | None:
        """The number of bytes that fit, in whole pages; ``None`` means no limit.

        A larger write stores the bytes that fit and raises ``ENOSPC``.
        """
        return self._device.faults.capacity

    @capacity.setter
    def capacity(self, size: int | None) -> None:
        self._device.faults.capacity = size

    def slow_sync(self, low_s: float, high_s: float | None = None) -> None:
        """Make every later ``sync_soon`` take this long, or a random time between the two."""
        self._device.faults.sync_low_s = low_s
        self._device.faults.sync_high_s = low_s if high_s is None else high_s

    def fail_next_sync(self, times: int = 1, error: int = errno.EIO) -> None:
        """Make the next syncs of files or folders fail.

        The unsynced pages then read as before but count as clean: a later sync succeeds without
        them and a crash may take them. That is how Linux treats a failed fsync.
        """
        self._device.faults.fail("sync", times, error)

    def fail_writes(self, times: int | None = None, error: int = errno.EIO) -> None:
        """Make every change of files fail, this many times or until :meth:`repair`.

        With ``EROFS`` the disk acts as if remounted read-only: a write stores nothing.
        """
        self._device.faults.fail("write", times, error)

    def fail_reads(self, times: int | None = None, error: int = errno.EIO) -> None:
        """Make reads fail, this many times or until :meth:`repair`."""
        self._device.faults.fail("read", times, error)

    def repair(self) -> None:
        """End all failures; capacity and speed stay as they are."""
        self._device.faults.repair()

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Flip one bit of a file, in its durable copy as well.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        self._pages(path).flip(position, bit)

    def make_unreadable(self, path: str, position: int) -> None:
        """Make the page at a position of a file unreadable, until :meth:`repair` or a crash.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        self._pages(path)
        self._device.faults.unreadable.setdefault(path, set()).add(position // PAGE * PAGE)

    def cut_tail(self, path: str, size: int) -> None:
        """Cut a file to this size, in its durable copy as well, like a disk that lost data.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        self._pages(path).lose_tail(size)

    def crash(self, entropy: SeededEntropy | None = None, loss: Loss = Loss.ANY) -> None:
        """Lose power and return: the disk keeps synced bytes and an arbitrary part of the rest.

        Files and locks opened before raise ``StaleHandleError`` from now on. Injected failures end.

        Args:
            entropy: Decides what is lost; by default the disk's own.
            loss: The bytes that may be lost.
        """
        entropy = entropy or self._device.entropy
        if loss is Loss.ANY:
            loss = (Loss.NOTHING, Loss.EVERYTHING, Loss.TAIL, Loss.PAGES)[entropy.below(4)]
        self._device.crash(entropy, loss)
        self._syncing_until = 0.0

    # --- for tests and machines ---

    @property
    def events(self) -> int:
        """The number of operations that have changed the disk."""
        return self._device.events

    def durable(self, path: str) -> bytes:
        """The content of a file after the loss of all unsynced bytes.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        return self._pages(path).durable()

    def clone(self) -> MemoryDisk:
        """An independent disk in the same state, without open files, lock and hook."""
        twin = MemoryDisk()
        twin._device = self._device.clone()
        return twin

    def successor(self) -> MemoryDisk:
        """Move the state and the hook to a new object; every later use of this one raises
        ``PowerCut``.

        So a dead program's handles cannot reach the next program's disk.
        """
        twin = self.clone()
        twin.on_write = self.on_write
        self._device.unplugged = True
        return twin

    def _pages(self, path: str) -> Pages:
        pages = self._device.tree.find(path)
        if pages is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return pages


def power_cuts(
    disk: MemoryDisk, work: Callable[[MemoryDisk], object]
) -> Iterator[tuple[DiskEvent | None, MemoryDisk]]:
    """Every point at which the power may fail during some work.

    The work runs once, on a clone. Each operation on the disk yields a pair: the event, and the
    disk just before it. The last pair has no event, because the work is done. The disks are not
    crashed yet; call ``crash`` on each, once or with several seeds.
    """
    points: list[tuple[DiskEvent | None, MemoryDisk]] = []
    worked = disk.clone()
    worked.on_write = lambda event: points.append((event, worked.clone()))
    work(worked)
    points.append((None, worked))
    yield from points
