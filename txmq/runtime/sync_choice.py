"""The choice between two ways to sync: by the kernel, or by a thread of this process.

The kernel's way costs less, but its worker stays on the core that started the sync. While other
programs keep that core busy, some syncs wait for a whole turn of the scheduler, which takes
milliseconds. A thread can move to another core. So the kernel syncs until its syncs become much
slower than usual, or until some 16,000 have run since the last comparison. Then both ways are
compared, and the faster one is kept for at least 1,024 syncs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["SyncChoice"]

_COMPARED: Final = 64
"""The number of syncs by which a way is judged."""
_TAIL: Final = 1.5
"""The kernel is slow if the mean time of its syncs is more than this many times the usual time."""
_DRIFT: Final = 1.02
"""The most that the usual time grows at each check, towards the present median."""
_GAIN: Final = 1.25
"""The thread must be this many times as fast to be chosen."""
_KEPT: Final = 1024
"""The number of syncs before a comparison may be repeated."""
_UNTRIED: Final = 16 * _KEPT
"""The number of syncs after which the thread is tried even if the kernel is not slow."""


class SyncChoice:
    """Measures syncs, and chooses who runs the next one.

    The choice changes only while no sync runs, because two syncs of a file must not overlap.

    Attributes:
        uses_thread: Whether the thread syncs.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self.uses_thread: bool = False
        self._running = 0
        self._began: float | None = None
        """When a sync began while no other ran; ``None`` once it is measured."""
        self._is_trial = False
        self._left = 0
        """The number of syncs before a comparison may be repeated."""
        self._took: list[float] = []
        self._spent = 0.0
        self._usual = float("inf")
        """The lowest median of the kernel's syncs; it may rise by ``_DRIFT`` at each check."""
        self._rival_mean = 0.0
        """During a trial, the mean of the other way."""

    def begin(self) -> bool:
        """Note that a sync begins; return whether the thread runs it."""
        if not self._running:
            self._began = self._now()
        self._running += 1
        return self.uses_thread

    def end(self, _done: object = None) -> None:
        """Note that a sync has ended, even if it failed."""
        self._running -= 1
        if self._began is not None:
            took, self._began = self._now() - self._began, None
            self._took.append(took)
            self._spent += took
        if not self._running:
            self._choose()

    def _choose(self) -> None:
        count = len(self._took)
        if self._is_trial:
            self._judge(count)
        elif count >= _COMPARED:
            mean = self._spent / count
            self._left -= count
            is_doubtful = self.uses_thread or self._is_slow(mean) or self._left <= _KEPT - _UNTRIED
            if self._left <= 0 and is_doubtful:
                self._rival_mean = mean
                self._is_trial = True
                self.uses_thread = not self.uses_thread
            self._forget()

    def _is_slow(self, mean: float) -> bool:
        """Return whether the kernel's syncs take longer than they usually did."""
        median = sorted(self._took)[len(self._took) // 2]
        self._usual = min(median, self._usual * _DRIFT)
        return mean > _TAIL * self._usual

    def _judge(self, count: int) -> None:
        """End a trial, early if the way on trial has already lost."""
        limit = self._rival_mean / _GAIN if self.uses_thread else self._rival_mean
        has_lost = self._spent > limit * _COMPARED
        if has_lost:
            self.uses_thread = not self.uses_thread
        if has_lost or count >= _COMPARED:
            self._is_trial, self._left = False, _KEPT
            self._forget()

    def _forget(self) -> None:
        self._took.clear()
        self._spent = 0.0
