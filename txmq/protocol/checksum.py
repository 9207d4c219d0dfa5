"""CRC-32, the checksum of every body and of every write to the log.

The extra ``txmq[broker]`` makes it five times as fast, with the same results.
"""

from __future__ import annotations

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
