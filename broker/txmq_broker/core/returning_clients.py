"""Decides whether the next sync waits for the clients that were just answered.

A blocking client sends its next message as soon as the last one is acknowledged. If the next sync
starts at once, it covers only the messages that arrived during the last sync, and the clients that
were just answered wait for two syncs. Two half groups then take turns forever. A short wait before
the sync joins them.

The wait costs time if the clients are slow. So the flusher tries some syncs without the wait and
some with it, and keeps the better mode for a while. Other programs and the disk sometimes disturb a
trial: an interval much longer than most counts less, and a trial that contradicts earlier ones
changes nothing until another one confirms it. With only one client there is nothing to compare; the
mode that was better for several clients is kept until they return.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, Generic, TypeVar

__all__ = ["ReturningClients"]

C = TypeVar("C")

_PATIENCE: Final = 1.5
"""The longest wait, in durations of a sync. A client that just misses a sync waits for a whole one.
"""
_TURNS_MAX: Final = 64
"""The longest wait in turns of the event loop, in case the clock stands still."""
_SHARE: Final = 8
"""Weight of the newest sync in the average: 1/8."""
_SETTLING: Final = 16
"""Syncs to ignore after a change of the mode, while groups of clients still join or split."""
_COMPARED: Final = 64
"""Syncs over which a mode is measured."""
_KEPT: Final = 1024
"""Syncs for which the better mode is kept after the first comparison."""
_KEPT_MAX: Final = 8192
"""Maximum number of syncs between comparisons; a comparison that confirms the last one doubles
their number.
"""
_STALL: Final = 2.0
"""An interval between two syncs counts as at most twice the median interval."""
_ALONE: Final = 16
"""After 16 syncs without a second client, only one client counts as left."""
_GAIN: Final = 1.05
"""Waiting must answer 5% more requests to win."""


class ReturningClients(Generic[C]):
    """The clients that the next sync waits for, and whether waiting pays off."""

    def __init__(self) -> None:
        self._sync_s = 0.0
        self._missing: set[C] = set()
        self._until = 0.0
        self._turns = 0
        self._waits = False
        self._left = _SETTLING + _COMPARED
        """The number of syncs until the mode may change."""
        self._is_trial = True
        self._last = 0.0
        self._intervals: list[float] = []
        self._answered = 0
        self._plain_rate = 0.0
        self._kept = _KEPT
        self._waiting_won: bool | None = None
        """The result of the comparisons so far, ``None`` before the first."""
        self._is_disputed = False
        """Whether the last comparison contradicted that result."""
        self._alone = 0
        """The number of syncs for one client or none since the last one for several."""

    @property
    def is_awaiting(self) -> bool:
        """Whether the next sync waits."""
        return bool(self._missing)

    def expect(
        self, sync_s: float, answered: Iterable[C], arrived: Collection[C], now: float
    ) -> bool:
        """Return whether the next sync waits.

        Args:
            sync_s: The duration of the sync that just ended.
            answered: The clients with messages in it.
            arrived: The clients whose messages the next sync already has.
            now: The time.
        """
        missing = set(answered)
        if self._is_comparable(len(missing)):
            self._compare(len(missing), now)
        self._sync_s += (sync_s - self._sync_s) / _SHARE
        missing.difference_update(arrived)
        # One client alone never waits.
        if not self._waits or len(missing) + len(arrived) <= 1:
            return False
        self._missing = missing
        self._until = now + self._sync_s * _PATIENCE
        self._turns = _TURNS_MAX
        return bool(missing)

    def goes_on(self, arrived: Collection[C], now: float) -> bool:
        """Return whether the sync still waits, in a later turn of the loop."""
        self._missing.difference_update(arrived)
        self._turns -= 1
        if self._turns <= 0 or now >= self._until:
            self._missing.clear()
        return bool(self._missing)

    def _is_comparable(self, answered: int) -> bool:
        was_alone = self._alone >= _ALONE
        if answered <= 1:
            self._alone += 1
            return not was_alone
        self._alone = 0
        if was_alone and self._is_trial:
            # The time with one client says nothing about either mode.
            self._try(waits=False)
        return True

    def _compare(self, answered: int, now: float) -> None:
        self._left -= 1
        if not self._is_trial:
            if self._left <= 0:
                self._try(waits=False)
            return
        if self._left == _COMPARED:
            self._last, self._answered = now, 0
            return
        self._answered += answered
        self._intervals.append(now - self._last)
        self._last = now
        if self._left > 0:
            return
        rate = self._answered / max(_time_without_stalls(self._intervals), 1e-9)
        if not self._waits:
            self._plain_rate = rate
            self._try(waits=True)
        else:
            self._keep_better(won=rate > _GAIN * self._plain_rate)

    def _keep_better(self, *, won: bool) -> None:
        """Keep the better mode. A comparison that contradicts earlier ones is repeated soon."""
        is_first = self._waiting_won is None
        if won == self._waiting_won:
            self._is_disputed = False
            self._kept = min(2 * self._kept, _KEPT_MAX)
        elif is_first or self._is_disputed:
            self._is_disputed = False
            self._waiting_won, self._kept = won, _KEPT
        else:
            self._is_disputed = True
        self._waits, self._is_trial = self._waiting_won is True, False
        self._left = _COMPARED if self._is_disputed else self._kept

    def _try(self, *, waits: bool) -> None:
        self._waits, self._is_trial = waits, True
        self._left = _SETTLING + _COMPARED
        self._intervals.clear()


def _time_without_stalls(intervals: list[float]) -> float:
    longest = _STALL * sorted(intervals)[len(intervals) // 2]
    return sum(min(interval, longest) for interval in intervals)
