"""What the broker refuses to protect itself: writes for a reason, and too much at once. Pure."""

from __future__ import annotations

from typing import Final

from txmq.errors import ServiceUnavailable

__all__ = ["COPIES", "FULL", "Admission", "RateLimit"]

COPIES: Final = "copies"
"""The cause that too few copies are in sync."""
FULL: Final = "disk"
"""The cause that the disk is full beyond its mark."""


class Admission:
    """The current reasons to refuse all sends, or only half messages.

    Decisions are accepted nevertheless, because they free room, unless too few copies are in sync:
    a decision is as safe as its half message.

    Attributes:
        reasons: Why sends are refused, by cause; empty if they are accepted.
        half_reasons: Why half messages are refused although other sends may be accepted, by cause.
        halves_refused: The half messages that were refused for these since the start.
    """

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self.half_reasons: dict[str, str] = {}
        self.halves_refused = 0

    def check_decisions(self) -> None:
        """Refuse a decision while too few copies are in sync.

        Raises:
            ServiceUnavailable: They are too few; nothing was decided.
        """
        if (reason := self.reasons.get(COPIES)) is not None:
            raise ServiceUnavailable(reason)

    def check_halves(self) -> None:
        """Refuse a half message while there is a reason.

        Raises:
            ServiceUnavailable: There is one; nothing was stored.
        """
        if reasons := self.half_reasons:
            self.halves_refused += 1
            raise ServiceUnavailable("; ".join(reasons.values()))

    def set_cause(self, cause: str, reason: str, *, halves_only: bool = False) -> bool:
        """Refuse sends, or only half messages, until the cause is cleared; returns whether it is
        new.
        """
        reasons = self.half_reasons if halves_only else self.reasons
        is_news = cause not in reasons
        reasons[cause] = reason
        return is_news

    def clear_cause(self, cause: str, *, halves_only: bool = False) -> bool:
        """Remove a cause; returns whether it was set."""
        reasons = self.half_reasons if halves_only else self.reasons
        return reasons.pop(cause, None) is not None


class RateLimit:
    """How often something may happen: a burst, then a steady rate.

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
