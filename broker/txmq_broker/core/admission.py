"""The reasons why the broker refuses writes now."""

from __future__ import annotations

from typing import Final

from txmq.errors import ServiceUnavailable

__all__ = ["COPIES", "FULL", "Admission"]

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

    def refuse(self, cause: str, reason: str) -> bool:
        """Refuse sends until the cause is lifted; returns whether the cause is new."""
        is_news = cause not in self.reasons
        self.reasons[cause] = reason
        return is_news

    def lift(self, cause: str) -> bool:
        """Remove a cause; returns whether it was set."""
        return self.reasons.pop(cause, None) is not None

    def refuse_halves(self, cause: str, reason: str) -> bool:
        """Refuse new half messages until the cause is lifted; returns whether the cause is new."""
        is_news = cause not in self.half_reasons
        self.half_reasons[cause] = reason
        return is_news

    def lift_halves(self, cause: str) -> bool:
        """Remove a cause against half messages; returns whether it was set."""
        return self.half_reasons.pop(cause, None) is not None
