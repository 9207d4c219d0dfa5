"""Memory: settings of the C library's allocator and of Python's collector for a server."""

from __future__ import annotations

import ctypes
import gc
import os
from typing import Final

__all__ = ["exempt_from_collection", "keep_freed_memory", "memory_bytes"]

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
    """Exempt all objects that exist now from later collections of cyclic garbage.

    A full collection looks at every object, and a server that has just started has some hundred
    thousand of its modules. A flood of requests caused several, each of which held up all clients
    for 30 ms.
    """
    gc.collect()
    gc.freeze()
