"""The disk: files under one root, written at positions and synced on demand.

Paths use ``/`` and are relative to the root, so callers need not know where it lies. A power cut
may lose any part of what was written but not synced. Callers that promise durability call ``sync``
and rely on nothing before it returns.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple, Protocol, TypeAlias

from txmq.runtime import file_room
from txmq.runtime.kernel_sync import KernelSyncs
from txmq.runtime.sync_choice import SyncChoice
from txmq.runtime.tasks import resolve

__all__ = ["NO_ROOM", "Disk", "File", "LocalDisk", "Lock", "ReadOnlyDisk", "Space", "sync_path"]

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The error numbers of a full disk, a full quota, and a limit of the process on the size of files.

Files stay readable, and room may become free.
"""

_NOT_THERE: Final = (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY)
"""The error numbers for a command that the file system does not support."""

_PIECES_MAX: Final = 1024
"""Pieces in one vectored write; Linux and macOS accept no more."""


class Space(NamedTuple):
    """The used and total bytes of a disk."""

    used: int
    total: int

    @property
    def used_part(self) -> float:
        """How full the disk is, from 0 to 1."""
        return self.used / self.total if self.total else 0.0


class File(Protocol):
    """An open file. Every method raises ``OSError`` if the disk fails."""

    def read(self, position: int, size: int) -> bytes:
        """The bytes from a position on; fewer than requested at the end of the file."""
        ...

    def write(self, position: int, *pieces: bytes | bytearray) -> None:
        """Write all pieces at a position, one after the other, or raise.

        After an error any part may have been written. The file keeps no reference to the pieces.
        """
        ...

    def sync(self) -> None:
        """Return once everything written so far would survive a power cut."""
        ...

    def size(self) -> int:
        """The length of the file."""
        ...

    def truncate(self, size: int) -> None:
        """Cut or extend the file to a length."""
        ...

    def close(self) -> None:
        """Close the file; harmless when repeated."""
        ...


class Lock(Protocol):
    """An exclusive lock on the directory."""

    def release(self) -> None:
        """Release the directory for other processes."""
        ...


