"""Filters by tags."""

from __future__ import annotations

from typing import Final, NamedTuple

from txmq.protocol import java

__all__ = ["TagFilter", "tag_filter"]

_LOW: Final = 0xFFFFFFFF


class TagFilter(NamedTuple):
    """The wanted tags: their hashes for a first check, the words for the final one."""

    hashes: frozenset[int]
    words: frozenset[str]


def tag_filter(expression: str) -> TagFilter | None:
    """The filter of an expression such as ``A || B``, or ``None`` if it wants all messages."""
    text = expression.strip()
    if text in ("", "*"):
        return None
    words = frozenset(word for part in text.split("||") if (word := part.strip()))
    if not words or "*" in words:
        return None
    return TagFilter(frozenset(java.string_hash(word) & _LOW for word in words), words)
