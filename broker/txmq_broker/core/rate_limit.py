"""How often something may happen: a burst, then a steady rate. Pure."""

from __future__ import annotations

__all__ = ["RateLimit"]


class RateLimit:
    """A budget that fills up with time.

    Args:
        per_second: How fast it fills up.
        together: The most it holds; it begins full.
    """

    def __init__(self, per_second: float, together: int) -> None:
        self._per_second = per_second
        self._together = together
        self._left = float(together)
        self._at: float | None = None

    def take(self, count: int, now: float) -> bool:
        """Take from the budget; returns false, and takes nothing, if it has too little.

        A full budget allows any count, and owes the rest to the future.
        """
        if self._at is not None:
            filled = max(0.0, now - self._at) * self._per_second
            self._left = min(self._left + filled, float(self._together))
        self._at = now
        if self._left < min(count, self._together):
            return False
        self._left -= count
        return True

    def wait_s(self) -> float:
        """Seconds, from the last :meth:`take`, until it has room for one."""
        return max(0.0, (1.0 - self._left) / self._per_second)