class Disk(Protocol):
    """A directory tree. Every method raises ``OSError`` if the disk fails."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and writing; ``create`` creates it and its folders durably.

        Raises:
            FileNotFoundError: The file does not exist and ``create`` is false.
        """
        ...

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; empty if the folder does not exist."""
        ...

    def replace(self, path: str, data: bytes, *, keep: str | None = None) -> None:
        """Replace a small file atomically and durably: after a crash it is the old or the new one.

        ``keep`` is a second name in the same folder, under which the old file remains.
        """
        ...

    def remove(self, path: str) -> None:
        """Delete a file durably; harmless if it does not exist."""
        ...

    def space(self) -> Space:
        """The used and total bytes."""
        ...

    def lock(self) -> Lock:
        """Lock the directory for this process.

        Raises:
            BlockingIOError: Another process holds it.
        """
        ...

    def sync_soon(self, files: Sequence[File]) -> asyncio.Future[None]:
        """Start ``file.sync()`` for the files in order, without blocking the event loop."""
        ...

    def run_soon(self, work: Callable[[], None]) -> Awaitable[None]:
        """Queue a function that blocks on this disk; functions run in order, one at a time."""
        ...


_Job: TypeAlias = "tuple[Sequence[Callable[[], None]], asyncio.Future[None]]"


class LocalDisk:
    """A directory of this machine.

    The kernel syncs files if it can, and while that is faster; otherwise a thread does. Another
    thread runs all other blocking functions, so syncs never wait for these. Both start when first
    needed.

    Args:
        root: The directory.
        adds_room: Whether to preallocate room for growing files. Writes are then cheaper, and syncs
            of a few bytes take longer.
    """

    def __init__(self, root: str | os.PathLike[str], *, adds_room: bool = False) -> None:
        self.root: Path = Path(root)
        self._adds_room = adds_room
        self._sync_thread = _JobThread("txmq-sync")
        self._work_thread = _JobThread("txmq-disk")
        self._syncs: KernelSyncs | None = None
        self._can_kernel_sync = True
        self._choice = SyncChoice()

    def open(self, path: str, *, create: bool = False) -> File:
        """See :meth:`Disk.open`."""
        full = self.root / path
        if not create:
            return self._file(os.open(full, os.O_RDWR | os.O_CLOEXEC))
        self._make_folders(full.parent)
        descriptor = os.open(full, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            # Even if the file exists: its creator may have crashed before this sync.
            sync_path(full.parent)
        except OSError:
            os.close(descriptor)
            raise
        return self._file(descriptor)

    def _file(self, descriptor: int) -> File:
        return _GrowingFile(descriptor) if self._adds_room else _LocalFile(descriptor)

    def names(self, folder: str) -> list[str]:
        """See :meth:`Disk.names`."""
        try:
            return sorted(os.listdir(self.root / folder))
        except FileNotFoundError:
            return []

    def replace(self, path: str, data: bytes, *, keep: str | None = None) -> None:
        """See :meth:`Disk.replace`."""
        full = self.root / path
        self._make_folders(full.parent)
        draft = full.with_name(full.name + ".new")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            file = _LocalFile(descriptor)
            file.write(0, data)
            file.sync(data_only=False)
        except OSError as error:
            # On a full disk the draft would only take room.
            with suppress(OSError):
                draft.unlink()
            raise OSError(error.errno, error.strerror, str(full)) from error
        finally:
            os.close(descriptor)
        if keep is not None:
            _keep_as(full, self.root / keep)
        os.replace(draft, full)
        sync_path(full.parent)

    def remove(self, path: str) -> None:
        """See :meth:`Disk.remove`."""
        full = self.root / path
        full.unlink(missing_ok=True)
        if full.parent.exists():
            sync_path(full.parent)

    def link(self, file: Path, path: str) -> None:
        """Hard-link a file from elsewhere on this file system into the directory, durably.

        Raises:
            FileNotFoundError: The file does not exist.
            OSError: It is on another file system, or the disk refuses.
        """
        full = self.root / path
        self._make_folders(full.parent)
        full.unlink(missing_ok=True)
        full.hardlink_to(file)
        sync_path(full.parent)

    def space(self) -> Space:
        """See :meth:`Disk.space`."""
        found = os.statvfs(self.root)
        total = found.f_blocks * found.f_frsize
        return Space(used=total - found.f_bavail * found.f_frsize, total=total)

    def lock(self) -> Lock:
        """See :meth:`Disk.lock`."""
        import fcntl  # Imported here, so that clients can load this module on Windows.

        self._make_folders(self.root)
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise
        with suppress(OSError):
            # Only for people who read the file; a full disk may have no room for it.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return _LocalLock(descriptor)

    def sync_soon(self, files: Sequence[File]) -> asyncio.Future[None]:
        """See :meth:`Disk.sync_soon`."""
        descriptors = [file.descriptor for file in files if isinstance(file, _LocalFile)]
        if not self._can_kernel_sync or not descriptors or len(descriptors) < len(files):
            return self._sync_thread.start([file.sync for file in files])
        done = None
        if not self._choice.begin():
            syncs = self._kernel_syncs()
            done = None if syncs is None else syncs.sync(descriptors)
            # If it refuses, the thread syncs from now on: two syncs of a file never overlap.
            self._can_kernel_sync = done is not None
        if done is None:
            done = self._sync_thread.start([file.sync for file in files])
        done.add_done_callback(self._choice.end)
        return done

    def _kernel_syncs(self) -> KernelSyncs | None:
        loop = asyncio.get_running_loop()
        if self._syncs is not None and self._syncs.loop is loop:
            return self._syncs
        try:
            syncs = KernelSyncs(loop)
        except (OSError, NotImplementedError):
            return None  # Another system, or a container that forbids these system calls.
        self._syncs = syncs
        weakref.finalize(self, syncs.close_soon)
        return syncs

    def run_soon(self, work: Callable[[], None]) -> Awaitable[None]:
        """See :meth:`Disk.run_soon`."""
        return self._work_thread.start([work])

    def _make_folders(self, folder: Path) -> None:
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            sync_path(folder.parent)


class ReadOnlyDisk(LocalDisk):
    """A directory for reading: nothing in it is created, written or removed.

    It also works on a directory that this process may not write to.
    """

    def open(self, path: str, *, create: bool = False) -> File:  # noqa: ARG002 - the port's
        """See :meth:`Disk.open`; a missing file is not created.

        Raises:
            FileNotFoundError: The file does not exist, even if ``create`` is true.
        """
        return _LocalFile(os.open(self.root / path, os.O_RDONLY | os.O_CLOEXEC))

    def replace(
        self,
        path: str,
        data: bytes,  # noqa: ARG002 - the port's
        *,
        keep: str | None = None,  # noqa: ARG002 - the port's
    ) -> None:
        """Refuse to write.

        Raises:
            OSError: Always.
        """
        raise self._refusal(path)

    def remove(self, path: str) -> None:
        """Refuse to delete.

        Raises:
            OSError: Always.
        """
        raise self._refusal(path)

    def lock(self) -> Lock:
        """Keep writers out while this process reads; other readers may share the lock.

        A reader cannot create a lock file, so a directory without a readable lock file stays
        unlocked.
        """
        import fcntl

        try:
            descriptor = os.open(self.root / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):
            return _LocalLock(-1)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise
        return _LocalLock(descriptor)

    def _refusal(self, path: str) -> OSError:
        return OSError(errno.EROFS, os.strerror(errno.EROFS), str(self.root / path))


class _LocalFile:
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def read(self, position: int, size: int) -> bytes:
        return os.pread(self.descriptor, size, position)

    def write(self, position: int, *pieces: bytes | bytearray) -> None:
        done = 0
        if 1 < len(pieces) <= _PIECES_MAX:
            done = os.pwritev(self.descriptor, pieces, position)
            if done == sum(map(len, pieces)):
                return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if not done:
            done = os.pwrite(self.descriptor, data, position)
        while done < len(data):
            # A short write is how a disk that fills up announces itself; the next write raises.
            step = os.pwrite(self.descriptor, memoryview(data)[done:], position + done)
            if step == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            done += step

    def sync(self, *, data_only: bool = True) -> None:
        """Return once the written data would survive a power cut.

        macOS has no fdatasync, and its fsync leaves the bytes in the drive's cache; the command
        F_FULLFSYNC also flushes that cache.
        """
        import fcntl

        full_sync = getattr(fcntl, "F_FULLFSYNC", None)
        if full_sync is not None:
            try:
                fcntl.fcntl(self.descriptor, full_sync)
            except OSError as error:
                if error.errno not in _NOT_THERE:
                    raise
            else:
                return
        if data_only and hasattr(os, "fdatasync"):
            os.fdatasync(self.descriptor)
        else:
            os.fsync(self.descriptor)

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class _GrowingFile(_LocalFile):
    """A file that preallocates room for the next writes."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._room = 0
        """The position up to which the file has room, or before which it gets none."""

    def write(self, position: int, *pieces: bytes | bytearray) -> None:
        if position > self._room:
            self._room = position + file_room.add_room(self.descriptor, position)
        super().write(position, *pieces)

    def truncate(self, size: int) -> None:
        super().truncate(size)  # This also returns the room behind the new end.
        self._room = 0

    def close(self) -> None:
        if self._room and self.descriptor >= 0:
            file_room.return_room(self.descriptor)
        super().close()


