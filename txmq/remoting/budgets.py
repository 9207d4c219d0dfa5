"""Bytes that a server keeps for its peers, over all connections. Pure.

A limit for each connection is not enough: 10,000 connections multiply it. If the sum exceeds its
budget, the holders that have kept something longest lose their connections first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["ByteBudget"]

H = TypeVar("H")


class ByteBudget(Generic[H]):
    """Bytes by holder, the oldest first.

    Args:
        limit: The most bytes of all holders together.
        size_of: The bytes a holder keeps now; noted sizes may be out of date.

    Attributes:
        total: The noted bytes.
        cut: The number of holders that were removed because the budget was exceeded.
    """

    def __init__(self, limit: int, size_of: Callable[[H], int]) -> None:
        self._limit = limit
        self._size_of = size_of
        self._sizes: dict[H, int] = {}
        self.total: int = 0
        self.cut: int = 0

    def note(self, holder: H, size: int, *, is_new: bool = False) -> list[H]:
        """Set a holder's bytes; returns the holders to cut off, which are forgotten.

        Args:
            holder: The holder.
            size: Its bytes; 0 forgets it.
            is_new: Whether it has begun anew, so that it becomes the youngest.
        """
        if is_new or not size:
            self.forget(holder)
        if size:
            self.total += size - self._sizes.get(holder, 0)
            self._sizes[holder] = size
        return self._oldest() if self.total > self._limit else []

    def forget(self, holder: H) -> None:
        """Forget a holder; harmless if it is unknown."""
        self.total -= self._sizes.pop(holder, 0)

    def _oldest(self) -> list[H]:
        for holder, noted in list(self._sizes.items()):
            size = self._size_of(holder)
            if size:
                self.total += size - noted
                self._sizes[holder] = size
            else:
                self.forget(holder)
        found: list[H] = []
        for holder in list(self._sizes):
            if self.total <= self._limit:
                break
            self.forget(holder)
            found.append(holder)
        self.cut += len(found)
        return found
