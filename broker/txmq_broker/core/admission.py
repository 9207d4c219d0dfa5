"""How the broker protects itself: reasons to refuse writes, and limits on their rate. Pure."""

from __future__ import annotations

from typing import Final

from txmq.errors import ServiceUnavailable

__all__ = ["COPIES", "FULL", "Admission", "RateLimit"]

COPIES: Final = "copies"
"""The cause of refusals while too few copies are in sync."""
FULL: Final = "disk"
"""The cause of refusals while the disk is fuller than the retention settings allow."""


class Admission:
    """The current reasons to refuse all sends, or only half messages.

    Decisions are accepted all the same, because they free room. They are refused only while too few
    copies are in sync: a decision must be as safe as its half message.

    Attributes:
        reasons: Why sends are refused, by cause; empty if they are accepted. The flusher asks for
            these when a turn begins.
        half_reasons: Why half messages are refused although other sends may be accepted, by cause.
        halves_refused: The number of half messages refused for these reasons since the start.
    """

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self.half_reasons: dict[str, str] = {}
        self.halves_refused = 0

    def check_decisions(self) -> None:
        """Refuse a decision while too few copies are in sync.

        Raises:
            ServiceUnavailable: Too few copies are in sync; nothing was decided.
        """
        if (reason := self.reasons.get(COPIES)) is not None:
            raise ServiceUnavailable(reason)

    def check_halves(self) -> None:
        """Refuse a half message while there is a reason.

        Raises:
            ServiceUnavailable: There is a reason; nothing was stored.
        """
        if reasons := self.half_reasons:
            self.halves_refused += 1
            raise ServiceUnavailable("; ".join(reasons.values()))

    def set_cause(self, cause: str, reason: str, *, halves_only: bool = False) -> bool:
        """Refuse sends, or only half messages, until the cause is cleared.

        Returns whether the cause is new.
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
    """A token bucket: it allows a burst, then a steady rate.

    Args:
        per_second: The number of tokens added in a second.
        together: The maximum number of tokens; the bucket begins full.
    """

    def __init__(self, per_second: float, together: int) -> None:
        self._per_second = per_second
        self._together = together
        self._left = float(together)
        self._at: float | None = None

    def take(self, count: int, now: float) -> bool:
        """Take tokens; returns false, and takes none, if there are too few.

        A full bucket allows any count and goes into debt for the rest.
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
        """Seconds from the last :meth:`take` until there is one token."""
        return max(0.0, (1.0 - self._left) / self._per_second)
