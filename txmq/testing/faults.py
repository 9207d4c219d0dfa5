"""The faults of a disk: failing operations, a limited size, slow syncs."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field, replace
from typing import Literal

from txmq.testing.entropy import SeededEntropy
from txmq.testing.pages import PAGE

__all__ = ["Faults", "Operation"]

Operation = Literal["read", "write", "sync"]


@dataclass(slots=True)
class Faults:
    """The faults of one disk: at first none, unlimited and instant.

    Attributes:
        capacity: The disk's size in bytes, in whole pages; ``None`` means no limit.
        sync_low_s: The least virtual time that ``sync_soon`` takes.
        sync_high_s: The most that it takes; the actual time is random.
    """

    capacity: int | None = None
    sync_low_s: float = 0.0
    sync_high_s: float = 0.0
    unreadable: dict[str, set[int]] = field(default_factory=dict)
    """The positions of unreadable pages, by file."""
    _failing: dict[Operation, tuple[int | None, int]] = field(default_factory=dict)

    def fail(self, operation: Operation, times: int | None, error: int) -> None:
        """Make the next operations of a kind fail; without a number, until :meth:`repair`."""
        self._failing[operation] = (times, error)

    def repair(self) -> None:
        """End all failures. Capacity and speed stay as they are."""
        self._failing.clear()
        self.unreadable.clear()

    def copy(self) -> Faults:
        """An independent copy."""
        unreadable = {path: pages.copy() for path, pages in self.unreadable.items()}
        return replace(self, unreadable=unreadable, _failing=self._failing.copy())

    def sync_s(self, entropy: SeededEntropy) -> float:
        """The duration of the next sync."""
        if self.sync_high_s <= self.sync_low_s:
            return self.sync_low_s
        return self.sync_low_s + (self.sync_high_s - self.sync_low_s) * entropy.fraction()

    def readable(self, path: str, position: int, size: int) -> int:
        """How many bytes a read there returns: as on Linux, it ends before an unreadable page.

        Raises:
            OSError: The read begins in an unreadable page.
        """
        for page in sorted(self.unreadable[path]):
            if position < page + PAGE and page < position + size:
                if page <= position:
                    raise OSError(errno.EIO, os.strerror(errno.EIO), path)
                return page - position
        return size

    def check(self, operation: Operation) -> None:
        """Count one operation of a kind.

        Raises:
            OSError: This operation fails.
        """
        if operation not in self._failing:
            return
        times, error = self._failing[operation]
        if times is not None:
            if times <= 1:
                del self._failing[operation]
            else:
                self._failing[operation] = (times - 1, error)
        raise OSError(error, os.strerror(error))
