"""Pauses between retries."""

from __future__ import annotations

from txmq.runtime.entropy import Entropy

__all__ = ["Backoff"]


class Backoff:
    """Pauses that double up to a limit, with random jitter.

    Without jitter, all clients that lost the same peer would return to it at the same moment.
    """

    def __init__(self, entropy: Entropy, first_s: float, most_s: float) -> None:
        self._entropy = entropy
        self._first_s = first_s
        self._most_s = most_s
        self._pause_s = first_s

    def next_pause(self) -> float:
        """The pause in seconds before the next try, twice the previous one on average."""
        pause_s = self._pause_s
        self._pause_s = min(pause_s * 2, self._most_s)
        return pause_s * (0.75 + self._entropy.fraction() / 2)

    def reset(self) -> None:
        """Return to short pauses after a success."""
        self._pause_s = self._first_s
