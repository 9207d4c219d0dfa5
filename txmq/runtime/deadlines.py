"""Blocks of code that may take only so long, many at once, with one timer for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Deadline", "Deadlines"]


class Deadlines:
    """Gives out deadlines, which cancel what is inside as :func:`asyncio.timeout` does.

    That has a timer for each block. Where thousands of blocks a second begin and end long before
    their time, making and cancelling timers is a good part of what they cost.
    """

    def __init__(self) -> None:
        self._inside: dict[Deadline, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def within(self, left_s: float, late: Callable[[], Exception]) -> Deadline:
        """For one block: ``with`` cancels it after some time, and raises what is given instead.

        Args:
            left_s: How long it may take.
            late: Makes the error.
        """
        return Deadline(self, left_s, late)

    def enter(self, deadline: Deadline, left_s: float) -> float:
        """A block begins; returns its time by the clock of the loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # Timers of another loop never come.
            self._loop, self._timer = loop, None
        at = loop.time() + left_s
        self._inside[deadline] = None
        if self._timer is None or at < self._timer_at:
            self._wake_at(loop, at)
        return at

    def leave(self, deadline: Deadline) -> None:
        """It has ended. The timer stays, for those that are still inside or come next."""
        self._inside.pop(deadline, None)

    def _wake_at(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = loop.call_at(at, self._look), at

    def _look(self) -> None:
        assert self._loop is not None, "timers are set in a loop"
        now, self._timer = self._loop.time(), None
        for each in [each for each in self._inside if each.at <= max(now, self._timer_at)]:
            del self._inside[each]
            each.expire()
        if self._inside:
            self._wake_at(self._loop, min(each.at for each in self._inside))


class Deadline:
    """What :meth:`Deadlines.within` gives; used once, in a task."""

    __slots__ = ("_all", "_before", "_is_late", "_late", "_left_s", "_task", "at")

    def __init__(self, deadlines: Deadlines, left_s: float, late: Callable[[], Exception]) -> None:
        self.at = 0.0
        self._all = deadlines
        self._left_s = left_s
        self._late = late
        self._is_late = False
        self._before = 0
        self._task: asyncio.Task[object] | None = None

    def __enter__(self) -> None:
        task = self._task = asyncio.current_task()
        assert task is not None, "only a task can be cancelled"
        self._before = task.cancelling()
        self.at = self._all.enter(self, self._left_s)

    def expire(self) -> None:
        """Its time has come."""
        assert self._task is not None, "it is inside"
        self._is_late = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: object
    ) -> None:
        self._all.leave(self)
        task, self._task = self._task, None
        if not self._is_late or task is None:
            return
        # Somebody else may have cancelled it at the same time, and is to be obeyed.
        is_ours = task.uncancel() <= self._before
        if is_ours and isinstance(problem, asyncio.CancelledError):
            raise self._late() from problem
