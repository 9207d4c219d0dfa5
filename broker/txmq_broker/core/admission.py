"""Whether the broker accepts writes now, and if not, why."""

from __future__ import annotations

from txmq.errors import ServiceUnavailable

__all__ = ["Admission"]


class Admission:
    """The current reasons to refuse all sends, or only half messages.

    Decisions are always accepted, because they free room.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._half_reasons: dict[str, str] = {}

    def refuse(self, cause: str, reason: str) -> bool:
        """Refuse sends until the cause is lifted; returns whether the cause is new."""
        is_news = cause not in self._reasons
        self._reasons[cause] = reason
        return is_news

    def lift(self, cause: str) -> bool:
        """Remove a cause; returns whether it was set."""
        return self._reasons.pop(cause, None) is not None

    def refuse_halves(self, cause: str, reason: str) -> bool:
        """Refuse new half messages until the cause is lifted; returns whether the cause is new."""
        is_news = cause not in self._half_reasons
        self._half_reasons[cause] = reason
        return is_news

    def lift_halves(self, cause: str) -> bool:
        """Remove a cause against half messages; returns whether it was set."""
        return self._half_reasons.pop(cause, None) is not None

    def check_halves(self) -> None:
        """Check that half messages are accepted.

        Raises:
            ServiceUnavailable: Half messages are refused now.
        """
        if self._half_reasons:
            raise ServiceUnavailable("; ".join(self._half_reasons.values()))

    def check(self) -> None:
        """Check that sends are accepted.

        Raises:
            ServiceUnavailable: Writes are refused now.
        """
        if self._reasons:
            raise ServiceUnavailable("; ".join(self._reasons.values()))
