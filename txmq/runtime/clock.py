"""Time: monotonic for durations, wall time for timestamps that leave the process."""

from __future__ import annotations

import time
from typing import Final, Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """The source of time."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back. All deadlines use it."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for disk and wire; may jump in either direction."""
        ...


class SystemClock:
    """The machine's clocks."""

    monotonic: Final = staticmethod(time.monotonic)

    def wall_ms(self) -> int:
        """See :meth:`Clock.wall_ms`."""
        return time.time_ns() // 1_000_000
