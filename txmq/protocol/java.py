"""Java's string hash, by which brokers and clients match tags."""

from __future__ import annotations

from functools import lru_cache

__all__ = ["string_hash"]


@lru_cache(maxsize=4096)
def string_hash(text: str) -> int:
    """``String.hashCode``: signed, 32 bits, over UTF-16 units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
