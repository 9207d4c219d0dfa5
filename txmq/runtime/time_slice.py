"""Short time slices for a process that works little and often.

On a busy machine Linux lets a program that wakes up interrupt another one only if its slice ends
first. With equal slices it may wait for milliseconds, at each step of a request. A short slice
gives the process no more of the processor's time, only sooner.
"""

from __future__ import annotations

import ctypes
import platform
from struct import Struct, calcsize
from typing import Final, NamedTuple

__all__ = ["shorten_time_slice"]


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
