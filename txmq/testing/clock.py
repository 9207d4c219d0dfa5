"""A machine's clocks in virtual time; the wall clock can be wrong, jump and drift."""

from __future__ import annotations

import asyncio

__all__ = ["SimulatedClock"]

EPOCH_MS = 1_700_000_000_000
"""The wall time at virtual second 0: a day in November 2023."""


class SimulatedClock:
    """An :class:`txmq.runtime.Clock` over an event loop's time.

    The monotonic clock is the loop's, so that timers and deadlines agree. The wall clock starts
    right; :meth:`jump` and :meth:`drift` make it wrong.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch_ms: int = EPOCH_MS) -> None:
        self._loop = loop
        self._since = loop.time()
        self._wall_s = epoch_ms / 1000 + self._since
        self._rate = 1.0

    def monotonic(self) -> float:
        """See :meth:`txmq.runtime.Clock.monotonic`."""
        return self._loop.time()

    def wall_ms(self) -> int:
        """See :meth:`txmq.runtime.Clock.wall_ms`."""
        return round(self._wall_now() * 1000)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or back if negative."""
        self._rebase()
        self._wall_s += seconds

    def drift(self, rate: float) -> None:
        """Make the wall clock gain this many seconds per second from now on, or lose them if
        negative.
        """
        self._rebase()
        self._rate = 1.0 + rate

    def _wall_now(self) -> float:
        return self._wall_s + (self._loop.time() - self._since) * self._rate

    def _rebase(self) -> None:
        self._wall_s, self._since = self._wall_now(), self._loop.time()
