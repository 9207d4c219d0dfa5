"""How often an address may fail to log in. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["LoginAttempts"]

FAILURES_MAX: Final = 10
"""Failures of an address within :data:`PERIOD_S`; then it must wait."""
PERIOD_S: Final = 60.0
ADDRESSES_MAX: Final = 1_000
"""Addresses that are remembered; a new one pushes out the one that failed least recently."""


class LoginAttempts:
    """The failed log-ins of the last minute, by address."""

    def __init__(self) -> None:
        self._failed: dict[str, list[float]] = {}

    def is_allowed(self, address: str, now_s: float) -> bool:
        """Whether the address may try now."""
        recent = [at_s for at_s in self._failed.get(address, ()) if now_s - at_s < PERIOD_S]
        return len(recent) < FAILURES_MAX

    def note_failure(self, address: str, now_s: float) -> None:
        """Count a failed log-in."""
        recent = [at_s for at_s in self._failed.pop(address, ()) if now_s - at_s < PERIOD_S]
        self._failed[address] = [*recent, now_s][-FAILURES_MAX:]
        if len(self._failed) > ADDRESSES_MAX:
            # The addresses are in the order of their last failures.
            del self._failed[next(iter(self._failed))]
