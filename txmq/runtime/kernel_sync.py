"""Syncs that the Linux kernel runs by itself, without a thread of this process.

A thread that syncs must take Python's lock from the event loop first, and wake the loop through
the same lock at the end. Here one system call starts a sync, a thread of the kernel runs it, and an
eventfd wakes the loop. The C library has no function for these system calls, so they are called by
number.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from struct import Struct, calcsize
from typing import Final, NamedTuple

from txmq.runtime.tasks import resolve

__all__ = ["KernelSyncs"]


class _CallNumbers(NamedTuple):
    """The numbers of the system calls on one kind of processor."""

    setup: int
    destroy: int
    get_events: int
    submit: int


_NUMBERS: Final = {
    "x86_64": _CallNumbers(setup=206, destroy=207, get_events=208, submit=209),
    "aarch64": _CallNumbers(setup=0, destroy=1, get_events=4, submit=2),
}

_REQUEST: Final = Struct("<QIIHhiQQqQII")
"""A ``struct iocb``: number, key, flags of the request, operation, priority, file, buffer, size,
position, reserved, flags of the result, eventfd."""

_EVENT: Final = Struct("<QQqq")
"""A ``struct io_event``: number, request, result, second result."""

_TIME_SPEC: Final = Struct("<qq")

_FDSYNC: Final = 3
"""The operation ``IOCB_CMD_FDSYNC``, as ``fdatasync``."""
_WAKE: Final = 1
"""The flag ``IOCB_FLAG_RESFD``: the end of the request wakes the eventfd."""


_NONE: Final = ctypes.c_long(0)
_ONE: Final = ctypes.c_long(1)


class _SyncJob(NamedTuple):
    """The files still to sync, and the future for the result."""

    descriptors: Iterator[int]
    done: asyncio.Future[None]


class KernelSyncs:
    """Syncs for one event loop, one at a time and in order.

    Two at the same time would be unsafe: the kernel reports the failure of a write to one of them,
    and the other succeeds.

    Attributes:
        loop: The loop that gets the results.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Prepare syncs for a loop.

        Raises:
            OSError: This system does not have them, or forbids them.
            NotImplementedError: The loop cannot wait for an eventfd.
        """
        is_linux = platform.system() == "Linux" and hasattr(os, "fdatasync")
        numbers = _NUMBERS.get(platform.machine()) if is_linux else None
        if numbers is None or calcsize("P") != calcsize("Q"):
            raise OSError("this system has no syncs that are known here")
        self.loop = loop
        self._numbers = numbers
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._jobs: deque[_SyncJob] = deque()
        """The queued syncs; the first one is running."""
        # The kernel reads and writes these during a call only.
        self._request = ctypes.create_string_buffer(_REQUEST.size)
        self._requests = ctypes.pointer(ctypes.c_void_p(ctypes.addressof(self._request)))
        self._event = ctypes.create_string_buffer(_EVENT.size)
        self._no_wait = ctypes.create_string_buffer(_TIME_SPEC.size)
        self._context = ctypes.c_ulong(0)
        if self._call(numbers.setup, _ONE, ctypes.byref(self._context)) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._wake = -1
        try:
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            loop.add_reader(self._wake, self._collect)
        except BaseException:
            self._release()
            raise

    def sync(self, descriptors: list[int]) -> asyncio.Future[None] | None:
        """Start ``fdatasync`` of open files, one after another.

        The future raises ``OSError`` if the disk fails. The result is ``None`` if the kernel
        refuses; then nothing runs.
        """
        done = self.loop.create_future()
        job = _SyncJob(iter(descriptors), done)
        if not self._jobs and not self._submit(next(job.descriptors)):
            return None
        self._jobs.append(job)
        return done

    def _submit(self, descriptor: int) -> bool:
        fields = (0, 0, 0, _FDSYNC, 0, descriptor, 0, 0, 0, 0, _WAKE, self._wake)
        _REQUEST.pack_into(self._request, 0, *fields)
        return self._call(self._numbers.submit, self._context, _ONE, self._requests) == 1  # type: ignore[no-any-return]

    def _collect(self) -> None:
        """Take the result of the finished sync, and start the next one."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        call, numbers = self._call, self._numbers
        if call(numbers.get_events, self._context, _NONE, _ONE, self._event, self._no_wait) == 1:
            _, _, result, _ = _EVENT.unpack(self._event)
            self._go_on(OSError(-result, os.strerror(-result)) if result < 0 else None)

    def _go_on(self, error: Exception | None) -> None:
        while self._jobs:
            job = self._jobs[0]
            descriptor = next(job.descriptors, None) if error is None else None
            if descriptor is None:
                self._jobs.popleft()
                resolve(job.done, None, error)
                error = None
                continue
            if self._submit(descriptor):
                return
            # The kernel took earlier syncs, so it must be short of memory. Here the loop blocks.
            try:
                os.fdatasync(descriptor)
            except (OSError, ValueError) as failure:  # ValueError: the file was closed.
                error = failure

    def close_soon(self) -> None:
        """Free all resources, from any thread. Results of running syncs never arrive."""
        try:
            self.loop.call_soon_threadsafe(self._close)
        except RuntimeError:  # The loop was closed, and its readers with it.
            self._release()

    def _close(self) -> None:
        self.loop.remove_reader(self._wake)
        self._release()

    def _release(self) -> None:
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1
        if not self._jobs:
            # During a sync this call would wait for the disk, forever if that hangs.
            self._call(self._numbers.destroy, self._context)
