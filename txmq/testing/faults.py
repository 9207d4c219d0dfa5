"""The faults of a disk: failing operations, a limited size, slow syncs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Literal

from txmq.testing.entropy import SeededEntropy

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
    _failing: dict[Operation, tuple[int | None, int]] = field(default_factory=dict)

    def fail(self, operation: Operation, times: int | None, error: int) -> None:
        """Make the next operations of a kind fail; without a number, until :meth:`repair`."""
        self._failing[operation] = (times, error)

    def repair(self) -> None:
        """End all failures. Capacity and speed stay as they are."""
        self._failing.clear()

    def copy(self) -> Faults:
        """An independent copy."""
        return replace(self, _failing=self._failing.copy())

    def sync_s(self, entropy: SeededEntropy) -> float:
        """The duration of the next sync."""
        if self.sync_high_s <= self.sync_low_s:
            return self.sync_low_s
        return self.sync_low_s + (self.sync_high_s - self.sync_low_s) * entropy.fraction()

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
