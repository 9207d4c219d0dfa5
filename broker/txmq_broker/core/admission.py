"""Whether the broker takes writes now, and why not."""

from __future__ import annotations

from txmq.errors import ServiceUnavailable

__all__ = ["Admission"]


class Admission:
    """The reasons for which sends, or half messages alone, are refused, as they come and go.

    Decisions are always taken: they are what frees room.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._half_reasons: dict[str, str] = {}

    def refuse(self, cause: str, reason: str) -> bool:
        """Refuse sends until the cause is lifted; whether this is news."""
        is_news = cause not in self._reasons
        self._reasons[cause] = reason
        return is_news

    def lift(self, cause: str) -> bool:
        """Take a cause away; whether it was there."""
        return self._reasons.pop(cause, None) is not None

    def refuse_halves(self, cause: str, reason: str) -> bool:
        """Refuse new half messages until the cause is lifted; whether this is news."""
        is_news = cause not in self._half_reasons
        self._half_reasons[cause] = reason
        return is_news

    def lift_halves(self, cause: str) -> bool:
        """Take such a cause away; whether it was there."""
        return self._half_reasons.pop(cause, None) is not None

    def check_halves(self) -> None:
        """Pass, or say why no half message is taken.

        Raises:
            ServiceUnavailable: Half messages are refused now.
        """
        if self._half_reasons:
            raise ServiceUnavailable("; ".join(self._half_reasons.values()))

    def check(self) -> None:
        """Pass, or say why not.

        Raises:
            ServiceUnavailable: Writes are refused now.
        """
        if self._reasons:
            raise ServiceUnavailable("; ".join(self._reasons.values()))
