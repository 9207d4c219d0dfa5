"""Counts equal log lines, so that a peer that repeats a mistake cannot fill the log."""

from __future__ import annotations

from collections import Counter

from txmq.limits import REPEATED_LINES_MAX

__all__ = ["RepeatedLines"]


class RepeatedLines:
    """Lets the first of equal lines through, and the tenth, the hundredth and so on."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def note(self, line: str) -> str | None:
        """Count a line.

        Returns:
            How often it occurred, as words to add to it; ``None`` if it shall not be written.
        """
        if len(self._counts) >= REPEATED_LINES_MAX and line not in self._counts:
            self._counts.clear()
        self._counts[line] += 1
        count = self._counts[line]
        if count != 10 ** (len(str(count)) - 1):
            return None
        return f" ({count} times)" if count > 1 else ""
