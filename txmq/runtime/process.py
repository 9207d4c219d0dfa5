"""This process: the owner of its objects, its memory, its time slice, and how Ctrl-C ends it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import platform
import signal
import threading
from collections.abc import Callable
from struct import Struct, calcsize
from types import FrameType
from typing import Final, NamedTuple
from weakref import WeakSet

from txmq.errors import UsageError

__all__ = [
    "OwnerProcess",
    "exempt_from_collection",
    "keep_freed_memory",
    "memory_bytes",
    "restore_interrupt",
    "shorten_time_slice",
    "until_stopped",
]

_owners: WeakSet[OwnerProcess] = WeakSet()


def _disown() -> None:
    for owner in _owners:
        owner.is_current = False


if hasattr(os, "register_at_fork"):
    # Reading an attribute is cheaper than calling os.getpid().
    os.register_at_fork(after_in_child=_disown)


class OwnerProcess:
    """The process that opened an object.

    Args:
        kind: The kind of object, for the error text.
    """

    __slots__ = ("__weakref__", "_kind", "_pid", "is_current")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._pid = os.getpid()
        self.is_current: bool = True
        """Whether the current process is the owner."""
        _owners.add(self)

    def check(self) -> None:
        """Refuse use in a forked child.

        Raises:
            UsageError: The current process is a child of the owner.
        """
        if not self.is_current:
            raise UsageError(
                f"this {self._kind} was opened in process {self._pid} and is used in its child "
                f"{os.getpid()}: a connection does not survive a fork; open one in each process "
                "after the fork, with gunicorn in its post_fork hook"
            )


_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 32 * 1024 * 1024
"""Freed memory that stays with the process: several spans and answers of full size."""


def keep_freed_memory() -> None:
    """Make glibc keep some freed memory for the next buffer.

    By default glibc returns the end of its heap to the system from 128 KiB on, and requests larger
    buffers from the system each time. A server that reads and joins such buffers for every span
    then faults their pages in again: 170 page faults for a thousand messages in batches.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # Not glibc.
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)


def memory_bytes() -> int:
    """The size of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def exempt_from_collection() -> None:
    """Exempt all objects that exist now from later garbage collections.

    A full collection visits every object, and the modules of a newly started server have some
    hundred thousand. A flood of requests caused several collections, and each stalled all clients
    for 30 ms.
    """
    gc.collect()
    gc.freeze()


class _SliceCalls(NamedTuple):
    """The numbers of the system calls on one kind of processor."""

    set_attributes: int
    get_attributes: int


_NUMBERS: Final = {
    "x86_64": _SliceCalls(set_attributes=314, get_attributes=315),
    "aarch64": _SliceCalls(set_attributes=274, get_attributes=275),
}

_ATTRIBUTES: Final = Struct("<IIQiIQQQ")
"""A ``struct sched_attr``: size, policy, flags, nice, priority, slice in ns, two deadlines."""

_USUAL: Final = 0
"""The policy ``SCHED_OTHER``."""

_SLICE_NS: Final = 100_000
"""The shortest slice that Linux allows."""


def shorten_time_slice() -> bool:
    """Give this thread, and all threads that it starts later, the shortest time slice.

    Return whether the thread has it now. Linux has such slices since version 6.12; elsewhere, or
    where a container forbids the system calls, nothing changes.
    """
    numbers = _NUMBERS.get(platform.machine()) if platform.system() == "Linux" else None
    if numbers is None or calcsize("P") != calcsize("Q"):
        return False
    call = ctypes.CDLL(None).syscall
    found = ctypes.create_string_buffer(_ATTRIBUTES.size)
    size, none = ctypes.c_long(_ATTRIBUTES.size), ctypes.c_long(0)
    if call(numbers.get_attributes, none, found, size, none) != 0:
        return False
    _, policy, flags, nice, priority, slice_ns, *deadlines = _ATTRIBUTES.unpack(found)
    if policy != _USUAL or slice_ns == 0:  # Older versions show no slice.
        return False
    if slice_ns <= _SLICE_NS:
        return True
    wanted = _ATTRIBUTES.pack(
        _ATTRIBUTES.size, policy, flags, nice, priority, _SLICE_NS, *deadlines
    )
    return call(numbers.set_attributes, none, wanted, none) == 0  # type: ignore[no-any-return]


def restore_interrupt() -> None:
    """Let SIGINT raise :class:`KeyboardInterrupt` again where the parent process ignores it.

    A shell script that starts a command with ``&`` makes it ignore SIGINT, and so do some
    supervisors. Python installs no handler then, and no later SIGINT ends the program.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _Interrupt:
    """Records that Ctrl-C came, and calls the previous handler."""

    def __init__(self, below: Callable[[int, FrameType | None], object]) -> None:
        self._below = below
        self.has_come = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.has_come = True
        self._below(number, frame)


async def until_stopped(stopped: asyncio.Event) -> None:
    """Wait for an event. Ctrl-C ends the wait too, instead of cancelling the waiting task.

    A program that only waits then leaves its ``async with`` blocks in order, and
    :func:`asyncio.run` returns. Otherwise it would raise :class:`KeyboardInterrupt` at the end.
    """
    below = signal.getsignal(signal.SIGINT)
    if not callable(below) or threading.current_thread() is not threading.main_thread():
        await stopped.wait()
        return
    # Another task may wait in the same way.
    interrupt = below if isinstance(below, _Interrupt) else _Interrupt(below)
    signal.signal(signal.SIGINT, interrupt)
    try:
        await stopped.wait()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not interrupt.has_come or task is None or task.uncancel():
            raise
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, below)
