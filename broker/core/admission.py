"""Whether the broker takes writes now, and why not."""

from __future__ import annotations

from txmq.errors import ServiceUnavailable

__all__ = ["Admission"]


class Admission:
    """The reasons for which sends are refused, as they come and go."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def refuse(self, cause: str, reason: str) -> bool:
        """Refuse sends until the cause is lifted; whether this is news."""
        is_news = cause not in self._reasons
        self._reasons[cause] = reason
        return is_news

    def lift(self, cause: str) -> bool:
        """Take a cause away; whether it was there."""
        return self._reasons.pop(cause, None) is not None

    def check(self) -> None:
        """Pass, or say why not.

        Raises:
            ServiceUnavailable: Writes are refused now.
        """
        if self._reasons:
            raise ServiceUnavailable("; ".join(self._reasons.values()))
