"""How long to wait before something that failed is tried again."""

from __future__ import annotations

from txmq.runtime.entropy import Entropy

__all__ = ["Backoff"]


class Backoff:
    """Pauses that double up to a limit, with some chance in them.

    Without chance, everybody who lost the same peer would come back to it at the same moment.
    """

    def __init__(self, entropy: Entropy, first_s: float, most_s: float) -> None:
        self._entropy = entropy
        self._first_s = first_s
        self._most_s = most_s
        self._pause_s = first_s

    def failed(self) -> float:
        """The pause before the next try; each is longer than the one before."""
        pause_s = self._pause_s
        self._pause_s = min(pause_s * 2, self._most_s)
        return pause_s * (0.75 + self._entropy.fraction() / 2)

    def worked(self) -> None:
        """Begin with short pauses again."""
        self._pause_s = self._first_s
