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
    """The faults of one disk. At first it has none, and is boundless and instant.

    Attributes:
        capacity: Bytes the disk holds, in whole pages; nothing means no limit.
        sync_low_s: The least virtual time that ``sync_soon`` takes.
        sync_high_s: The most that it takes; chance decides between the two.
    """

    capacity: int | None = None
    sync_low_s: float = 0.0
    sync_high_s: float = 0.0
    _failing: dict[Operation, tuple[int | None, int]] = field(default_factory=dict)

    def fail(self, operation: Operation, times: int | None, error: int) -> None:
        """Let the next operations of a kind fail; without a number, until :meth:`repair`."""
        self._failing[operation] = (times, error)

    def repair(self) -> None:
        """Let nothing fail any more. Capacity and speed stay as they are."""
        self._failing.clear()

    def copy(self) -> Faults:
        """An independent twin."""
        return replace(self, _failing=self._failing.copy())

    def sync_s(self, entropy: SeededEntropy) -> float:
        """How long the next sync takes."""
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