class _LocalLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _keep_as(file: Path, kept: Path) -> None:
    """Give a file a second name. Its own name stays, so a crash never loses both."""
    kept.unlink(missing_ok=True)
    try:
        kept.hardlink_to(file)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP):
            raise
        # A file system without hard links.
        with kept.open("wb") as copy:
            copy.write(file.read_bytes())
            copy.flush()
            _LocalFile(copy.fileno()).sync(data_only=False)


class _JobThread:
    """A thread that runs jobs one after another; it ends with this object."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] | None = None

    def start(self, works: Sequence[Callable[[], None]]) -> asyncio.Future[None]:
        """Queue functions to run one after another, after all earlier jobs."""
        if self._jobs is None:
            self._jobs = SimpleQueue()
            threading.Thread(
                target=_run_jobs, args=(self._jobs,), name=self._name, daemon=True
            ).start()
            # The thread holds no reference to this object.
            weakref.finalize(self, self._jobs.put, None)
        done = asyncio.get_running_loop().create_future()
        self._jobs.put((works, done))
        return done


def _run_jobs(jobs: SimpleQueue[_Job | None]) -> None:
    """Run the jobs of one thread. An executor would cost twice as much, and if this thread syncs,
    every synced send waits for it.
    """
    while (job := jobs.get()) is not None:
        works, done = job
        failure = None
        try:
            _run_all(works)
        except Exception as error:  # noqa: BLE001 - the caller that awaits the job gets it
            failure = error
        with suppress(RuntimeError):  # The loop was closed: nobody waits any more.
            done.get_loop().call_soon_threadsafe(resolve, done, None, failure)
        # A waiting thread must not keep the last job's objects alive.
        del job, works, done, failure


def _run_all(works: Sequence[Callable[[], None]]) -> None:
    for work in works:
        work()


def sync_path(path: Path) -> None:
    """Sync a file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _LocalFile(descriptor).sync(data_only=False)
    finally:
        os.close(descriptor)
